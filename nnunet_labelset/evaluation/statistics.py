"""Descriptions and paired tests of scores that may be missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # loads its rooms when they are used: workers that score a case need no statistics

TEST = "two-sided Wilcoxon signed-rank test"
EFFECT = "matched-pairs rank-biserial correlation"
RESAMPLES, SEED = 10_000, 20_210
EXACT = 1000  # differing pairs, which take a second; the approximation is good long before


@dataclass(frozen=True)
class Description:
    """Values in short; None where there are too few. `low` to `high` is the 95 % confidence
    interval of the mean.
    """

    n: int
    mean: float | None
    sd: float | None
    median: float | None
    low: float | None = None
    high: float | None = None


def describe(values: Iterable[float | None], interval: bool = False) -> Description:
    """n, mean, sample standard deviation and median of the values that are not None; with the
    interval if asked for.
    """
    array = np.array([value for value in values if value is not None], dtype=float)
    n = len(array)
    return Description(
        n,
        float(array.mean()) if n else None,
        float(array.std(ddof=1)) if n > 1 else None,
        float(np.median(array)) if n else None,
        *(mean_interval(array) if interval else (None, None)),
    )


def mean_interval(values: np.ndarray) -> tuple[float | None, float | None]:
    """The 95 % confidence interval of the mean: BCa bootstrap, seeded. None for fewer than three
    values.

    What `scipy.stats.bootstrap` computes, but the resampled means are one product with the numbers
    of times that each value was drawn: a comparison of 117 leaves has 2,000 intervals, which would
    take SciPy ten minutes.
    """
    n = len(values)
    if n < 3:
        return None, None
    mean = float(values.mean())
    away = values - mean
    if np.ptp(values) == 0:
        return mean, mean
    away = away / (scale := float(np.abs(away).max()))
    # (RESAMPLES,); 0 is the mean itself, which few values hit so often that rounding must not
    # decide about its side.
    drawn = np.round(_resamples(n) @ away.astype(np.float32), 5)
    bias = scipy.special.ndtri((np.mean(drawn < 0) + np.mean(drawn <= 0)) / 2)
    skew = (away**3).sum() / (
        6 * (away**2).sum() ** 1.5
    )  # of the jackknife, whose means differ by -away / (n - 1)
    ends = [bias + scipy.special.ndtri(tail) for tail in (0.025, 0.975)]
    low, high = np.quantile(
        drawn, [scipy.special.ndtr(bias + end / (1 - skew * end)) for end in ends]
    )
    return mean + scale * float(low), mean + scale * float(high)


@lru_cache(maxsize=4)
def _resamples(n: int) -> np.ndarray:
    """How often each of n values was drawn, over n: `(RESAMPLES, n)`, the same every time."""
    drawn = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    return drawn.astype(np.float32) / np.float32(n)


@dataclass(frozen=True)
class Difference:
    """Two methods on the same cases, `b - a`, with the `TEST` of it; None where it cannot be done.

    `low` to `high` is the 95 % confidence interval of the mean difference. `effect` is the
    `EFFECT`: the rank sum of the cases in which `b` is larger, minus that of the cases in which `a`
    is, over the sum of both.
    """

    n_pairs: int
    n_zero: int
    mean_difference: float | None
    low: float | None
    high: float | None
    median_difference: float | None
    statistic: float | None
    p: float | None
    effect: float | None


def wilcoxon_test(a: Sequence[float | None], b: Sequence[float | None]) -> Difference:
    """Compare two methods on the same cases; pairs in which one score is missing are left out.

    Zero differences are dropped and ties share their mean rank, as in SciPy's `wilcoxon`, but the
    p-value is exact for up to `EXACT` differing pairs, whatever the ties.
    """
    pairs = np.array(
        [pair for pair in zip(a, b, strict=True) if None not in pair], dtype=float
    ).reshape(-1, 2)
    # 1.6 - 0.8 and 2.4 - 1.6 are equal, but not in floating point: ties are found only after
    # rounding.
    difference = np.round(pairs[:, 1] - pairs[:, 0], 9)
    used = difference[difference != 0]
    zero = len(difference) - len(used)
    low, high = mean_interval(difference)
    if not len(used):
        middle = 0.0 if zero else None
        return Difference(len(pairs), zero, middle, low, high, middle, None, None, None)
    ranks = scipy.stats.rankdata(np.abs(used))
    statistic, p = (
        _exact_test(ranks, used > 0) if len(used) <= EXACT else scipy.stats.wilcoxon(used)
    )
    return Difference(
        len(pairs),
        zero,
        float(difference.mean()),
        low,
        high,
        float(np.median(difference)),
        float(statistic),
        float(p),
        float((ranks * np.sign(used)).sum() / ranks.sum()),
    )


def _exact_test(ranks: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Statistic and p-value over all 2**n signs of the ranks, ties or not."""
    doubled = np.rint(2 * ranks).astype(int)  # mean ranks end with .5
    share = np.zeros(doubled.sum() + 1)  # of the sign patterns, by twice their positive rank sum
    share[0] = 1
    top = 0
    for rank in doubled:
        top += rank
        share[rank : top + 1] += share[: top + 1 - rank].copy()
        share[: top + 1] /= 2
    found = doubled[positive].sum()
    tail = min(share[: found + 1].sum(), share[found:].sum())
    return min(found, doubled.sum() - found) / 2, min(1.0, 2 * tail)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction over one family of tests; tests that were not done (None) do not
    count.
    """
    done = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for left, (p, index) in zip(range(len(done), 0, -1), done, strict=True):
        adjusted[index] = largest = max(largest, min(1.0, left * p))
    return adjusted


def mean_ranks(
    scores: Sequence[Sequence[Sequence[float]]], higher_is_better: bool
) -> list[tuple[int, float, float]]:
    """Number of cases, mean rank (1 is best) and share of bootstrap samples of the cases in which
    it is the smallest.

    `scores[case][leaf][method]`: methods are ranked within every leaf of a case, and the ranks are
    averaged over the leaves, because those of one case are not independent. Methods that are first
    together share the sample.
    """
    if not scores:
        return []
    sign = -1 if higher_is_better else 1
    ranks = np.array(
        [
            scipy.stats.rankdata(sign * np.round(of_case, 9), axis=1).mean(axis=0)
            for of_case in scores
        ]
    )  # (cases, M)
    n = len(ranks)
    drawn = _resamples(n) @ ranks  # (RESAMPLES, M)
    first = np.isclose(drawn, drawn.min(axis=1, keepdims=True), rtol=0, atol=1e-6)
    shares = (first / first.sum(axis=1, keepdims=True)).mean(axis=0)
    return [
        (n, float(mean), float(share))
        for mean, share in zip(ranks.mean(axis=0), shares, strict=True)
    ]


def critical_difference(methods: int, cases: int, alpha: float) -> float:
    """Mean ranks that differ by less are not significantly different (Nemenyi)."""
    quantile = float(scipy.stats.studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * cases))
