"""Plots say what they show, in few elements, in colours that can be seen."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnunet_labelset.report.page import asset
from nnunet_labelset.report.plots import (
    ERROR_COLOUR,
    FOREST_WIDTH,
    METHODS,
    REFERENCE_COLOUR,
    PlotRow,
    VolumeAxes,
    bland_altman,
    forest_plot,
    label_colour,
    line_plot,
    method_colour,
    rank_plot,
    strip_plot,
    ticks,
)
from tests.helpers.report import Page


def row(method: str, scores: list[float | None], crosses: list[bool] | None = None) -> PlotRow:
    return PlotRow(method, scores, crosses or [False] * len(scores), None)


def test_plots_say_what_they_show() -> None:
    plot = strip_plot("a & b", [row("m", [50.0, 100.0, 60.0]), row("n", [None])], 0, 100, "%")
    Page(plot)
    assert 'aria-label="a &amp; b, %. m: median 60.0, quartiles 55.0 to 80.0; n: no scores"' in plot
    assert line_plot("nothing", [("x", "train", {0: None})], "loss") == ""
    gap = line_plot("gap", [("x", "train", {0: 1.0, 1: None, 2: 1.0})], "loss")
    assert gap.count("<polyline") == 2
    long = line_plot("long", [("x", "train", dict.fromkeys(range(10_000), 1.0))], "loss")
    assert long.count(",", long.index("points"), long.index("</polyline>")) <= 250


def test_long_names_fit() -> None:
    """On a plot of 360: narrower letters, then an end that is cut; the label for screen readers has
    it all.
    """
    for length, shown in ((20, 20), (50, 50), (500, None)):
        points = [(10.0, 1.0), (20.0, 3.0)]
        plot = bland_altman("x" * length, 0, points, "ml", VolumeAxes.of([points]))
        ((fit, title),) = re.findall('class="plot-title"(.*?)>(.*?)</text>', plot)
        assert ("textLength" in fit) == (length > 20)
        assert len(title) == shown or (shown is None and title.endswith("…") and len(title) < 100)
        assert "x" * length in plot


def test_missed_and_invented_are_crosses_and_counted() -> None:
    plot = strip_plot(
        "leaf", [row("m", [0.0, None, 90.0, 80.0], [True, False, False, False])], 0, 100, "%"
    )
    (cross,) = re.findall('<path class="crosses m0" data-i="0" d="(.*?)"', plot)
    assert cross.count("M") == 1
    (marks,) = re.findall('<path class="marks m0" data-i="! 0 1" d="(.*?)"', plot)
    assert marks.count("M") == 2
    assert "m (n = 3, 1 missed or invented)" in plot


def test_two_hundred_cases_are_two_elements() -> None:
    few, many = (
        strip_plot("leaf", [row("m", [float(i % 90) for i in range(n)])], 0, 100, "%")
        for n in (10, 200)
    )
    assert many.count("<") == few.count("<")
    assert many.count("h0") == 200


def test_bland_altman_by_hand() -> None:
    points = [(10.0, 1.0), None, (20.0, 3.0)]
    plot = bland_altman("leaf", 0, points, "ml", VolumeAxes.of([points]))
    Page(plot)
    # differences 1 and 3: mean 2, standard deviation sqrt(2)
    assert "n = 2, bias 2.00 ml, limits of agreement -0.77 to 4.77" in plot
    assert ">bias 2.00, limits of agreement -0.77 to 4.77</text>" in plot, "printed"
    assert plot.count('class="limit"') == 2
    same = bland_altman("leaf", 0, [(10.0, 0.0)], "ml", VolumeAxes.of([[(10.0, 0.0)]]))
    assert "bias 0.00" in same
    assert 'class="limit"' not in same


def test_volumes_of_all_methods_have_one_axis() -> None:
    methods = [[(10.0, 1.0), (20.0, 3.0)], [(12.0, -9.0), None]]
    axes = VolumeAxes.of(methods)
    plots = [bland_altman("leaf", 0, points, "ml", axes) for points in methods]
    ticks = [re.findall('class="tick(?:-right)?"[^>]*>([^<]*)<', plot) for plot in plots]
    assert ticks[0] == ticks[1]
    assert axes.means[0] < 10 < 20 < axes.means[1]
    assert axes.differences[0] < -9 < 4.77 < axes.differences[1]


def test_ranks_are_in_order() -> None:
    ranks = [("a", 1.2), ("b", 1.9), ("c", 2.9)]
    assert "1 is best: a 1.20, b 1.90, c 2.90" in rank_plot(ranks[::-1])


def test_many_labels_are_rows_of_one_plot() -> None:
    """A long plot has its axis on top as well: the bottom is screens away."""
    for count, axes in ((10, 1), (117, 2)):
        rows = [(f"leaf {number}", [(50.0, 40.0, 60.0), None]) for number in range(count)]
        plot = forest_plot("Dice", ["m", "n"], rows, 0, 100, "%")
        Page(plot)
        assert plot.count("<path") == 4
        assert len(re.findall('class="tick"[^>]*>50|class="tick"[^>]*>40', plot)) == axes
        assert plot.count("<text") < count + 20
        name, *_ = re.findall('y="([\\d.]+)" class="tick-left"', plot)
        heights = sorted(map(float, re.findall('y="([\\d.]+)" class="tick"', plot)))
        assert heights[0] - float(name) > 12  # the axis on top stands below the names


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(3, 8))
def test_ticks_are_few_and_inside(low: float, span: float, about: int) -> None:
    found = ticks(low, low + span, about)
    slack = 1e-6 * (abs(low) + span)
    assert 1 <= len(found) <= about + 1
    assert found == sorted(set(found))
    assert all(low - slack <= tick <= low + span + slack for tick in found)


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("mode", [0, 1])
def test_marks_have_a_contrast_of_three_to_one(mode: int) -> None:
    """To the page and to the box behind them, by day and by night."""
    paper = re.findall(r"--paper: (#\w+)", asset("page.css"))[mode]
    style = asset("figures.css").split("@media")[mode]
    behind = [
        paper if len(paper) == 7 else "#" + 2 * paper[1:],
        re.search(r"--box: (#\w+)", style)[1],
    ]
    methods = re.findall(r"--m\d: (#\w+)", style)
    assert len(methods) == METHODS
    for colour in [*methods, re.search(r"--edge: (#\w+)", style)[1]]:
        for other in behind:
            dark, bright = sorted((luminance(colour), luminance(other)))
            assert (bright + 0.05) / (dark + 0.05) >= 3, (colour, other)


def test_no_two_leaves_share_a_colour() -> None:
    assert len({label_colour(leaf) for leaf in range(1, 118)}) == 117


def test_a_colour_has_one_meaning() -> None:
    labels = {label_colour(label).upper() for label in range(1, 118)}
    methods = {method_colour(number).upper() for number in range(METHODS)}
    night = asset("figures.css").split("@media")[1]
    assert {colour.upper() for colour in re.findall(r"--m\d: (#\w+)", night)} == methods
    assert len(methods) == METHODS
    assert not labels & methods
    assert ERROR_COLOUR not in labels | methods
    assert REFERENCE_COLOUR not in labels | methods


@pytest.mark.parametrize("number", [1, 3, 7])
def test_names_of_methods_are_whole_and_beside_each_other(number):
    """Names were squeezed and cut ("fully superv...") although there was room."""
    methods = [f"fully supervised {n}" for n in range(number)]
    rows = [("liver", [(50.0, 40.0, 60.0)] * number)]
    plot = forest_plot("Dice", methods, rows, 0, 100, "%")
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="tick-left"([^>]*)>([^<]*)<', plot)
    assert [name for *_, name in found] == methods
    assert not any(squeezed for _, _, squeezed, _ in found)
    ends = [(float(y), float(x), float(x) + 5.9 * len(name)) for x, y, _, name in found]
    assert max(right for *_, right in ends) <= FOREST_WIDTH
    for (y, _, right), (next_y, left, _) in pairwise(ends):
        assert next_y > y or left > right
