"""`nnunet_labelset verify`: what nnU-Net's own integrity check misses, all problems in one go."""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.commands.options import add_dataset, add_processes
from nnunet_labelset.datasets.verify.check import verify
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.names import IMAGES_TRAINING, LABELS_TRAINING
from nnunet_labelset.nnunet.raw import INCOMPLETE


def configure(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    given = Path(args.d)
    # A folder that `convert` was writing when it was killed may have no dataset.json yet.
    unfinished = not args.d.isdigit() and any(
        (given / name).exists() for name in (INCOMPLETE, IMAGES_TRAINING, LABELS_TRAINING)
    )
    folder = given if unfinished else find_dataset(args.d)
    errors, warnings = verify(folder, args.np)
    for title, lines in (("errors", errors), ("warnings", warnings)):
        if lines:
            print(f"{title} ({len(lines)})")
            print("".join(f"  {line}\n" for line in lines), end="")
    counts = f"{len(errors)} error(s), {len(warnings)} warning(s)"
    if errors:
        raise LabelSetError(f"{folder.resolve().name}: {counts}, listed above")
    print(f"{folder.resolve().name}: {counts}")
