"""nnU-Net's summary.json, counted with label-sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnunet_labelset.contract import Contract
from nnunet_labelset.evaluation.results import COUNTS_ONLY, Case, Outcome, Score, foreground
from nnunet_labelset.evaluation.scores import find_pairs, score_pair
from nnunet_labelset.io.parallel import map_parallel

# nnU-Net's name of a metric -> ours
NNUNET_METRICS = {
    name: name.lower() for name in ("Dice", "IoU", "FP", "TP", "FN", "TN", "n_pred", "n_ref")
}


def label_set_summary(
    folder_ref: str | Path,
    folder_pred: str | Path,
    contract: Contract,
    file_ending: str,
    num_processes: int,
    reader: Any = None,
) -> dict[str, Any]:
    """What nnU-Net's `compute_metrics_on_folder` returns, for `save_summary_json`, but
    label-set-aware.

    A leaf that is not annotated in a case has NaN there. Means leave NaN out, and the foreground
    mean leaves out leaves without any score. `reader` is nnU-Net's for this data set. Cases without
    prediction are left out, as in nnU-Net.
    """
    pairs = find_pairs(folder_ref, folder_pred, contract, file_ending, True, COUNTS_ONLY).pairs
    scores = map_parallel(partial(score_pair, reader=reader), pairs, num_processes, "Evaluating")
    cases = sorted((case for _, case in scores), key=lambda case: case.case)
    return nnunet_summary(cases, foreground(contract))


def nnunet_summary(cases: Sequence[Case], labels: Mapping[Any, str]) -> dict[str, Any]:
    """nnU-Net's summary of scored cases, and what it does not know.

    `labels` are nnU-Net's keys by name. `annotated_cases` is the number of cases in which each leaf
    was annotated, `unions` the mean Dice of label-sets of several leaves, `known_wrong` the mean
    share of voxels predicted outside of their label-set, and `label_set_dice` the mean over leaves
    and unions, which sees what the leaves alone do not.
    """
    per_case = [_case_summary(case, labels) for case in cases]
    mean = {label: _mean_metrics([case["metrics"][label] for case in per_case]) for label in labels}
    unions = _union_dice(cases, set(labels.values()))
    label_dice = [metrics["Dice"] for metrics in mean.values()]
    return {
        "metric_per_case": per_case,
        "mean": mean,
        "foreground_mean": _mean_metrics(list(mean.values())),
        "annotated_cases": {str(key): _num_annotated(cases, name) for key, name in labels.items()},
        "unions": unions,
        "label_set_dice": nanmean([*label_dice, *unions.values()]),
        "known_wrong": nanmean(_known_wrong_shares(cases)),
    }


def _case_summary(case: Case, labels: Mapping[Any, str]) -> dict[str, Any]:
    return {
        "reference_file": case.reference_file,
        "prediction_file": case.prediction_file,
        "metrics": {label: _metrics(case.leaves[name]) for label, name in labels.items()},
    }


def _mean_metrics(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: nanmean(values[name] for values in metrics) for name in NNUNET_METRICS}


def _known_wrong_shares(cases: Sequence[Case]) -> list[float]:
    shares = [case.known_wrong_share for case in cases]
    return [share for share in shares if share is not None]


def _union_dice(cases: Sequence[Case], leaves: Collection[str]) -> dict[str, float]:
    """Return the mean Dice of every structure that is not one of the leaves."""
    dice: dict[str, list[float]] = {}
    for case in cases:
        for name in set(case.leaves) - set(leaves):
            dice.setdefault(name, []).append(_metrics(case.leaves[name])["Dice"])
    return {name: nanmean(dice[name]) for name in sorted(dice)}


def _num_annotated(cases: Sequence[Case], leaf: str) -> int:
    return sum(case.leaves[leaf].outcome is not Outcome.NOT_ANNOTATED for case in cases)


def _metrics(score: Score) -> dict[str, float]:
    if score.outcome is Outcome.NOT_ANNOTATED:
        return dict.fromkeys(NNUNET_METRICS, float("nan"))
    found = {**vars(score), **score.values}
    return {
        name: float("nan") if found[ours] is None else found[ours]
        for name, ours in NNUNET_METRICS.items()
    }


def nanmean(values: Iterable[float]) -> float:
    """The mean of what is not NaN; NaN, without a warning, if nothing is left."""
    array = np.array(list(values), dtype=float)
    array = array[~np.isnan(array)]
    return float(array.mean()) if len(array) else float("nan")
