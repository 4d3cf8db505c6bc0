"""`nnunet_labelset coverage`: the paper's Table 1, in how many cases of each group every label is
annotated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.commands.options import add_dataset, add_table, check_table
from nnunet_labelset.contract import Contract
from nnunet_labelset.datasets.coverage import (
    FORMATS,
    MOST_ON_SCREEN,
    PICTURES,
    TEXT,
    CoverageRow,
    dataset_coverage,
    describe_label_sets,
    format_table,
    shortened,
)
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_text
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.raw import read_dataset


def configure(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_table(parser)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="format of the table (default: by the ending of -o, otherwise text)",
    )
    parser.add_argument(
        "-o", metavar="FILE", help="write to this file; .png, .pdf or .svg draws a picture"
    )


def run(args: argparse.Namespace) -> None:
    check_table(args)
    folder = find_dataset(args.d)
    dataset_json, contract = read_dataset(folder)
    rows = dataset_coverage(folder, contract, dataset_json, args.table, args.group_by)
    if args.o is None:
        print(_screen_text(rows, contract, args.format or TEXT), end="")
        return
    if Path(args.o).suffix.lower() in PICTURES:
        from nnunet_labelset.datasets.coverage_picture import draw_coverage  # needs matplotlib

        draw_coverage(rows, args.o, folder.resolve().name)
    else:
        write_text(args.o, _file_text(rows, contract, args.format or _format_of(args.o)))
    print(f"wrote {args.o}")


def _screen_text(rows: list[CoverageRow], contract: Contract, style: str) -> str:
    if style != TEXT:
        return format_table(rows, style)
    shown, note = shortened(rows)
    legend = describe_label_sets(contract, MOST_ON_SCREEN)
    return format_table(shown) + note + (f"\n{legend}" if legend else "")


def _file_text(rows: list[CoverageRow], contract: Contract, style: str) -> str:
    legend = describe_label_sets(contract) if style == TEXT else ""
    return format_table(rows, style) + (f"\n{legend}" if legend else "")


def _format_of(path: str) -> str:
    """Return the format that the ending of a file name stands for."""
    ending = Path(path).suffix.lower()
    for name, suffix in FORMATS.items():
        if suffix == ending:
            return name
    endings = ", ".join((*FORMATS.values(), *PICTURES))
    raise LabelSetError(f"-o {path}: expected an ending of {endings}, or --format")
