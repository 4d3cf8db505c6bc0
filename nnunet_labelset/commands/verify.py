"""`nnunet_labelset verify`: what nnU-Net's own integrity check misses, all problems in one go."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from nnunet_labelset.commands.options import add_dataset, add_processes
from nnunet_labelset.datasets.verify.check import verify
from nnunet_labelset.datasets.verify.findings import Finding, screen_lines
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_text
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.names import IMAGES_TRAINING, LABELS_TRAINING, dataset_words
from nnunet_labelset.nnunet.raw import INCOMPLETE, read_dataset
from nnunet_labelset.nnunet.recommendation import next_commands


def configure(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_processes(parser)
    parser.add_argument(
        "-o", metavar="FILE", help="write all errors and warnings to this file, one per line"
    )


def run(args: argparse.Namespace) -> None:
    folder = _folder(args.d)
    errors, warnings = verify(folder, args.np)
    _print_findings("errors", errors)
    _print_findings("warnings", warnings)
    if args.o:
        _write_findings(args.o, errors, warnings)
    name = folder.resolve().name
    summary = f"{name}: {len(errors)} error(s), {len(warnings)} warning(s)"
    if errors:
        raise LabelSetError(f"{summary}, listed above")
    print(summary)
    _print_next(folder)


def _write_findings(path: Path, errors: Sequence[object], warnings: Sequence[object]) -> None:
    lines = [f"error: {line}\n" for line in errors]
    lines += [f"warning: {line}\n" for line in warnings]
    write_text(path, "".join(lines))
    print(f"wrote {path}")


def _folder(dataset: str) -> Path:
    """Return the folder; one that `convert` was writing when it was killed has no dataset.json."""
    given = Path(dataset)
    parts = (INCOMPLETE, IMAGES_TRAINING, LABELS_TRAINING)
    if not dataset.isdigit() and any((given / part).exists() for part in parts):
        return given
    return find_dataset(dataset)


def _print_findings(title: str, findings: Sequence[Finding]) -> None:
    if findings:
        print(f"{title} ({len(findings)})")
        print("".join(f"  {line}\n" for line in screen_lines(findings)), end="")


def _print_next(folder: Path) -> None:
    words = dataset_words(folder.resolve().name)
    if words is None:  # nnU-Net does not train on it
        return
    _, contract = read_dataset(folder)
    commands = next_commands(words[0], folder, contract.leaf_names, preprocessed=True)
    print("\n".join(["next:", *commands[1:]]))
