"""nnU-Net's summary.json, counted with label-sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnunet_labelset.contract import Contract
from nnunet_labelset.evaluation.pairs import find_pairs
from nnunet_labelset.evaluation.results import UNANNOTATED, Case, Score
from nnunet_labelset.evaluation.scores import score_pair
from nnunet_labelset.io.parallel import map_parallel

# nnU-Net's name of a metric -> ours
METRICS = {
    "Dice": "dice",
    "IoU": "iou",
    "FP": "fp",
    "TP": "tp",
    "FN": "fn",
    "TN": "tn",
    "n_pred": "n_pred",
    "n_ref": "n_ref",
}


def label_set_summary(
    folder_ref: str | Path,
    folder_pred: str | Path,
    contract: Contract,
    file_ending: str,
    num_processes: int,
    reader: Any = None,
    chill: bool = True,
) -> dict[str, Any]:
    """What nnU-Net's `compute_metrics_on_folder` returns, for `save_summary_json`, but label-set-aware.

    A leaf that is not annotated in a case has NaN there, unless the reference holds voxels of exactly this leaf. Means
    leave NaN out, and the foreground mean leaves out leaves without any score. `annotated_cases` is the number of cases
    in which each leaf was annotated. `reader` is nnU-Net's for this data set.
    """
    pairs, _, _ = find_pairs(folder_ref, folder_pred, contract, file_ending, chill, surfaces=False, under_leaves=False)
    scores = map_parallel(partial(score_pair, reader=reader), pairs, num_processes, "Evaluating")
    cases = sorted((case for _, case in scores), key=lambda case: case.case)
    return nnunet_summary(cases, contract.leaf_names)


def nnunet_summary(cases: Sequence[Case], leaf_names: Sequence[str]) -> dict[str, Any]:
    """nnU-Net's summary of scored cases."""
    labels = range(1, len(leaf_names))
    per_case: list[dict[str, Any]] = [
        {
            "reference_file": case.reference_file,
            "prediction_file": case.prediction_file,
            "metrics": {label: _metrics(case.leaves[leaf_names[label]]) for label in labels},
        }
        for case in cases
    ]
    mean = {
        label: {name: nanmean(case["metrics"][label][name] for case in per_case) for name in METRICS}
        for label in labels
    }
    return {
        "metric_per_case": per_case,
        "mean": mean,
        "foreground_mean": {name: nanmean(mean[label][name] for label in labels) for name in METRICS},
        "annotated_cases": {
            str(label): sum(case.leaves[leaf_names[label]].outcome != UNANNOTATED for case in cases) for label in labels
        },
    }


def _metrics(score: Score) -> dict[str, float]:
    if score.outcome == UNANNOTATED:
        return dict.fromkeys(METRICS, float("nan"))
    found = {**vars(score), **score.values}
    return {name: float("nan") if found[ours] is None else found[ours] for name, ours in METRICS.items()}


def nanmean(values: Iterable[float]) -> float:
    """The mean of what is not NaN; NaN, without a warning, if nothing is left."""
    array = np.array(list(values), dtype=float)
    array = array[~np.isnan(array)]
    return float(array.mean()) if len(array) else float("nan")
