"""Means, and 95 % intervals of the paired differences between methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from nnunet_labelset.io.files import read_json

REFERENCE = "nnUNetTrainerLabelSet"


def collect(folder: Path) -> dict[str, Any]:
    """`{steps: {method: {seed: {case: {"group", "scores": {metric: {leaf: value}}}}}}}` of all
    finished runs.
    """
    found: dict[str, Any] = {}
    for mark in sorted(folder.glob("*/*/run.json")):
        run = read_json(mark)
        path = mark.parent / "evaluation" / "metrics.json"
        if not path.is_file():
            continue
        by_seed = found.setdefault(str(run["steps"]), {}).setdefault(run["method"], {})
        by_seed[str(run["seed"])] = {
            case["case"]: case["leaves"] for case in read_json(path)["cases"]
        }
    return found


def scores(runs: dict[str, Any], metric: str, cases: list[str], leaves: list[str]) -> np.ndarray:
    """`(seeds, cases, leaves)`; a leaf that the reference lacks is NaN."""
    rows = [
        [[runs[seed][case][leaf][metric] for leaf in leaves] for case in cases]
        for seed in sorted(runs)
    ]
    return np.array(rows, float)


def interval(difference: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of `(seeds, cases)`, for other seeds and other cases.

    Two-way analysis of variance with both random, degrees of freedom after Hillis: with three seeds
    the interval is wide, and holds. (A bootstrap over three seeds would cover 80 %.)
    """
    seeds, cases = difference.shape
    mean = difference.mean()
    by_seed, by_case = difference.mean(1) - mean, difference.mean(0) - mean
    rest = difference - mean - by_seed[:, None] - by_case
    of_seeds = cases * (by_seed**2).sum() / (seeds - 1)
    of_cases = seeds * (by_case**2).sum() / (cases - 1)
    variance = of_seeds + max(0.0, of_cases - (rest**2).sum() / ((seeds - 1) * (cases - 1)))
    freedom = (seeds - 1) * (variance / of_seeds) ** 2 if of_seeds else np.inf
    half = scipy.stats.t.ppf(0.975, freedom) * np.sqrt(variance / (seeds * cases))
    return float(mean - half), float(mean + half)


def difference(first: np.ndarray, second: np.ndarray) -> str:
    """Of scores `(seeds, cases)`: the mean of `first - second`, and its 95 % interval if there are
    several seeds.
    """
    seeds = min(len(first), len(second))
    paired = first[:seeds] - second[:seeds]
    if seeds < 2:
        return f"{np.nanmean(paired):+.1f}"
    low, high = interval(paired[:, ~np.isnan(paired).any(0)])
    return f"{np.nanmean(paired):+.1f} [{low:+.1f}, {high:+.1f}]"


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def head(*cells: object) -> list[str]:
    return [row(*cells), "|---|" + "---:|" * (len(cells) - 1)]


def markdown(
    study: str, results: dict[str, Any], groups: dict[str, str], metrics: dict[str, float]
) -> str:
    """A table for every number of steps and metric; `metrics` has the factor that turns a score
    into what is shown.
    """
    parts = [f"# {study}\n"]
    for steps in sorted(results, key=int):
        for metric, factor in metrics.items():
            parts.append(
                f"## {steps} steps, {metric}\n\n" + _table(results[steps], groups, metric, factor)
            )
    return "\n".join(parts)


def _table(methods: dict[str, Any], groups: dict[str, str], metric: str, factor: float) -> str:
    """Best first; the last column compares with the recommended trainer, over the seeds that both
    have.
    """
    first = next(iter(next(iter(methods.values())).values()))
    cases, leaves = sorted(first), list(next(iter(first.values())))
    names = sorted(set(groups.values()))
    found = {name: factor * scores(runs, metric, cases, leaves) for name, runs in methods.items()}
    means = {name: np.nanmean(values, 2) for name, values in found.items()}  # (seeds, cases)
    ranking = sorted(means, key=lambda name: -np.nanmean(means[name]))
    reference = REFERENCE if REFERENCE in means else ranking[0]
    lines = head("method", "by seed", *names, *leaves, f"minus '{reference}' [95 %]")
    for name in ranking:
        by_group = [
            np.nanmean(means[name][:, [groups[case] == group for case in cases]]) for group in names
        ]
        by_leaf = [np.nanmean(found[name][:, :, i]) for i in range(len(leaves))]
        seeds = dict(zip(sorted(methods[name]), means[name], strict=True))
        others = dict(zip(sorted(methods[reference]), means[reference], strict=True))
        text, common = "", sorted(set(seeds) & set(others))
        if common and name != reference:
            text = difference(
                np.array([seeds[s] for s in common]), np.array([others[s] for s in common])
            )
        by_seed = ", ".join(
            f"{np.nanmean(seeds[seed]):.1f}" if seed in seeds else "-"
            for seed in _all_seeds(methods)
        )
        numbers = [f"{value:.1f}" for value in (*by_group, *by_leaf)]
        lines.append(row(name, by_seed, *numbers, text))
    return "\n".join(lines) + "\n"


def _all_seeds(methods: dict[str, Any]) -> list[str]:
    return sorted({seed for runs in methods.values() for seed in runs})
