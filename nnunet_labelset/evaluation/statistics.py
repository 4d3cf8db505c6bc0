"""Descriptions and paired tests of scores that may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata, wilcoxon

FEW = 13  # up to here SciPy's p-value is exact even with ties


def describe(values: Iterable[float | None]) -> dict[str, Any]:
    """n, mean, sample standard deviation and median of the values that are not None."""
    array = np.array([value for value in values if value is not None], dtype=float)
    return {
        "n": len(array),
        "mean": float(array.mean()) if len(array) else None,
        "sd": float(array.std(ddof=1)) if len(array) > 1 else None,
        "median": float(np.median(array)) if len(array) else None,
    }


class PairedTest(NamedTuple):
    """Two-sided Wilcoxon signed-rank test of `b - a`; None where it cannot be done."""

    n_pairs: int
    n_zero: int
    mean_difference: float | None
    median_difference: float | None
    statistic: float | None
    p: float | None
    effect: float | None


def paired_test(a: Sequence[float | None], b: Sequence[float | None]) -> PairedTest:
    """Compare two methods on the same cases; pairs in which one score is missing are left out.

    What SciPy's `wilcoxon` does by default: zero differences are dropped, ties share their mean rank, and few cases get
    an exact p-value. `effect` is the matched-pairs rank-biserial correlation: the rank sum of the cases in which `b` is
    larger, minus that of the cases in which `a` is, over the sum of both.
    """
    pairs = np.array([pair for pair in zip(a, b, strict=True) if None not in pair], dtype=float).reshape(-1, 2)
    # 1.6 - 0.8 and 2.4 - 1.6 are equal, but not in floating point: ties are found only after rounding.
    difference = np.round(pairs[:, 1] - pairs[:, 0], 9)
    used = difference[difference != 0]
    zero = len(difference) - len(used)
    if not len(used):
        middle = 0.0 if zero else None
        return PairedTest(len(pairs), zero, middle, middle, None, None, None)
    ranks = rankdata(np.abs(used))
    if len(difference) <= FEW:
        statistic, p = _exact_test(ranks, used > 0)
    else:
        statistic, p = wilcoxon(difference)
    return PairedTest(
        len(pairs),
        zero,
        float(difference.mean()),
        float(np.median(difference)),
        float(statistic),
        float(p),
        float((ranks * np.sign(used)).sum() / ranks.sum()),
    )


def _exact_test(ranks: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Statistic and p-value over all 2**n signs of the ranks, ties or not.

    SciPy does the same for so few cases when there are ties, but calls the statistic for every pattern of signs, which
    takes a second for each leaf and pair of methods.
    """
    doubled = np.rint(2 * ranks).astype(int)  # mean ranks end with .5
    patterns = np.zeros(doubled.sum() + 1)  # number of sign patterns by twice their positive rank sum
    patterns[0] = 1
    for rank in doubled:
        patterns[rank:] += patterns[:-rank].copy()
    found = doubled[positive].sum()
    tail = min(patterns[: found + 1].sum(), patterns[found:].sum()) / patterns.sum()
    return min(found, doubled.sum() - found) / 2, min(1.0, 2 * tail)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction over one family of tests; tests that were not done (None) do not count."""
    done = [index for index, p in enumerate(p_values) if p is not None]
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for step, index in enumerate(sorted(done, key=lambda i: (p_values[i], i))):
        largest = max(largest, min(1.0, (len(done) - step) * float(p_values[index] or 0.0)))
        adjusted[index] = largest
    return adjusted
