"""`nnunet_labelset demo`: end-to-end demo on synthetic volumes, command by command."""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.study.demo import FULL, SMALL, Demo


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        default="labelset_demo",
        metavar="FOLDER",
        help="output folder (default: %(default)s)",
    )
    parser.add_argument(
        "--data-only", action="store_true", help="write the synthetic volumes and exit"
    )
    parser.add_argument("--full", action="store_true", help="more cases, methods, folds and steps")
    parser.add_argument("--gpu", action="store_true", help="train and predict on the GPU")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="random seed of volumes and trainings (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    Demo(
        Path(args.o),
        FULL if args.full else SMALL,
        args.full,
        "cuda" if args.gpu else "cpu",
        args.seed,
    ).run(args.data_only)
