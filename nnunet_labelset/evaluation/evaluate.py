"""`nnunet_labelset evaluate`: scores of predictions against partially annotated references."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.metric import METRICS, SHOWN
from nnunet_labelset.evaluation.results import (
    INVENTED,
    MISSED,
    OUTCOMES,
    VERSION,
    AllAverages,
    Averages,
    Case,
    Evaluation,
    LeafAverages,
    Score,
    Settings,
)
from nnunet_labelset.evaluation.scores import Pair, file_states, score_pair
from nnunet_labelset.evaluation.statistics import describe
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.records import from_json, to_json
from nnunet_labelset.io.text import some


def score_folder(pairs: Sequence[Pair], cache: Path, processes: int) -> list[Case]:
    """The scores of all pairs, sorted by case; each is kept in `cache` as soon as it is ready."""
    keys = {pair.case: _cache_key(pair) for pair in pairs}
    results = {
        pair.case: found for pair in pairs if (found := _from_cache(cache, pair, keys[pair.case]))
    }
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
            f"{len(problems)} of {len(pairs)} cases cannot be scored: {some(sorted(problems), 10, '; ')}"
        )
    return [results[case] for case in sorted(results)]


def _score_or_problem(pair: Pair) -> Case | str:
    """What is wrong with one case shall not hide what is wrong with the others."""
    try:
        return score_pair(pair)
    except LabelSetError as error:
        return str(error)
    except (OSError, MemoryError) as error:
        return f"{pair.case}: {type(error).__name__}: {error}"


def _cache_key(pair: Pair) -> dict[str, Any]:
    """What a result depends on: the files by size and time, the meaning of their values, and the
    metrics.
    """
    files = file_states(pair.reference_file, pair.prediction_file)
    return to_json({"pair": pair, "version": VERSION, "files": files, "metrics": list(METRICS)})


def _from_cache(cache: Path, pair: Pair, key: Mapping[str, Any]) -> Case | None:
    file = cache / f"{pair.case}.json"
    try:
        content = read_json(file)
        return (
            from_json(Case, content.get("result"), str(file)) if content.get("key") == key else None
        )
    except LabelSetError:  # not there, or not whole
        return None


def with_worst_distances(case: Case, cap: float | None) -> Case:
    """Missed and invented leaves get the largest distance, the diagonal of the image or `cap`,
    which limits all.
    """
    worst = cap or math.hypot(*(size * n for size, n in zip(case.spacing, case.shape, strict=True)))

    def limited(score: Score) -> Score:
        values = dict(score.values)
        for name in (name for name, metric in METRICS.items() if metric.is_distance):
            if score.outcome in (MISSED, INVENTED):
                values[name] = worst
            elif (value := values[name]) is not None:
                values[name] = min(value, worst)
        return replace(score, values=values)

    return replace(case, leaves={leaf: limited(score) for leaf, score in case.leaves.items()})


def average(
    cases: Sequence[Case],
    leaves: Sequence[str],
    unions: Iterable[str],
    metrics: Sequence[str],
    intervals: bool = False,
) -> Averages:
    """n, mean, standard deviation and median per leaf, and how often each outcome occurred."""
    found: dict[str, LeafAverages] = {}
    for leaf in (*leaves, *unions):
        scores = [case.leaves[leaf] for case in cases if leaf in case.leaves]
        outcomes = [score.outcome for score in scores]
        found[leaf] = LeafAverages(
            {outcome: outcomes.count(outcome) for outcome in OUTCOMES},
            sum(score.union is not None for score in scores),
            {
                name: describe((of.values[name] for of in scores), intervals and name in SHOWN)
                for name in metrics
            },
        )
    mean = {
        metric: describe(found[leaf].metrics[metric].mean for leaf in leaves).mean
        for metric in metrics
    }
    return Averages(
        len(cases), found, mean, describe((case.known_wrong_share for case in cases), intervals)
    )


def evaluation(
    cases: Sequence[Case],
    labels: Mapping[str, int],
    leaves: Sequence[str],
    unions: Mapping[str, tuple[str, ...]],
    groups: Mapping[str, Mapping[str, str]],
    settings: Settings,
    missing: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> Evaluation:
    """The content of metrics.json (docs/evaluation.md) from the scores of all cases."""
    columns = ("protocol", *groups)
    cases = [
        replace(
            case,
            groups={
                "protocol": case.protocol,
                **{column: of.get(case.case, "") for column, of in groups.items()},
            },
        )
        for case in cases
    ]
    by_group: dict[str, dict[str, Averages]] = {}
    for column in columns:
        members: dict[str, list[Case]] = {}
        for case in cases:
            members.setdefault(case.groups[column], []).append(case)
        by_group[column] = {
            group: average(members[group], leaves, unions, settings.metrics)
            for group in sorted(members)
        }
    return Evaluation(
        VERSION,
        settings,
        dict(labels),
        tuple(leaves),
        dict(unions),
        columns,
        tuple(missing),
        tuple(extra),
        tuple(cases),
        AllAverages(average(cases, leaves, unions, settings.metrics, intervals=True), by_group),
    )
