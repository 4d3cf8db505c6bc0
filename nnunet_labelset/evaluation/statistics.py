"""Descriptions and paired tests of scores that may be missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # loads submodules on first use: scoring a case needs none

WILCOXON_TEST = "two-sided Wilcoxon signed-rank test"
EFFECT = "matched-pairs rank-biserial correlation"
RESAMPLES, SEED = 10_000, 20_210
FEW_CASES = 20  # below, a bootstrap interval is too narrow
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


def describe(
    values: Iterable[float | None],
    interval: bool = False,
    subjects: Sequence[str] | None = None,
) -> Description:
    """Return n, mean, sample standard deviation and median of the values that are not None, with
    the interval of the mean if asked for. `subjects` tells which values are of the same patient.
    """
    numbered = [(value, place) for place, value in enumerate(values) if value is not None]
    array = np.array([value for value, _ in numbered], dtype=float)
    n = len(array)
    low = high = None
    if interval:
        clusters = [subjects[place] for _, place in numbered] if subjects else None
        low, high = mean_interval(array, clusters)
    return Description(
        n=n,
        mean=float(array.mean()) if n else None,
        sd=float(array.std(ddof=1)) if n > 1 else None,
        median=float(np.median(array)) if n else None,
        low=low,
        high=high,
    )


def mean_interval(
    values: np.ndarray, clusters: Sequence[str] | None = None
) -> tuple[float | None, float | None]:
    """Return the 95 % confidence interval of the mean; None for fewer than three values.

    Fewer than `FEW_CASES` values: Student's t, because a bootstrap interval is then too narrow.
    Otherwise the BCa bootstrap, seeded: what `scipy.stats.bootstrap` computes, but the resampled
    means are one product with the numbers of times that each value was drawn. A comparison of 117
    labels has 2,000 intervals, which would take SciPy ten minutes. With `clusters` (patients),
    whole clusters are drawn, and their number counts.
    """
    sums, sizes = _cluster_sums(values, clusters)
    n = len(sums)
    if n < 3:
        return None, None
    mean = float(values.mean())
    if np.ptp(values) == 0:
        return mean, mean
    away = sums - mean * sizes  # (K,)
    if n < FEW_CASES:
        error = math.sqrt(n / (n - 1) * float((away**2).sum())) / len(values)
        reach = float(scipy.special.stdtrit(n - 1, 0.975)) * error
        return mean - reach, mean + reach
    scale = float(np.abs(away).max()) or 1.0
    drawn = _resamples(n) @ (away / scale).astype(np.float32)  # (RESAMPLES,)
    if clusters is not None:
        drawn = drawn / (_resamples(n) @ sizes.astype(np.float32))
    # 0 is the mean itself, which few values hit so often that rounding must not decide its side.
    drawn = np.round(drawn, 5)
    bias = scipy.special.ndtri((np.mean(drawn < 0) + np.mean(drawn <= 0)) / 2)
    jackknife = away / (len(values) - sizes)
    skew = (jackknife**3).sum() / (6 * (jackknife**2).sum() ** 1.5)
    ends = [bias + scipy.special.ndtri(tail) for tail in (0.025, 0.975)]
    low, high = np.quantile(
        drawn, [scipy.special.ndtr(bias + end / (1 - skew * end)) for end in ends]
    )
    return mean + scale * float(low), mean + scale * float(high)


def _cluster_sums(
    values: np.ndarray, clusters: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the values of every cluster, and how many there are."""
    if clusters is None:
        return values, np.ones(len(values))
    _, index = np.unique(np.array(clusters, dtype=str), return_inverse=True)
    return np.bincount(index, weights=values), np.bincount(index).astype(float)


@lru_cache(maxsize=4)
def _resamples(n: int) -> np.ndarray:
    """How often each of n values was drawn, over n: `(RESAMPLES, n)`, the same every time."""
    drawn = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    return drawn.astype(np.float32) / np.float32(n)


@dataclass(frozen=True)
class Agreement:
    """Predicted against reference volumes: the mean difference, its limits of agreement (1.96
    standard deviations around it) and Lin's concordance correlation coefficient.
    """

    n: int
    bias: float
    low: float | None
    high: float | None
    ccc: float | None


