"""`nnunet_labelset verify`: what nnU-Net's own integrity check misses, all problems in one go."""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.commands.options import add_dataset, add_processes
from nnunet_labelset.datasets.verify.check import verify
from nnunet_labelset.datasets.verify.findings import screen_lines
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_text
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.names import IMAGES_TRAINING, LABELS_TRAINING
from nnunet_labelset.nnunet.raw import INCOMPLETE


def configure(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_processes(parser)
    parser.add_argument(
        "-o", metavar="FILE", help="write all errors and warnings there, one line each"
    )


def run(args: argparse.Namespace) -> None:
    given = Path(args.d)
    # A folder that `convert` was writing when it was killed may have no dataset.json yet.
    unfinished = not args.d.isdigit() and any(
        (given / name).exists() for name in (INCOMPLETE, IMAGES_TRAINING, LABELS_TRAINING)
    )
    folder = given if unfinished else find_dataset(args.d)
    errors, warnings = verify(folder, args.np)
    for title, findings in (("errors", errors), ("warnings", warnings)):
        if findings:
            print(f"{title} ({len(findings)})")
            print("".join(f"  {line}\n" for line in screen_lines(findings)), end="")
    if args.o:
        lines = [
            f"{kind}: {line}\n"
            for kind, all_of in (("error", errors), ("warning", warnings))
            for line in all_of
        ]
        write_text(args.o, "".join(lines))
        print(f"wrote {args.o}")
    counts = f"{len(errors)} error(s), {len(warnings)} warning(s)"
    if errors:
        raise LabelSetError(f"{folder.resolve().name}: {counts}, listed above")
    print(f"{folder.resolve().name}: {counts}")
