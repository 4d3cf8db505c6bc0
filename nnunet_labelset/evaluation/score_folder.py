"""A folder of predictions: its pairs of files, the scores of one case after the other, and what
evaluate writes. Finished cases survive an interruption.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.metric import KNOWN_WRONG, METRICS, SHOWN, Metric, mm_range
from nnunet_labelset.evaluation.results import (
    VERSION,
    Averages,
    Case,
    Evaluation,
    Outcome,
    Pair,
)
from nnunet_labelset.evaluation.scores import file_states, score_pair
from nnunet_labelset.evaluation.statistics import Description
from nnunet_labelset.io.files import read_json, reason, write_json
from nnunet_labelset.io.lock import locked
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.records import from_json, to_json
from nnunet_labelset.io.tables import csv_text
from nnunet_labelset.io.text import SCREEN_WIDTH, aligned, some

LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.(json|csv)")  # of a writer that was killed


def union_members(pairs: Sequence[Pair], leaves: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return all that is scored in any pair beside the labels, by name, in the order of labels."""
    structures = frozenset().union(*(pair.structures for pair in pairs))
    members = {each.name: sorted(each.members) for each in structures if each.name not in leaves}
    names = pairs[0].label_names
    ordered = sorted(members, key=lambda name: (members[name], name))
    return {name: tuple(names[leaf] for leaf in members[name]) for name in ordered}


