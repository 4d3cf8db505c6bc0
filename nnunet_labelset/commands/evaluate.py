"""`nnunet_labelset evaluate`: scores of predictions against partially annotated references."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from nnunet_labelset.commands.options import add_processes, add_table, check_table
from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.contract.completed import refuse_completed
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.evaluation.evaluate import evaluation, score_folder, with_worst_distances
from nnunet_labelset.evaluation.files import SCORE_COLUMNS, averages_csv, per_case_csv, screen_table
from nnunet_labelset.evaluation.fresh import read_contract
from nnunet_labelset.evaluation.instances import require_panoptica
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.pairs import (
    LEAVES_AND_UNIONS,
    Wanted,
    find_pairs,
    foreground,
    read_regions,
    structures_of,
    union_members,
)
from nnunet_labelset.evaluation.results import Settings
from nnunet_labelset.io.files import read_json, write_json, write_text
from nnunet_labelset.io.records import to_json
from nnunet_labelset.io.tables import column_of_cases, read_table
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import DATASET, FILE_ENDING, SUMMARY
from nnunet_labelset.nnunet.summary import nnunet_summary


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gt_folder", help="folder with the references")
    parser.add_argument("pred_folder", help="folder with the predictions")
    parser.add_argument(
        "-djfile",
        metavar="FILE",
        help="dataset.json (default: beside gt_folder, else in pred_folder)",
    )
    parser.add_argument(
        "--annotated",
        metavar="CSV",
        help="what is annotated: columns case and annotated or protocol",
    )
    parser.add_argument("-o", metavar="FOLDER", help="output (default: pred_folder/evaluation)")
    add_processes(parser)
    parser.add_argument(
        "--chill", action="store_true", help="go on if predictions are missing or have no reference"
    )
    parser.add_argument(
        "--cap",
        type=float,
        metavar="MM",
        help="largest distance, also of missed and invented leaves (default: the image's diagonal; paper: 57.6)",
    )
    parser.add_argument(
        "--no_hd95", action="store_true", help="no metrics of surfaces, only those of counts"
    )
    parser.add_argument(
        "--tolerance",
        metavar="MM|CSV",
        help="of NSD: mm, or columns leaf and tolerance (default: the larger of 1 mm and a voxel's diagonal)",
    )
    parser.add_argument(
        "--regions",
        nargs="+",
        default=[],
        metavar="NAME=LEAF+LEAF",
        help="also score these leaves as one",
    )
    parser.add_argument(
        "--instances",
        nargs="+",
        default=[],
        metavar="LEAF",
        help="also lesion by lesion (needs panoptica)",
    )
    add_table(parser, several=True)


def run(args: argparse.Namespace) -> None:
    if args.cap is not None and not 0 < args.cap < math.inf:
        raise LabelSetError(f"Expected --cap to be a distance above 0 mm, but got {args.cap}")
    check_table(args)
    reference, prediction = Path(args.gt_folder).absolute(), Path(args.pred_folder).absolute()
    dataset_file = _find_dataset_json(args.djfile, reference, prediction)
    dataset_json = read_json(dataset_file)
    if BLOCK not in dataset_json and not args.annotated:
        raise LabelSetError(
            f"{dataset_file} has no '{BLOCK}', so nothing says what is annotated in which case: add it, or give "
            "--annotated FILE.csv with the columns case and annotated"
        )
    contract = read_contract(dataset_file, args.annotated)
    ending = dataset_json.get(FILE_ENDING, ".nii.gz")
    wanted = _wanted(args, contract)
    pairs, missing, extra = find_pairs(reference, prediction, contract, ending, args.chill, wanted)
    for names, what in ((missing, "without prediction"), (extra, "without reference")):
        if names:
            print(f"left out, {what}: {some(names)}")
    cases = [pair.case for pair in pairs]
    refuse_completed(dataset_json, cases)
    if taken := set(args.group_by) & {"protocol", *SCORE_COLUMNS}:
        raise LabelSetError(
            f"--group-by {some(sorted(taken))}: a column of the results has this name: rename yours"
        )
    groups = {column: column_of_cases(args.table, column, cases) for column in args.group_by}
    output = Path(args.o) if args.o else prediction / "evaluation"
    results = score_folder(pairs, output / "cases", args.np)
    if not args.no_hd95:
        results = [with_worst_distances(case, args.cap) for case in results]
    settings = Settings(
        reference_folder=str(reference),
        prediction_folder=str(prediction),
        dataset_json=str(dataset_file),
        annotated=str(args.annotated) if args.annotated else None,
        file_ending=ending,
        metrics=tuple(
            name
            for name, metric in METRICS.items()
            if (metric.worst is None or wanted.surfaces)
            and (not metric.of_instances or wanted.instances)
        ),
        cap=args.cap if wanted.surfaces else None,
        tolerance=dict(wanted.tolerance),
    )
    labels = {name: value for value, name in enumerate(contract.leaf_names) if value}
    leaves = tuple(foreground(contract).values())
    found = evaluation(
        results, labels, leaves, union_members(pairs, leaves), groups, settings, missing, extra
    )
    write_text(output / "per_case.csv", per_case_csv(found))
    write_text(output / "averages.csv", averages_csv(found))
    old = output / "summary.csv"  # its old name: what is out of date must not lie beside it
    if old.is_file() and old.read_bytes().startswith(
        b"group_column,group,leaf,metric,"
    ):  # not one of the user's own
        old.unlink()
    write_json(output / SUMMARY, to_json(nnunet_summary(results, foreground(contract))))
    write_json(output / "metrics.json", to_json(found))
    for column in args.group_by:
        for group, averages in found.averages.groups[column].items():
            print(f"{column}: {group or '(not known)'}, {averages.n_cases} case(s)")
            print(f"{screen_table(averages, found.unit)}\n")
    print(screen_table(found.averages.overall, found.unit))
    print(f"{len(results)} case(s); written to {output}")


def _wanted(args: argparse.Namespace, contract: Contract) -> Wanted:
    regions = read_regions(args.regions, contract)
    known = (
        structures_of(contract, protocol, LEAVES_AND_UNIONS) for protocol in contract.protocols
    )
    names = list(
        dict.fromkeys(
            [
                *foreground(contract).values(),
                *regions,
                *(of.name for found in known for of in found),
            ]
        )
    )
    for name in args.instances:
        if name not in names:
            raise LabelSetError(f"--instances: no leaf '{name}'{did_you_mean(name, names)}")
    if args.instances:
        require_panoptica()
    tolerance = _tolerance(args.tolerance, names) if args.tolerance else {}
    return Wanted(True, not args.no_hd95, regions, tolerance, tuple(args.instances))


def _tolerance(given: str, names: Sequence[str]) -> dict[str, float]:
    """A number for all, or a table of leaves."""
    rows = [{"leaf": "", "tolerance": given}] if not Path(given).is_file() else read_table(given)
    if not {"leaf", "tolerance"} <= set(rows[0]):
        raise LabelSetError(f"{given}: expected the columns 'leaf' and 'tolerance'")
    found = {}
    for row in rows:
        leaf, text = row["leaf"].strip(), row["tolerance"].strip()
        if leaf and leaf not in names:
            raise LabelSetError(f"{given}: no leaf '{leaf}'{did_you_mean(leaf, names)}")
        if leaf in found:
            raise LabelSetError(f"{given}: '{leaf}' is listed more than once")
        try:
            found[leaf] = float(text)
        except ValueError:
            found[leaf] = math.nan
        if not 0 <= found[leaf] < math.inf:
            where = f" of '{leaf}' in {given}" if leaf else ""
            raise LabelSetError(
                f"Expected --tolerance to be mm, 0 or more, or a table, but got '{text}'{where}"
            )
    return found


def _find_dataset_json(given: str | None, reference: Path, prediction: Path) -> Path:
    candidates = [Path(given)] if given else [reference.parent / DATASET, prediction / DATASET]
    for file in candidates:
        if file.is_file():
            return file.absolute()
    raise LabelSetError(f"no dataset.json: looked for {some(candidates)}; name it with -djfile")
