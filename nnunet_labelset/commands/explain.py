"""`nnunet_labelset explain`: what a value may be in a case, and which labels count as annotated."""

from __future__ import annotations

import argparse

from nnunet_labelset.commands.options import add_dataset
from nnunet_labelset.datasets.explain import explain_case, explain_groups
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.raw import read_dataset


def configure(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help="cases to explain (default: a table of all groups)"
    )


def run(args: argparse.Namespace) -> None:
    folder = find_dataset(args.d)
    _, contract = read_dataset(folder)
    if not args.cases:
        print(explain_groups(contract))
    for case in args.cases:
        print(explain_case(folder, contract, case), end="\n\n")