@contextmanager
def locked_output(folder: Path) -> Iterator[None]:
    """Hold a folder for one run of evaluate, and remove what a killed one left behind."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except OSError as error:
            raise LabelSetError(f"{folder}: cannot be written: {reason(error)}") from None
        for inner in (folder, folder / "cases"):
            _remove_leftovers(inner)
        yield


def _remove_leftovers(folder: Path) -> None:
    with suppress(OSError):
        for path in folder.iterdir():
            if LEFTOVER.fullmatch(path.name):
                path.unlink()


def score_folder(pairs: Sequence[Pair], cache: Path, processes: int) -> list[Case]:
    """Return the scores of all pairs, sorted by case; each is kept in `cache` once it is ready."""
    keys = {pair.case: _cache_key(pair) for pair in pairs}
    cached = {pair.case: _from_cache(cache, pair, keys[pair.case]) for pair in pairs}
    results = {name: case for name, case in cached.items() if case is not None}
    if results:
        print(f"{len(results)} of {len(pairs)} cases are already scored in {cache}")
    todo = [pair for pair in pairs if pair.case not in results]
    problems = []
    for pair, result in map_parallel(_score_or_problem, todo, processes, "Evaluating"):
        if isinstance(result, str):
            problems.append(result)
            continue
        results[pair.case] = result
        write_json(cache / f"{pair.case}.json", {"key": keys[pair.case], "result": to_json(result)})
    if problems:
        raise LabelSetError(
            f"{len(problems)} of {len(pairs)} cases cannot be scored: "
            f"{some(sorted(problems), 10, '; ')}"
        )
    return [results[case] for case in sorted(results)]


def _score_or_problem(pair: Pair) -> Case | str:
    """Score a pair; what is wrong with one case shall not hide what is wrong with the others."""
    try:
        return score_pair(pair)
    except LabelSetError as error:
        return str(error)
    except (OSError, MemoryError) as error:
        return f"{pair.case}: {type(error).__name__}: {error}"


def _cache_key(pair: Pair) -> dict[str, Any]:
    """Return what a result depends on: the files by size and time, the meaning of their values, and
    the metrics.
    """
    try:
        files = file_states(pair.reference_file, pair.prediction_file)
    except OSError as error:
        where = error.filename or pair.prediction_file
        raise LabelSetError(f"{where}: not readable: {reason(error)}") from None
    return to_json({"pair": pair, "version": VERSION, "files": files, "metrics": list(METRICS)})


def _from_cache(cache: Path, pair: Pair, key: Mapping[str, Any]) -> Case | None:
    """Return a cached case; None if there is none, or if it is not complete or out of date."""
    file = cache / f"{pair.case}.json"
    try:
        content = read_json(file)
        if content.get("key") != key:
            return None
        case = from_json(Case, content.get("result"), str(file))
    except LabelSetError:
        return None
    complete = all(
        structure.name in case.leaves
        and METRICS.keys() <= case.leaves[structure.name].values.keys()
        for structure in pair.structures
    )
    return case if complete else None


COUNTS = ("tp", "fp", "fn", "tn", "n_ref", "n_pred")
BOUNDS = ("dice_low", "dice_high")
# the same in every line of a case
OF_CASE = (
    "worst_distance",
    "known",
    "known_wrong",
    "known_wrong_volume",
    "known_wrong_share",
)
SCORE_COLUMNS = (
    "case",
    "label",
    "outcome",
    *METRICS,
    "tolerance",
    *BOUNDS,
    *COUNTS,
    *OF_CASE,
)
DESCRIPTION = tuple(field.name for field in fields(Description))
AGREEMENT = ("bias", "agreement_low", "agreement_high", "ccc")


def per_case_csv(evaluation: Evaluation) -> str:
    columns = [SCORE_COLUMNS[0], *evaluation.group_columns, *SCORE_COLUMNS[1:]]
    rows = []
    for case in evaluation.cases:
        case_fields = {**vars(case), "known_wrong_share": case.known_wrong_share}
        groups = evaluation.groups_of(case.case)
        for label, score in case.leaves.items():
            score_fields = {**vars(score), "label": label, "outcome": score.outcome.value}
            row = {**case_fields, **score_fields, **score.values, **groups}
            rows.append([row[name] for name in columns])
    return csv_text(columns, rows)


def averages_csv(evaluation: Evaluation) -> str:
    """Return one row per group, label and metric; the label `mean` is the mean over labels."""
    columns = ["group_column", "group", "label", "metric", *DESCRIPTION]
    columns += [outcome.value for outcome in Outcome]
    rows: list[list[Any]] = []
    for column, name, averages in _all_averages(evaluation):
        group = [column, name]
        empty = [None] * len(Outcome)
        for label, label_averages in averages.leaves.items():
            outcomes = label_averages.outcomes.values()
            for metric, description in label_averages.metrics.items():
                rows.append([*group, label, metric, *vars(description).values(), *outcomes])
        for metric, description in averages.mean.items():
            rows.append([*group, "mean over labels", metric, *vars(description).values(), *empty])
        wrong = vars(averages.known_wrong).values()
        rows.append([*group, "", KNOWN_WRONG.name, *wrong, *empty])
    return csv_text(columns, rows)


def agreement_csv(evaluation: Evaluation) -> str:
    """Return bias, limits of agreement and concordance of the volumes, by group and label."""
    rows: list[list[Any]] = []
    for column, name, averages in _all_averages(evaluation):
        for label, label_averages in averages.leaves.items():
            volumes = label_averages.agreement
            if volumes is not None:
                rows.append([column, name, label, *vars(volumes).values()])
    return csv_text(["group_column", "group", "label", "n", *AGREEMENT], rows)


def _all_averages(evaluation: Evaluation) -> Iterator[tuple[str, str, Averages]]:
    yield "", "", evaluation.averages.overall
    for column, groups in evaluation.averages.groups.items():
        for name, averages in groups.items():
            yield column, name, averages


FAILURE = 0.5  # Dice: what is below, unless another threshold is asked for


@dataclass(frozen=True)
class Failure:
    """A score below the threshold."""

    case: str
    label: str
    outcome: Outcome
    dice: float


def failures(evaluation: Evaluation, threshold: float) -> list[Failure]:
    """Return the labels with a Dice below the threshold, the worst first."""
    low_scores = []
    for case in evaluation.cases:
        for label, score in case.leaves.items():
            value = score.values["dice"]
            if value is not None and value < threshold:
                low_scores.append(Failure(case.case, label, score.outcome, value))
    return sorted(low_scores, key=lambda failure: (failure.dice, failure.case, failure.label))


def failures_csv(found: Sequence[Failure]) -> str:
    rows = [[each.case, each.label, each.outcome.value, each.dice] for each in found]
    return csv_text(["case", "label", "outcome", "dice"], rows)


def failures_line(found: Sequence[Failure], threshold: float) -> str:
    """Return one line for the screen."""
    if not found:
        return f"no Dice below {100 * threshold:g} %"
    worst = [f"{each.case} {each.label} ({100 * each.dice:.1f}, {each.outcome})" for each in found]
    return f"Dice below {100 * threshold:g} %: {len(found)}, the worst first: {some(worst)}"


def screen_table(averages: Averages, unit: str, labels: Sequence[str]) -> str:
    """Return a line per label, or whatever the `unit` is; the mean stands before what is not part
    of it.
    """
    metrics = [METRICS[name] for name in SHOWN if name in averages.mean]
    head = [unit]
    mean_row = ["mean"]
    for metric in metrics:
        mean = averages.mean[metric.name]
        head += [metric.heading, "n"]
        mean_row += [metric.show_mean(mean), str(mean.n)]
    outcomes = _shown_outcomes(averages)
    head += [outcome.value for outcome in outcomes]
    mean_row += [""] * len(outcomes)
    unions = [name for name in averages.leaves if name not in labels]
    rows = [_screen_row(label, averages, metrics, outcomes) for label in labels]
    union_rows = [_screen_row(union, averages, metrics, outcomes) for union in unions]
    lines = aligned([head, *rows, mean_row, *union_rows], names=1, width=SCREEN_WIDTH)
    wrong = KNOWN_WRONG.show_mean(averages.known_wrong)
    words = "% of the voxels with at least one excluded label"
    return "\n".join([*lines, f"known wrong: {wrong} {words}"])


def _shown_outcomes(averages: Averages) -> list[Outcome]:
    """Return the outcomes that occur, and those that are always of interest."""
    always = (Outcome.SCORED, Outcome.MISSED, Outcome.INVENTED)
    counts = [label_averages.outcomes for label_averages in averages.leaves.values()]
    return [
        outcome
        for outcome in Outcome
        if outcome in always or any(count[outcome.value] for count in counts)
    ]


def _screen_row(
    label: str, averages: Averages, metrics: Sequence[Metric], outcomes: Sequence[Outcome]
) -> list[str]:
    label_averages = averages.leaves[label]
    row = [label]
    for metric in metrics:
        description = label_averages.metrics[metric.name]
        row += [metric.show_mean(description), str(description.n)]
    return [*row, *(str(label_averages.outcomes[outcome.value]) for outcome in outcomes)]


def screen_notes(cases: Sequence[Case]) -> list[str]:
    """Return what the mean is, and what distances depend on."""
    mean = "mean: over the labels of a case, then over the cases; without unions and regions"
    return [mean, *measurement_notes(cases)]


def measurement_notes(cases: Sequence[Case]) -> list[str]:
    """Return the tolerance of NSD and the distance of missed labels, as they were used."""
    tolerances: set[float] = set()
    for case in cases:
        tolerances |= {
            score.tolerance for score in case.leaves.values() if score.tolerance is not None
        }
    worst = [case.worst_distance for case in cases if case.worst_distance is not None]
    lines = []
    if tolerances:
        lines.append(f"tolerance of NSD: {mm_range((min(tolerances), max(tolerances)))}")
    if worst:
        shown = mm_range((min(worst), max(worst)))
        lines.append(f"distance of missed and invented labels: {shown}")
    return lines
