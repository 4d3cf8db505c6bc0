"""`nnunet_labelset annotate`: declare what is annotated in which case of an existing data set."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from nnunet_labelset.audit.build import suggestion_page
from nnunet_labelset.commands.options import add_dataset, add_names, add_processes
from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.annotated_table import read_annotated, with_names_of_cases
from nnunet_labelset.datasets.annotate.declaration import (
    Declarations,
    Kind,
    Request,
    check_missing,
    declared_by_options,
    declared_by_table,
    declared_complete,
    declared_contract,
)
from nnunet_labelset.datasets.annotate.history import Undone, settle, undo, write_step
from nnunet_labelset.datasets.annotate.labelled import (
    LabelledDataset,
    open_dataset,
    read_all_values,
)
from nnunet_labelset.datasets.annotate.masks import apply_masks, view_remarks, written_maps
from nnunet_labelset.datasets.annotate.remarks import changes, refuse_loss, remarks
from nnunet_labelset.datasets.annotate.suggestion import suggestion
from nnunet_labelset.datasets.coverage import coverage_table, format_table, shortened
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_text
from nnunet_labelset.io.lock import locked
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.names import dataset_words
from nnunet_labelset.nnunet.recommendation import next_commands

DECLARING: dict[Kind, tuple[int | str, str | None, str]] = {
    Kind.MISSING: (
        "+",
        "LABEL",
        "labels that were not drawn in the cases of the next --in; all others were drawn",
    ),
    Kind.MERGED: (
        "+",
        "LABEL",
        "labels (or a region) that were drawn as one structure in the cases of the next --in: "
        "their voxels may be any of these labels",
    ),
    Kind.SCRIBBLES: (
        0,
        None,
        "only strokes or parts were drawn in the cases of the next --in: unlabelled voxels may "
        "be anything",
    ),
    Kind.SLICES: (
        1,
        "FIRST-LAST",
        "only these slices (last axis of the file, counted from 0) were drawn in the cases of"
        " the next --in: unlabelled voxels in other slices become 'ignore'. Writes new label "
        "maps and keeps the old ones",
    ),
}


class Declare(argparse.Action):
    """Keeps the declaring options in the order in which they were typed: the n-th --in belongs to
    the n-th of them.
    """

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: object = None
    ) -> None:
        words = values if isinstance(values, list) else []
        entry = (Kind(str(option)), tuple(words))
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), entry])


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Declare which labels were drawn in which cases of an existing nnU-Net data set. Voxels of "
        "labels that were not drawn have the value 0. The command writes 'label_sets' into "
        "dataset.json and into nnU-Net's copy of it; label maps stay as they are and nothing needs "
        "to be preprocessed again, unless you give masks, slices or a field of view. Later calls "
        "must keep earlier declarations, unless you add --replace."
    )
    add_dataset(parser)
    parser.add_argument(
        "--annotated",
        metavar="FILE",
        help="table of all training cases: columns case,annotated (such as 'liver;spleen', or "
        "'all'), or case and one yes/no column per label; comma, semicolon or tab. Optional "
        "columns: 'wrong' (labels that were drawn but cannot be trusted), 'slices' (such as "
        "20-60: see --slices) and 'scribbles' (yes or no)",
    )
    for kind, (number, metavar, text) in DECLARING.items():
        parser.add_argument(
            kind.value, dest="declared", nargs=number, action=Declare, metavar=metavar, help=text
        )
    parser.add_argument(
        "--in",
        nargs="+",
        action="append",
        default=[],
        dest="cases",
        metavar="CASE",
        help="case names or glob patterns, e.g. 'site2_*'; patterns match training cases only, "
        "unless --test is given",
    )
    _add_switches(parser)
    values = "for data sets with regions: names of the values 1, 2, ..."
    add_names(parser, "--value-names", "NAME", values)
    # the name of --value-names in version 0.2
    parser.add_argument("--leaves", nargs="+", dest="value_names", help=argparse.SUPPRESS)
    _add_files(parser)
    add_processes(parser)


def _add_switches(parser: argparse.ArgumentParser) -> None:
    switches = {
        "--test": "patterns of --in also match test cases",
        "--fully-annotated": "every label was drawn in every case (with --add: in every case not "
        "declared yet); voxels of an ignore label are still ignored",
        "--add": "add to earlier declarations: change only the named cases, and keep their gaps",
        "--replace": "allow this call to overwrite earlier declarations",
        "--suggest": "write a draft of the table for --annotated, for you to correct",
        "--page": "with --suggest: write an HTML page with pictures on which you correct the table",
        "--undo": "undo the last call: restore dataset.json and the label maps",
    }
    for option, text in switches.items():
        parser.add_argument(option, action="store_true", help=text)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        metavar="FILE",
        help="where --suggest writes the table (default: DatasetXXX_Name_annotated.csv)",
    )
    parser.add_argument(
        "--separator",
        default=",",
        metavar="CHARACTER",
        help="separator of that table: , or ;",
    )
    parser.add_argument(
        "--mask",
        type=Path,
        metavar="FOLDER",
        help="folder of brain or body masks, named like the label maps: outside the mask is "
        "background; an unlabelled voxel inside is one of the missing labels. Writes new "
        "label maps and keeps the old ones",
    )
    parser.add_argument(
        "--field-of-view",
        type=Path,
        metavar="FOLDER",
        help="folder of masks of the part that was examined, named like the label maps: unlabelled"
        " voxels outside become 'ignore'. Writes new label maps and keeps the old ones",
    )


def run(args: argparse.Namespace) -> None:
    _check_options(args)
    folder = find_dataset(args.d)
    with locked(folder.resolve()):
        was_interrupted = _settle(folder)
        if args.undo and not was_interrupted:
            _print_undone(undo(folder))
        if args.undo:
            return
        data = open_dataset(folder, args.value_names, args.add or args.suggest)
        if args.suggest:
            _suggest(args, data)
        else:
            _declare(args, data)


def _settle(folder: Path) -> bool:
    """Undo a call that was interrupted; tell whether there was one."""
    settled = settle(folder)
    if settled is None:
        return False
    print("note: an earlier call was interrupted and has been undone")
    _print_undone(settled)
    return True


def _check_options(args: argparse.Namespace) -> None:
    for problem in _option_problems(args):
        raise LabelSetError(problem)


def _option_problems(args: argparse.Namespace) -> Iterator[str]:
    declares = bool(args.declared or args.cases)
    chosen = [bool(args.annotated), declares, args.fully_annotated, args.suggest, args.undo]
    if sum(chosen) != 1:
        yield (
            "expected one of --annotated FILE, --missing LABEL --in CASE, --merged LABEL LABEL "
            "--in CASE, --scribbles --in CASE, --slices FIRST-LAST --in CASE, --fully-annotated, "
            "--suggest or --undo"
        )
    if len(args.declared or []) != len(args.cases):
        yield (
            "every --missing, --merged, --scribbles and --slices needs an --in, and vice versa: "
            "--missing spleen --in pat_007 'site2_*'"
        )
    yield from _table_problems(args)
    is_declaration = not (args.suggest or args.undo)
    if args.mask and (args.fully_annotated or not is_declaration):
        yield "--mask belongs to --annotated, or to --missing and --in"
    if not is_declaration and any((args.add, args.replace, args.test, args.field_of_view)):
        yield "--add, --replace, --test and --field-of-view belong to a declaration"


def _table_problems(args: argparse.Namespace) -> Iterator[str]:
    """Yield what is wrong with the options of the table that --suggest writes."""
    if args.o and not args.suggest:
        yield "-o is the table of --suggest: it needs --suggest"
    if args.page and not args.suggest:
        yield "--page belongs to --suggest"
    if args.separator not in (",", ";"):
        yield f"--separator {args.separator!r}: expected , or ;"


def _declare(args: argparse.Namespace, data: LabelledDataset) -> None:
    declarations = _declarations(args, data)
    values = read_all_values(data, args.np)
    check_missing(data, declarations, values)
    declarations, jobs = apply_masks(data, declarations, values, args.mask, args.field_of_view)
    contract = declared_contract(data, declarations)
    if not args.replace:
        refuse_loss(data, contract, declarations, values)
    record = {
        "command": args.typed,
        "reasons": {case: declaration.reason for case, declaration in declarations.items()},
    }
    with written_maps(data, jobs, args.np) as new_maps:
        written = write_step(data.folder, data.dataset_json, contract, new_maps, record)
    _print_lines("change: ", changes(data, contract))
    _print_coverage(data, contract)
    _print_lines("note: ", remarks(data, contract, declarations, values))
    if args.field_of_view:
        _print_lines("note: ", view_remarks(data, args.field_of_view, declarations, values))
    _print_lines("wrote ", written)
    if jobs:
        _print_masks(declarations, jobs)
    print(f"'nnunet_labelset annotate -d {args.d} --undo' undoes this")
    words = dataset_words(data.folder.resolve().name)
    number = words[0] if words else args.d
    is_valid = len(written) > 1  # nnU-Net's copy was written, too
    commands = next_commands(number, data.folder, contract.leaf_names, preprocessed=is_valid)
    print("\n".join(["next:", *commands]))


def _declarations(args: argparse.Namespace, data: LabelledDataset) -> Declarations:
    if args.fully_annotated:
        return declared_complete(data, args.add)
    if args.annotated:
        table = with_names_of_cases(read_annotated(args.annotated, data.labels), data.names)
        _print_lines(f"note: {table.path}: ", table.notes)
        return declared_by_table(data, table, args.add)
    requests = [
        Request(kind, names, tuple(patterns))
        for (kind, names), patterns in zip(args.declared, args.cases, strict=True)
    ]
    return declared_by_options(data, requests, args.add, args.test)


def _print_lines(start: str, lines: Iterable[object]) -> None:
    for line in lines:
        print(f"{start}{line}")


def _print_undone(undone: Undone) -> None:
    _print_lines("as before: ", undone.files)
    _print_lines("changed since, kept as: ", undone.corrected)


def _print_coverage(data: LabelledDataset, contract: Contract) -> None:
    print("Cases in which each label is annotated:\n")
    declared = [case for case in data.training if case in contract.cases]
    rows, note = shortened(coverage_table(contract, declared))
    print(format_table(rows) + note)


def _print_masks(declarations: Declarations, jobs: Iterable[str]) -> None:
    written = set(jobs)
    unmasked = [
        case
        for case, declaration in declarations.items()
        if declaration.missing and case not in written
    ]
    others = f"; no mask for {some(unmasked)}: label maps as before" if unmasked else ""
    print(f"wrote {len(written)} label map(s) with 'ignore' where nothing was drawn{others}")


def _suggest(args: argparse.Namespace, data: LabelledDataset) -> None:
    target = Path(args.o or f"{data.folder.resolve().name}_annotated.csv")
    if target.exists():
        raise LabelSetError(
            f"{target} exists, and may have been corrected: choose another -o, or delete it"
        )
    values = read_all_values(data, args.np)
    if args.page:
        page = target.with_suffix(".html")
        if page.exists():
            raise LabelSetError(f"{page} exists: choose another -o, or delete it")
        write_text(page, suggestion_page(data, values, args.d, args.np))
        print(f"wrote {page}: look, decide, and save the table there")
        return
    write_text(target, suggestion(data, values, args.separator))
    print(
        f"wrote {target}: 'yes' where a label has voxels. It is a guess: a label that is absent "
        "may have been forgotten, or looked for and not found.\n"
        "Correct it (yes: it was looked for; no: it was not), then:\n"
        f"nnunet_labelset annotate -d {args.d} --annotated {target}"
    )
