"""Means, and 95 % intervals of the paired differences between methods."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import scipy.stats

from benchmarks.accuracy.methods import METHODS, REFERENCE
from benchmarks.accuracy.results import Results


def interval(difference: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of `(seeds, cases)`, for other seeds and other cases.

    Two-way analysis of variance with both random, degrees of freedom after Hillis: with three seeds
    the interval is wide, and holds. (A bootstrap over three seeds would cover 80 %.) With one seed
    it is that of the cases alone.
    """
    seeds, cases = difference.shape
    mean = difference.mean()
    by_seed, by_case = difference.mean(1) - mean, difference.mean(0) - mean
    if seeds == 1:
        half = scipy.stats.t.ppf(0.975, cases - 1) * by_case.std(ddof=1) / np.sqrt(cases)
        return float(mean - half), float(mean + half)
    residual = difference - mean - by_seed[:, None] - by_case
    of_seeds = cases * (by_seed**2).sum() / (seeds - 1)
    of_cases = seeds * (by_case**2).sum() / (cases - 1)
    variance = of_seeds + max(0.0, of_cases - (residual**2).sum() / ((seeds - 1) * (cases - 1)))
    freedom = (seeds - 1) * (variance / of_seeds) ** 2 if of_seeds else np.inf
    half = scipy.stats.t.ppf(0.975, freedom) * np.sqrt(variance / (seeds * cases))
    return float(mean - half), float(mean + half)


def difference(first: np.ndarray, second: np.ndarray) -> str:
    """Return the mean of `first - second`, scores `(seeds, cases)`, and its 95 % interval."""
    seeds = min(len(first), len(second))
    paired = first[:seeds] - second[:seeds]
    low, high = interval(paired[:, ~np.isnan(paired).any(0)])
    return f"{np.nanmean(paired):+.1f} [{low:+.1f}, {high:+.1f}]"


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def head(*cells: object) -> list[str]:
    return [row(*cells), "|---|" + "---:|" * (len(cells) - 1)]


def table(results: Results) -> str:
    """Return the table of a study, best method first, compared with the recommended trainer."""
    groups = sorted(set(results.groups.values()))
    names = groups if len(groups) > 1 else []
    columns = (
        "networks",
        "by seed",
        "mean",
        *names,
        *(label.replace("_", " ") for label in results.labels),
        "false islands",
        *(["voxels of another label"] if results.counts_confusion else []),
        "difference",
    )
    lines = head("method", *columns)
    means = {name: np.nanmean(results.scores(name, "dice"), 2) for name in results.runs}
    for name in sorted(means, key=lambda name: -np.nanmean(means[name])):
        lines.append(row(*_cells(results, name, names, means)))
    return "\n".join(lines) + "\n"


def _cells(
    results: Results, name: str, groups: list[str], means: dict[str, np.ndarray]
) -> list[str]:
    """Cells of a method; means `(seeds, cases)` of all methods."""
    runs = results.runs[name]
    member = np.array(list(results.groups.values()))
    by_label = np.nanmean(results.scores(name, "dice"), (0, 1))
    counts = [results.scores(name, "islands").sum(2).mean()]
    if results.counts_confusion:
        counts.append(results.scores(name, "confused").sum(2).mean())
    numbers = [np.nanmean(means[name][:, member == group]) for group in groups]
    seeds = [f"{np.nanmean(values):.1f}" for values in means[name]]
    return [
        METHODS[name].title,
        str(max(run["networks"] for run in runs.values())),
        ", ".join(seeds),
        f"**{np.nanmean(means[name]):.1f}**",
        *(f"{number:.1f}" for number in (*numbers, *by_label, *counts)),
        _compared(results, name, means),
    ]


def _compared(results: Results, name: str, means: dict[str, np.ndarray]) -> str:
    """The difference to the recommended trainer over the seeds that both have."""
    if name == REFERENCE or REFERENCE not in means:
        return ""
    seeds = sorted(results.runs[name])
    others = sorted(results.runs[REFERENCE])
    common = [seed for seed in seeds if seed in others]
    if not common:
        return ""
    mine = means[name][[seeds.index(seed) for seed in common]]
    reference = means[REFERENCE][[others.index(seed) for seed in common]]
    return difference(mine, reference)


def dead_labels(results: Results, threshold: float = 1.0) -> list[str]:
    """Name the labels whose mean Dice over the test cases is below the threshold in %."""
    lines = []
    for name in results.runs:
        by_seed = np.nanmean(results.scores(name, "dice"), 1)  # (seeds, labels)
        for seed, values in zip(sorted(results.runs[name]), by_seed, strict=True):
            dead = [results.labels[i] for i in np.flatnonzero(values < threshold)]
            if dead:
                lines.append(f"{METHODS[name].title}, seed {seed}: {', '.join(dead)}")
    return lines


def plateau(results: Results) -> str:
    """Say what the last fifth of the steps brought, for every method that has a curve."""
    lines = []
    for name, runs in results.runs.items():
        gains = []
        for run in runs.values():
            points = {point["steps"]: point["dice"] for point in run["curve"]}
            if round(0.8 * results.steps) in points:
                gains.append(points[results.steps] - points[round(0.8 * results.steps)])
        if gains:
            lines.append(f"{METHODS[name].title}: {np.mean(gains):+.1f}")
    return "; ".join(lines)


def filled(page: str, folder: Path) -> str:
    """Return the page with a new table between each pair of marks, made from the file that the
    first mark names: `<!-- table: hippocampus_2d_sgd_3000 -->`.
    """

    def new_table(match: re.Match[str]) -> str:
        results = Results.read(folder / f"{match['name']}.jsonl")
        return f"{match['mark']}\n{table(results)}<!-- end -->"

    pattern = r"(?P<mark><!-- table: (?P<name>\w+) -->)\n.*?<!-- end -->"
    return re.sub(pattern, new_table, page, flags=re.DOTALL)
