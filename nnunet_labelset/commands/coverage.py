"""`nnunet_labelset coverage`: the paper's Table 1, in how many cases of each group every leaf is
annotated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.commands.options import add_dataset, add_table, check_table
from nnunet_labelset.datasets.coverage import (
    FORMATS,
    MOST_ON_SCREEN,
    PICTURES,
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
        "--format", choices=FORMATS, help="of the table (default: by the ending of -o, else text)"
    )
    parser.add_argument(
        "-o", metavar="FILE", help="write there instead of on screen; .png, .pdf, .svg: a picture"
    )


def run(args: argparse.Namespace) -> None:
    check_table(args)
    folder = find_dataset(args.d)
    dataset_json, contract = read_dataset(folder)
    rows = dataset_coverage(folder, contract, dataset_json, args.table, args.group_by)
    ending = Path(args.o).suffix.lower() if args.o else ""
    if ending in PICTURES:
        from nnunet_labelset.datasets.coverage_picture import (
            draw_coverage,
        )  # matplotlib only where a picture is wanted

        draw_coverage(rows, args.o, folder.resolve().name)
        print(f"wrote {args.o}")
        return
    style = args.format or next(
        (name for name, suffix in FORMATS.items() if suffix == ending), None
    )
    if args.o and style is None:
        raise LabelSetError(
            f"-o {args.o}: expected an ending of {', '.join((*FORMATS.values(), *PICTURES))}, or "
            "--format"
        )
    shown, note = (rows, "") if args.o or style not in (None, "text") else shortened(rows)
    text = format_table(shown, style or "text") + note
    if style in (None, "text") and (
        legend := describe_label_sets(contract, None if args.o else MOST_ON_SCREEN)
    ):
        text += f"\n{legend}"
    if args.o:
        write_text(args.o, text)
        print(f"wrote {args.o}")
    else:
        print(text, end="")
