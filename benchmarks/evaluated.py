"""Scores of runs whose predictions `nnunet_labelset evaluate` has scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nnunet_labelset.io.files import read_json


def collect(folder: Path) -> dict[str, Any]:
    """Return `{steps: {method: {seed: {case: {label: {metric: value}}}}}}` of all finished runs."""
    collected: dict[str, Any] = {}
    for mark in sorted(folder.glob("*/*/run.json")):
        run = read_json(mark)
        path = mark.parent / "evaluation" / "metrics.json"
        if not path.is_file():
            continue
        by_seed = collected.setdefault(str(run["steps"]), {}).setdefault(run["method"], {})
        cases = read_json(path)["cases"]
        by_seed[str(run["seed"])] = {case["case"]: case["leaves"] for case in cases}
    return collected


def scores(runs: dict[str, Any], metric: str, cases: list[str], labels: list[str]) -> np.ndarray:
    """Return scores `(seeds, cases, labels)`; a label that the reference lacks is NaN."""
    rows = [
        [[runs[seed][case][label][metric] for label in labels] for case in cases]
        for seed in sorted(runs)
    ]
    return np.array(rows, float)
