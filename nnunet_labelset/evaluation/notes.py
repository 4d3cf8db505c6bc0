"""What a reader must know about a comparison; plain sentences, for tables and report."""

from __future__ import annotations

import numpy as np

from nnunet_labelset.evaluation.metric import COMPARED, KNOWN_WRONG, METRICS
from nnunet_labelset.evaluation.results import Comparison
from nnunet_labelset.evaluation.statistics import EFFECT, TEST

EFFECT_NOTE = f"The effect r is the {EFFECT} of the differences, positive if the first method has the larger values."
FEW_CASES = 20  # below, a bootstrap interval is too narrow
FEW_NOTE = f"Intervals (95 %, BCa bootstrap) of fewer than {FEW_CASES} cases are too narrow."
FLOOR_OF = 30  # differing pairs, from which on nobody asks for the smallest possible p-value


def p_text(p: float) -> str:
    """`0.012`, `0.00006`: no exponents in a table."""
    return (
        f"{p:.3f}"
        if p >= 0.001
        else f"{p:.1g}"
        if p >= 1e-4
        else f"{p:.5f}"
        if p >= 1e-5
        else "<0.00001"
    )


def notes(found: Comparison) -> list[str]:
    """All that applies to this comparison."""
    metrics = [METRICS[name] for name in found.metrics]
    units = ", ".join(
        f"{metric.title} in {'percent' if metric.unit == '%' else metric.unit}"
        for metric in metrics
    )
    lines = [
        f"Mean (standard deviation) over {len(found.cases)} cases, each leaf in the n cases in which all methods have "
        f"a score, which are those that are tested; {units}; best mean in bold.",
        f"* better, † worse than {found.baseline} ({TEST}, p < {found.alpha:g}).",
        _correction(found),
        f"{KNOWN_WRONG.title}: voxels predicted outside of their label-set, in percent of those of which anything is "
        "known.",
    ]
    if floor := _floor(found):
        lines.append(floor)
    if any(metric.is_distance for metric in metrics):
        worst = (
            "the diagonal of the image"
            if found.cap is None
            else f"{found.cap:g} mm, which is the largest"
        )
        lines.append(f"The distance of a missed or invented leaf is {worst}.")
    if any(cell.n_union for cell in found.cells if cell.leaf in found.leaves):
        lines.append(
            "u: so many of the n scores are of a union, because their reference does not tell the leaf from others."
        )
    if any(found_in.invented or found_in.missed for found_in in found.detection):
        lines.append(
            "A leaf that one method invents and another leaves out has no pair of scores: it counts under detection."
        )
    if any(cell.n < FEW_CASES for cell in found.cells if cell.low is not None):
        lines.append(FEW_NOTE)
    for method, cases in found.left_out.items():
        if cases:
            lines.append(
                f"{len(cases)} case(s) of {method} are not in all result sets and were left out."
            )
    return lines


def _correction(found: Comparison) -> str:
    if found.correction == "none":
        return "p-values are not corrected for multiple tests."
    sizes = {
        metric: sum(
            test.metric == metric and test.baseline and test.p is not None for test in found.tests
        )
        for metric in (*found.metrics, KNOWN_WRONG.name)
    }
    family = ", ".join(
        f"{size} of {COMPARED[metric].title}" for metric, size in sizes.items() if size
    )
    return (
        f"p-values are corrected by Holm's method over the tests against {found.baseline} ({family}); "
        "pairs of other methods are a family of their own."
    )


def _floor(found: Comparison) -> str:
    """The smallest p-value that so few pairs can have: all differences on one side."""
    most = max((test.n_pairs - test.n_zero for test in found.tests), default=0)
    if not 0 < most <= FLOOR_OF:
        return ""
    floor = np.format_float_positional(2.0 ** (1 - most), precision=1, fractional=False, trim="-")
    return f"With at most {most} differing pairs, no p-value can be below {floor}."
