"""What a reader must know about a comparison; plain sentences, for tables and report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from nnunet_labelset.evaluation.metric import COMPARED, KNOWN_WRONG, METRICS
from nnunet_labelset.evaluation.results import Comparison
from nnunet_labelset.evaluation.statistics import EFFECT, FEW_CASES, WILCOXON_TEST

EFFECT_NOTE = (
    f"The effect r is the {EFFECT} of the differences, positive if the first method has the larger "
    "values."
)
INTERVALS = f"95 % intervals: Student's t below {FEW_CASES} cases, else BCa bootstrap"
FLOOR_OF = 30  # differing pairs; with more, the smallest possible p-value does not matter


def p_text(p: float) -> str:
    """`0.012`, `0.00006`: no exponents in a table."""
    if p >= 0.001:
        return f"{p:.3f}"
    if p >= 1e-4:
        return f"{p:.1g}"
    return f"{p:.5f}" if p >= 1e-5 else "<0.00001"


def notes(compared: Comparison) -> list[str]:
    """Return all that applies to this comparison."""
    lines = [
        f"Mean (standard deviation); {_units(compared)}; best mean in bold.",
        f"A label counts in the n of {len(compared.cases)} cases in which the reference or at "
        "least one method has it, the same for all methods.",
        "Mean: over the labels of a case, then over the cases; unions and regions are not part "
        "of it.",
        f"* better, † worse than {compared.baseline} ({WILCOXON_TEST}, p < {compared.alpha:g}).",
        _correction(compared),
        f"{KNOWN_WRONG.title}: voxels predicted outside of their label-set, as a percentage of "
        "voxels with at least one excluded label.",
    ]
    lines += filter(None, (check(compared) for check in CHECKS))
    for method, cases in compared.left_out.items():
        if cases:
            lines.append(
                f"{len(cases)} case(s) of {method} are not in all result sets and were left out."
            )
    return lines


def _units(compared: Comparison) -> str:
    metrics = [METRICS[name] for name in compared.metrics]
    words = {"%": "percent"}
    return ", ".join(f"{each.title} in {words.get(each.unit, each.unit)}" for each in metrics)


def mm_range(ends: Sequence[float]) -> str:
    """`1 mm`, or `1 to 5 mm` where cases differ."""
    low, high = (f"{end:.3g}" for end in ends)
    return f"{low} mm" if low == high else f"{low} to {high} mm"


def _tolerance(compared: Comparison) -> str:
    if "nsd" not in compared.metrics or not compared.tolerances:
        return ""
    return f"Tolerance of NSD: {mm_range(compared.tolerances)}."


def _distance(compared: Comparison) -> str:
    if not any(METRICS[name].is_distance for name in compared.metrics):
        return ""
    if not compared.worst_distances:
        return "The distance of a missed or invented label is the diagonal of the image."
    which = "the diagonal of the image" if compared.cap is None else "--cap"
    worst = mm_range(compared.worst_distances)
    return f"The distance of a missed or invented label is {which}: {worst}."


def _absence(compared: Comparison) -> str:
    if not any(cell.n_absent for cell in compared.cells):
        return ""
    return (
        "A method that rightly predicts nothing where another one invents a label has the best "
        "value there: its mean may be higher than in its own evaluation."
    )


def _subjects(compared: Comparison) -> str:
    if compared.n_subjects is None:
        return ""
    return (
        f"The cases are of {compared.n_subjects} patients: intervals draw whole patients, and "
        "tests compare the means of patients."
    )


def _margins(compared: Comparison) -> str:
    if not compared.margins:
        return ""
    shown = ", ".join(
        f"{METRICS[name].show(margin)} {METRICS[name].unit} {METRICS[name].title}"
        for name, margin in compared.margins.items()
    )
    return f"Non-inferior: the 95 % interval of the difference excludes a loss of {shown}."


def _correction(compared: Comparison) -> str:
    if compared.correction == "none":
        return "p-values are not corrected for multiple tests."
    family_tests = [
        test
        for test in compared.tests
        if test.baseline and test.p is not None and (test.leaf or test.metric == KNOWN_WRONG.name)
    ]
    sizes = Counter(test.metric for test in family_tests)
    family = ", ".join(f"{size} of {COMPARED[metric].title}" for metric, size in sizes.items())
    return (
        f"p-values are corrected by Holm's method over the tests against {compared.baseline} "
        f"({family}); pairs of other methods, and means over labels, are families of their own."
    )


def _floor(compared: Comparison) -> str:
    """The smallest p-value that so few pairs can have: all differences on one side."""
    most = max((test.n_pairs - test.n_zero for test in compared.tests), default=0)
    if not 0 < most <= FLOOR_OF:
        return ""
    floor = np.format_float_positional(2.0 ** (1 - most), precision=3, fractional=False, trim="-")
    return f"With at most {most} differing pairs, the smallest possible p-value is {floor}."


CHECKS = (_floor, _tolerance, _distance, _absence, _subjects, _margins)
