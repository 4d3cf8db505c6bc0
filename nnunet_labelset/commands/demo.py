"""`nnunet_labelset demo`: the whole road on generated volumes, every command as a user would type
it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.study.demo import FULL, SMALL, Demo


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        default="labelset_demo",
        metavar="FOLDER",
        help="everything goes there (default: %(default)s)",
    )
    parser.add_argument(
        "--data-only", action="store_true", help="write the generated volumes and stop"
    )
    parser.add_argument("--full", action="store_true", help="more cases, methods, folds and steps")
    parser.add_argument("--gpu", action="store_true", help="train and predict on the GPU")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the volumes and the trainings; default: %(default)s"
    )


def run(args: argparse.Namespace) -> None:
    Demo(
        Path(args.o),
        FULL if args.full else SMALL,
        args.full,
        "cuda" if args.gpu else "cpu",
        args.seed,
    ).run(args.data_only)