def agreement(reference: Sequence[float], predicted: Sequence[float]) -> Agreement | None:
    """Return how well two measurements agree, None without any."""
    if not len(reference):
        return None
    x, y = np.array(reference, dtype=float), np.array(predicted, dtype=float)
    difference = y - x
    bias = float(difference.mean())
    if len(x) < 2:
        return Agreement(n=len(x), bias=bias, low=None, high=None, ccc=None)
    reach = 1.96 * float(difference.std(ddof=1))
    spread = float(x.var() + y.var() + bias**2)
    shared = 2 * float(((x - x.mean()) * (y - y.mean())).mean())
    return Agreement(
        n=len(x),
        bias=bias,
        low=bias - reach,
        high=bias + reach,
        ccc=shared / spread if spread else None,
    )


@dataclass(frozen=True)
class Difference:
    """Two methods on the same cases, `b - a`, and its `WILCOXON_TEST`; None where it fails.

    `n_pairs` is the number of cases, or of patients that have several. `low` to `high` is the 95 %
    confidence interval of the mean difference. `effect` is the `EFFECT`: the rank sum of the cases
    in which `b` is larger, minus that of the cases in which `a` is, over the sum of both.
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


def wilcoxon_test(
    a: Sequence[float], b: Sequence[float], subjects: Sequence[str] | None = None
) -> Difference:
    """Compare two methods on the same cases, or on the means of patients that have several.

    Zero differences are dropped and ties share their mean rank, as in SciPy's `wilcoxon`, but the
    p-value is exact for up to `EXACT` differing pairs, whatever the ties.
    """
    by_case = np.array(b, dtype=float) - np.array(a, dtype=float)
    low, high = mean_interval(np.round(by_case, 9), subjects)
    sums, sizes = _cluster_sums(by_case, subjects)
    # 1.6 - 0.8 and 2.4 - 1.6 are equal, but not in floating point: ties are found only after
    # rounding.
    difference = np.round(sums / sizes, 9)
    used = difference[difference != 0]
    statistic = p = effect = None
    if len(used):
        ranks = scipy.stats.rankdata(np.abs(used))
        exact = len(used) <= EXACT
        statistic, p = _exact_test(ranks, used > 0) if exact else scipy.stats.wilcoxon(used)
        effect = float((ranks * np.sign(used)).sum() / ranks.sum())
    return Difference(
        n_pairs=len(difference),
        n_zero=len(difference) - len(used),
        mean_difference=float(np.round(by_case, 9).mean()) if len(by_case) else None,
        low=low,
        high=high,
        median_difference=float(np.median(difference)) if len(difference) else None,
        statistic=None if statistic is None else float(statistic),
        p=None if p is None else float(p),
        effect=effect,
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
    scores: Sequence[Sequence[Sequence[float]]],
    higher_is_better: bool,
    subjects: Sequence[str] | None = None,
) -> list[tuple[int, float, float]]:
    """Return for every method the number of cases, its mean rank (1 is best) and the share of
    bootstrap samples of the cases in which it is the smallest.

    `scores[case][label][method]`: methods are ranked within every label of a case, and the ranks
    are averaged over the labels, because those of one case are not independent. Methods that are
    first together share the sample.
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
    if subjects is not None:  # whole patients are drawn
        columns = [_cluster_sums(column, subjects) for column in ranks.T]
        sums = np.stack([column_sums for column_sums, _ in columns], axis=1)  # (K, M)
        sizes = columns[0][1]
        drawn = _resamples(len(sums)) @ sums / (_resamples(len(sums)) @ sizes)[:, None]
    else:
        drawn = _resamples(n) @ ranks  # (RESAMPLES, M)
    first = np.isclose(drawn, drawn.min(axis=1, keepdims=True), rtol=0, atol=1e-6)
    shares = (first / first.sum(axis=1, keepdims=True)).mean(axis=0)
    return [
        (n, float(mean), float(share))
        for mean, share in zip(ranks.mean(axis=0), shares, strict=True)
    ]
