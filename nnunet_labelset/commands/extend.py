"""`nnunet_labelset extend`: the start of a training in which a trained model learns more
structures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.nnunet.extend import extend


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        required=True,
        metavar="MODEL",
        help="folder TRAINER__PLANS__CONFIGURATION, or its zip",
    )
    parser.add_argument(
        "-d", required=True, metavar="ID", help="the data set with the old labels and the new ones"
    )
    parser.add_argument(
        "-f", metavar="FOLD", help="fold of the model to start from; default: all, or the first"
    )
    parser.add_argument(
        "-p",
        metavar="PLANS",
        help="name of the plans in the data set; default: OLDPLANS_of_OLDDATASET",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="read a checkpoint that runs code of its own: only if you know who made it",
    )


def run(args: argparse.Namespace) -> None:
    extend(Path(args.m), args.d, args.p, args.f, args.trust)
