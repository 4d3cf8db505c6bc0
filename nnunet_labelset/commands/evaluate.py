"""`nnunet_labelset evaluate`: scores of predictions against partially annotated references."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.evaluate import evaluation, score_folder, with_worst_distances
from nnunet_labelset.evaluation.files import SCORE_COLUMNS, per_case_csv, screen_table, summary_csv
from nnunet_labelset.evaluation.fresh import read_contract
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.pairs import find_pairs, union_members
from nnunet_labelset.evaluation.results import Settings
from nnunet_labelset.io.files import read_json, write_json, write_text
from nnunet_labelset.io.parallel import default_processes
from nnunet_labelset.io.records import to_json
from nnunet_labelset.io.tables import column_of_cases
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.summary import nnunet_summary


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gt_folder", help="folder with the references")
    parser.add_argument("pred_folder", help="folder with the predictions")
    parser.add_argument("-djfile", metavar="FILE", help="dataset.json (default: beside gt_folder, else in pred_folder)")
    parser.add_argument("--annotated", metavar="CSV", help="what is annotated: columns case and annotated or protocol")
    parser.add_argument("-o", metavar="FOLDER", help="output (default: pred_folder/evaluation)")
    parser.add_argument("-np", type=int, default=default_processes(), help="processes (default: %(default)s)")
    parser.add_argument("--chill", action="store_true", help="go on if predictions are missing or have no reference")
    parser.add_argument(
        "--cap", type=float, metavar="MM", help="largest HD95, also that of missed leaves (paper: 57.6)"
    )
    parser.add_argument("--no_hd95", action="store_true", help="Dice only")
    parser.add_argument("--table", metavar="FILE", help="table of the cases (.tsv or .csv), such as participants.tsv")
    parser.add_argument("--group-by", nargs="+", default=[], metavar="COLUMN", help="also by these columns of --table")


def run(args: argparse.Namespace) -> None:
    if args.cap is not None and not 0 < args.cap < math.inf:
        raise LabelSetError(f"Expected --cap to be a distance above 0 mm, but got {args.cap}")
    if bool(args.table) != bool(args.group_by):
        raise LabelSetError("--table and --group-by belong together: a table of the cases, and columns of it")
    reference, prediction = Path(args.gt_folder).absolute(), Path(args.pred_folder).absolute()
    dataset_file = _find_dataset_json(args.djfile, reference, prediction)
    contract = read_contract(dataset_file, args.annotated)
    ending = read_json(dataset_file).get("file_ending", ".nii.gz")
    pairs, missing, extra = find_pairs(reference, prediction, contract, ending, args.chill, not args.no_hd95)
    for names, what in ((missing, "without prediction"), (extra, "without reference")):
        if names:
            print(f"left out, {what}: {some(names)}")
    cases = [pair.case for pair in pairs]
    if taken := set(args.group_by) & {"protocol", *SCORE_COLUMNS}:
        raise LabelSetError(f"--group-by {some(sorted(taken))}: a column of the results has this name: rename yours")
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
        metrics=tuple(name for name, metric in METRICS.items() if metric.worst is None or not args.no_hd95),
        cap=None if args.no_hd95 else args.cap,
        tolerance={},
    )
    found = evaluation(results, contract.leaf_names, union_members(pairs), groups, settings, missing, extra)
    write_text(output / "per_case.csv", per_case_csv(found))
    write_text(output / "summary.csv", summary_csv(found))
    write_json(output / "summary.json", nnunet_summary(results, contract.leaf_names))
    write_json(output / "metrics.json", to_json(found))
    for column in args.group_by:
        for group, summary in found.summary.groups[column].items():
            print(f"{column}: {group or '(not known)'}, {summary.n_cases} case(s)\n{screen_table(summary)}\n")
    print(screen_table(found.summary.overall))
    print(f"{len(results)} case(s); written to {output}")


def _find_dataset_json(given: str | None, reference: Path, prediction: Path) -> Path:
    candidates = [Path(given)] if given else [reference.parent / "dataset.json", prediction / "dataset.json"]
    for file in candidates:
        if file.is_file():
            return file.absolute()
    raise LabelSetError(f"no dataset.json: looked for {some(candidates)}; name it with -djfile")
