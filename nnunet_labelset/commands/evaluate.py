"""`nnunet_labelset evaluate`: scores of predictions against partially annotated references."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nnunet_labelset.commands.options import OldSpelling, add_processes, add_table, check_table
from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.contract.completed import refuse_completed
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.evaluation.averages import evaluation
from nnunet_labelset.evaluation.instances import require_panoptica
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.read_results import read_contract
from nnunet_labelset.evaluation.results import (
    Case,
    Evaluation,
    ScoringOptions,
    Settings,
    foreground,
    read_regions,
    structure_names,
)
from nnunet_labelset.evaluation.score_folder import (
    SCORE_COLUMNS,
    agreement_csv,
    averages_csv,
    failures,
    failures_csv,
    failures_line,
    locked_output,
    per_case_csv,
    score_folder,
    screen_notes,
    screen_table,
    union_members,
)
from nnunet_labelset.evaluation.scores import Pairs, find_pairs
from nnunet_labelset.io.files import read_json, write_json, write_text
from nnunet_labelset.io.records import to_json
from nnunet_labelset.io.tables import column_of_cases, read_table
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import DATASET, SUMMARY
from nnunet_labelset.nnunet.raw import file_ending
from nnunet_labelset.nnunet.summary import nnunet_summary


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("gt_folder", help="folder with the references")
    add("pred_folder", help="folder with the predictions")
    add(
        "-djfile",
        metavar="FILE",
        help="dataset.json (default: beside gt_folder, else in pred_folder)",
    )
    add(
        "--annotated",
        metavar="CSV",
        help="table of what is annotated in each reference, as for annotate --annotated, or with "
        "columns case,protocol",
    )
    add("-o", metavar="FOLDER", help="output (default: pred_folder/evaluation)")
    add_processes(parser)
    add(
        "--chill",
        action="store_true",
        help="continue if predictions are missing or have no reference",
    )
    add(
        "--cap",
        type=float,
        metavar="MM",
        help="largest possible distance, also assigned to missed and invented labels (default: the "
        "diagonal of the image; paper: 57.6)",
    )
    add("--no-surfaces", action="store_true", help="skip the surface metrics (NSD and distances)")
    add("--no_hd95", dest="no_surfaces", action=OldSpelling, new="--no-surfaces")
    add(
        "--tolerance",
        metavar="MM|CSV",
        help="tolerance of NSD: mm, or a table with columns label and tolerance (default: the "
        "larger of 1 mm and the smallest voxel size)",
    )
    add(
        "--regions",
        nargs="+",
        default=[],
        metavar="NAME=LABEL+LABEL",
        help="also score the union of these labels",
    )
    add(
        "--instances",
        nargs="+",
        default=[],
        metavar="LABEL",
        help="also score these labels lesion by lesion (needs panoptica)",
    )
    add_table(parser, several=True)
    add(
        "--subject",
        metavar="COLUMN",
        help="column of --table with the patient, if patients have several cases",
    )
    add(
        "--failures-below",
        type=float,
        default=50.0,
        metavar="PERCENT",
        help="list labels with a Dice below this in failures.csv (default: %(default)g)",
    )


@dataclass(frozen=True)
class _Task:
    """The data set, what is scored in it, and where the results go."""

    reference: Path
    prediction: Path
    dataset_file: Path
    dataset_json: dict[str, Any]
    contract: Contract
    options: ScoringOptions
    output: Path

    @property
    def file_ending(self) -> str:
        return file_ending(self.dataset_json)


def run(args: argparse.Namespace) -> None:
    _check_arguments(args)
    task = _task(args)
    found = _pairs(args, task)
    names = [pair.case for pair in found.pairs]
    groups = {column: column_of_cases(args.table, column, names) for column in args.group_by}
    subjects = _subjects(args, names)
    with locked_output(task.output):
        cases = score_folder(found.pairs, task.output / "cases", args.np)
        result = _evaluation(args, task, found, cases, groups, subjects)
        _write(task, result, args.failures_below / 100)
    _print(result, args)
    print(f"{len(cases)} case(s); written to {task.output}")


def _check_arguments(args: argparse.Namespace) -> None:
    if args.cap is not None and not 0 < args.cap < math.inf:
        raise LabelSetError(f"Expected --cap to be a distance above 0 mm, but got {args.cap}")
    if not 0 <= args.failures_below <= 100:
        raise LabelSetError(
            f"Expected --failures-below to be 0 to 100 percent, but got {args.failures_below}"
        )
    check_table(args)
    if taken := set(args.group_by) & {"protocol", *SCORE_COLUMNS}:
        raise LabelSetError(
            f"--group-by {some(sorted(taken))}: a column of the results has this name: rename yours"
        )


def _task(args: argparse.Namespace) -> _Task:
    reference = Path(args.gt_folder).absolute()
    prediction = Path(args.pred_folder).absolute()
    dataset_file = _find_dataset_json(args.djfile, reference, prediction)
    dataset_json = read_json(dataset_file)
    if BLOCK not in dataset_json and not args.annotated:
        raise LabelSetError(
            f"{dataset_file} has no '{BLOCK}', so nothing says what is annotated in which case: "
            "add it, or give --annotated FILE.csv with the columns case and annotated"
        )
    contract = read_contract(dataset_file, args.annotated)
    return _Task(
        reference=reference,
        prediction=prediction,
        dataset_file=dataset_file,
        dataset_json=dataset_json,
        contract=contract,
        options=_scoring_options(args, contract),
        output=Path(args.o) if args.o else prediction / "evaluation",
    )


def _pairs(args: argparse.Namespace, task: _Task) -> Pairs:
    """Return what is scored, and tell what is left out."""
    found = find_pairs(
        task.reference, task.prediction, task.contract, task.file_ending, args.chill, task.options
    )
    for names, why in ((found.missing, "without prediction"), (found.extra, "without reference")):
        if names:
            print(f"left out, {why}: {some(names)}")
    refuse_completed(task.dataset_json, [pair.case for pair in found.pairs])
    return found


def _subjects(args: argparse.Namespace, cases: Sequence[str]) -> dict[str, str]:
    """Return the patient of every case; a case without one is an error."""
    if not args.subject:
        return {}
    subjects = column_of_cases(args.table, args.subject, cases)
    if unlisted := [case for case in cases if case not in subjects]:
        raise LabelSetError(
            f"{args.table}: no '{args.subject}' of {some(unlisted)}: every case needs its patient"
        )
    return subjects


def _evaluation(
    args: argparse.Namespace,
    task: _Task,
    found: Pairs,
    cases: Sequence[Case],
    groups: dict[str, dict[str, str]],
    subjects: dict[str, str],
) -> Evaluation:
    options = task.options
    metrics = [
        name
        for name, metric in METRICS.items()
        if (options.surfaces or not metric.needs_surface)
        and (options.instances or not metric.of_instances)
    ]
    settings = Settings(
        reference_folder=str(task.reference),
        prediction_folder=str(task.prediction),
        dataset_json=str(task.dataset_file),
        annotated=str(args.annotated) if args.annotated else None,
        file_ending=task.file_ending,
        metrics=tuple(metrics),
        cap=options.cap if options.surfaces else None,
        tolerance=options.tolerance,
        tolerances=dict(options.tolerances),
    )
    leaves = tuple(foreground(task.contract).values())
    return evaluation(
        cases,
        labels={name: value for value, name in enumerate(task.contract.leaf_names) if value},
        leaves=leaves,
        unions=union_members(found.pairs, leaves),
        groups=groups,
        settings=settings,
        missing=found.missing,
        extra=found.extra,
        subjects=subjects,
    )


def _write(task: _Task, result: Evaluation, threshold: float) -> None:
    output = task.output
    write_text(output / "per_case.csv", per_case_csv(result))
    write_text(output / "averages.csv", averages_csv(result))
    write_text(output / "agreement.csv", agreement_csv(result))
    write_text(output / "failures.csv", failures_csv(failures(result, threshold)))
    write_json(output / SUMMARY, to_json(nnunet_summary(result.cases, foreground(task.contract))))
    write_json(output / "metrics.json", to_json(result))


def _print(result: Evaluation, args: argparse.Namespace) -> None:
    for column in args.group_by:
        for group, averages in result.averages.groups[column].items():
            print(f"{column}: {group or '(not known)'}, {averages.n_cases} case(s)")
            print(f"{screen_table(averages, result.unit, result.leaves)}\n")
    print(screen_table(result.averages.overall, result.unit, result.leaves))
    for line in screen_notes(result.cases):
        print(line)
    threshold = args.failures_below / 100
    print(failures_line(failures(result, threshold), threshold))


def _scoring_options(args: argparse.Namespace, contract: Contract) -> ScoringOptions:
    options = ScoringOptions(
        surfaces=not args.no_surfaces,
        regions=read_regions(args.regions, contract),
        instances=tuple(args.instances),
        cap=args.cap,
    )
    names = structure_names(contract, options)
    for name in args.instances:
        if name not in names:
            raise LabelSetError(f"--instances: no label '{name}'{did_you_mean(name, names)}")
    if args.instances:
        require_panoptica()
    if not args.tolerance:
        return options
    if not Path(args.tolerance).is_file():
        return replace(options, tolerance=_millimetres(args.tolerance, ""))
    return replace(options, tolerances=_tolerances(args.tolerance, names))


def _tolerances(table: str, names: Sequence[str]) -> dict[str, float]:
    """Return the tolerances of a table by label."""
    rows = read_table(table)
    column = "leaf" if "leaf" in rows[0] else "label"  # "leaf": its name in version 0.2
    if not {column, "tolerance"} <= set(rows[0]):
        raise LabelSetError(f"{table}: expected the columns 'label' and 'tolerance'")
    tolerances: dict[str, float] = {}
    for row in rows:
        label = row[column]
        if label not in names:
            raise LabelSetError(f"{table}: no label '{label}'{did_you_mean(label, names)}")
        if label in tolerances:
            raise LabelSetError(f"{table}: '{label}' is listed more than once")
        tolerances[label] = _millimetres(row["tolerance"], f" of '{label}' in {table}")
    return tolerances


def _millimetres(text: str, where: str) -> float:
    try:
        tolerance = float(text)
    except ValueError:
        tolerance = math.nan
    if not 0 <= tolerance < math.inf:
        raise LabelSetError(
            f"Expected --tolerance to be mm, 0 or more, or a table, but got '{text}'{where}"
        )
    return tolerance


def _find_dataset_json(given: str | None, reference: Path, prediction: Path) -> Path:
    candidates = [Path(given)] if given else [reference.parent / DATASET, prediction / DATASET]
    for file in candidates:
        try:
            if file.is_file():
                return file.absolute()
        except OSError:
            continue
    raise LabelSetError(f"no dataset.json: looked for {some(candidates)}; name it with -djfile")
