"""`nnunet_labelset annotate`: say what is annotated in which case of a data set that exists
already.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.commands.options import add_dataset, add_names, add_processes
from nnunet_labelset.contract.annotated_table import read_annotated
from nnunet_labelset.datasets.annotate import (
    BEFORE,
    Existing,
    check_values,
    contract_of,
    declared_merged,
    declared_missing,
    missing_by_table,
    open_dataset,
    read_all_values,
    suggestion,
)
from nnunet_labelset.datasets.annotate_files import undo, write_block
from nnunet_labelset.datasets.annotate_masks import find_masks, masked_maps
from nnunet_labelset.datasets.coverage import coverage_table, format_table, shortened
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_text
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.names import dataset_words
from nnunet_labelset.nnunet.recommendation import next_commands


class Declare(argparse.Action):
    """`--missing` and `--merged` in the order in which they were typed: the n-th --in belongs to
    the n-th of them.
    """

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: object = None
    ) -> None:
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), (option, values)])


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "For an nnU-Net data set in which some labels were not drawn in some cases, so that their voxels are 0. "
        "Writes 'label_sets' in dataset.json (and in nnU-Net's copy of it) and changes nothing else: label maps "
        "stay, nothing is preprocessed again, unless masks are given. Each call replaces what an earlier one declared."
    )
    add_dataset(parser)
    parser.add_argument(
        "--annotated",
        metavar="FILE",
        help="table of all training cases: columns case,annotated (such as 'liver;spleen', or 'all'), or case and one "
        "column for every label with yes or no; comma, semicolon or tab",
    )
    missing = (
        "labels that were not drawn in the cases of the --in that follows; all others were drawn"
    )
    merged = (
        "labels (or a region) that were drawn as one in the cases of the --in that follows: a voxel that has the value "
        "of one of them may be any of them"
    )
    for option, text in (("--missing", missing), ("--merged", merged)):
        parser.add_argument(
            option, dest="declared", nargs="+", action=Declare, metavar="LABEL", help=text
        )
    parser.add_argument(
        "--in",
        nargs="+",
        action="append",
        default=[],
        dest="cases",
        metavar="CASE",
        help="cases, or 'site2_*'",
    )
    add_names(
        parser, "--leaves", "NAME", "for data sets with regions: the names of the values 1, 2, ..."
    )
    parser.add_argument(
        "--fully-annotated",
        action="store_true",
        help="every label was drawn in every case; where there is an ignore label, it keeps nnU-Net's meaning",
    )
    parser.add_argument(
        "--suggest",
        action="store_true",
        help="write a table for --annotated, to be corrected by you",
    )
    parser.add_argument(
        "-o", metavar="FILE", help="of --suggest (default: DatasetXXX_Name_annotated.csv)"
    )
    parser.add_argument(
        "--mask",
        type=Path,
        metavar="FOLDER",
        help="masks (of the brain, of the body) named as the label maps: outside of its mask, a case is background; "
        "inside, what is unlabelled is one of the missing labels. Writes new label maps and keeps the old ones",
    )
    parser.add_argument(
        "--undo", action="store_true", help="put the old dataset.json, and label maps, back"
    )
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    declared = args.declared or []
    chosen = [
        bool(args.annotated),
        bool(declared or args.cases),
        args.fully_annotated,
        args.suggest,
        args.undo,
    ]
    if sum(chosen) != 1:
        raise LabelSetError(
            "expected one of --annotated FILE, --missing LABEL --in CASE, --merged LABEL LABEL --in CASE, "
            "--fully-annotated, --suggest or --undo"
        )
    if len(declared) != len(args.cases):
        raise LabelSetError(
            "every --missing and --merged needs an --in, and the other way round: --missing spleen --in pat_007 "
            "'site2_*'"
        )
    if args.o and not args.suggest:
        raise LabelSetError("-o is the table of --suggest: it needs --suggest")
    if args.mask and (args.suggest or args.undo or args.fully_annotated):
        raise LabelSetError("--mask belongs to --annotated, or to --missing and --in")
    folder = find_dataset(args.d)
    if args.undo:
        print("".join(f"as before: {path}\n" for path in undo(folder)), end="")
        return
    data = open_dataset(folder, args.leaves)
    if args.suggest:
        _suggest(args, data)
        return
    groups: dict[str, list[tuple[list[str], list[str]]]] = {"--missing": [], "--merged": []}
    for (option, names), cases in zip(declared, args.cases, strict=True):
        groups[option].append((names, cases))
    if args.annotated:
        missing = missing_by_table(
            data, read_annotated(args.annotated, data.labels), args.annotated
        )
    else:
        missing = declared_missing(data, groups["--missing"])
    merged = declared_merged(data, groups["--merged"], missing)
    values = read_all_values(data, args.np)
    notes = check_values(data, missing, values, merged)
    masks = find_masks(data, args.mask, missing, values) if args.mask else {}
    contract = contract_of(data, missing, masks, merged)
    with masked_maps(data, masks, args.np) as new_maps:
        written = write_block(data, contract, new_maps)
    print("Cases in which each label is annotated:\n")
    rows, note = shortened(coverage_table(contract, data.training))
    print(format_table(rows) + note)
    print("".join(f"note: {note}\n" for note in notes), end="")
    print("".join(f"wrote {path}\n" for path in written), end="")
    if masks:
        unmasked = [case for case, leaves in missing.items() if leaves and case not in masks]
        rest = f"; without mask, as before: {some(unmasked)}" if unmasked else ""
        print(
            f"wrote {len(masks)} label maps, in which 'ignore' is what nobody drew inside of the mask{rest}"
        )
    print(
        f"the old one is {folder / BEFORE}; 'nnunet_labelset annotate -d {args.d} --undo' puts it back"
    )
    words = dataset_words(folder.resolve().name)
    data_set = words[0] if words else args.d
    print(
        "\n".join(
            ["next:", *next_commands(data_set, contract.leaf_names, preprocessed=len(written) > 1)]
        )
    )


def _suggest(args: argparse.Namespace, data: Existing) -> None:
    target = Path(args.o or f"{data.folder.resolve().name}_annotated.csv")
    if target.exists():
        raise LabelSetError(
            f"{target} exists, and may have been corrected: choose another -o, or delete it"
        )
    write_text(target, suggestion(data, read_all_values(data, args.np)))
    print(
        f"wrote {target}: 'yes' where a label has voxels. It is a guess: a label that is not there may have been "
        f"forgotten, or looked for and not found.\nCorrect it (yes: it was looked for; no: it was not), then:\n"
        f"nnunet_labelset annotate -d {args.d} --annotated {target}"
    )
