"""`python -m nnunet_labelset.selftest`: test this machine, with its GPU, in about two minutes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from nnunet_labelset.study.selftest import Extent, run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nnunet_labelset.selftest",
        description="Compare the losses with plain references, train and predict for a moment, and "
        "print a table. Please send it with every report of a problem.",
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("-device", default=default, help=f"(default here: {default})")
    parser.add_argument("--no-training", action="store_true", help="check and time the losses only")
    args = parser.parse_args(arguments)
    device = torch.device(args.device)
    if run(device, Extent.for_device(device), trains=not args.no_training):
        return 0
    print("\nSomething is WRONG: please send this table.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
