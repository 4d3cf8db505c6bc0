"""`nnunet_labelset compare`: paired tests by hand and against SciPy, tables, bad input."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from itertools import product

import numpy as np
import pytest
from scipy import stats

from nnunet_labelset.cli import main
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.compare import ComparisonOptions, comparison, p_text
from nnunet_labelset.evaluation.comparison_tables import latex_tables, markdown_tables
from nnunet_labelset.evaluation.results import Evaluation
from nnunet_labelset.evaluation.statistics import (
    Description,
    Difference,
    _resamples,
    describe,
    holm,
    wilcoxon_test,
)
from nnunet_labelset.io.records import to_json
from tests.helpers.commands import error_line
from tests.helpers.evaluation import made_case, made_evaluation, made_score, save_evaluation

LEAVES = ["white_matter", "corpus_callosum"]


def evaluated(dice, hd95=None, first=0, cap=None, leaves=LEAVES):
    """Dice and HD95 per leaf, one list entry per case."""
    cases = [
        made_case(
            f"case_{first + index:02d}",
            {
                leaf: made_score(
                    {"dice": dice[row][index], "hd95": None if hd95 is None else hd95[row][index]},
                    10 + first + index,
                )
                for row, leaf in enumerate(leaves)
            },
        )
        for index in range(len(dice[0]))
    ]
    return made_evaluation(cases, ("dice",) if hd95 is None else ("dice", "hd95"), cap=cap)


def saved(folder, name, content):
    return save_evaluation(folder / name, content)


def cell(content, method, leaf, metric="dice"):
    return content.cell(method, leaf, metric)


def error_of(capsys, *arguments):
    return error_line(capsys, "compare", *arguments)


def test_describe():
    assert describe([1, None, 2, 6]) == Description(3, 3, pytest.approx(7**0.5), 2)
    assert describe([2]) == Description(1, 2, None, 2)
    assert describe([None]) == Description(0, None, None, None)


def test_paired_test_by_hand():
    """Differences 1, -2, 3, 4: ranks 1..4, 2 of 16 sign patterns are as extreme on each side as
    rank sum 2: 6/16.
    """
    found = wilcoxon_test([0, 2, 0, 0], [1, 0, 3, 4])
    assert (found.n_pairs, found.n_zero, found.statistic) == (4, 0, 2)
    assert found.p == pytest.approx(2 * 3 / 16)  # rank sums 0, 1, 2
    assert found.effect == pytest.approx((1 - 2 + 3 + 4) / 10)
    assert (found.mean_difference, found.median_difference) == (1.5, 2)


def test_ties_and_zeros_by_hand():
    """One difference is 0; |d| = 1, 1, 1 share the rank 2."""
    found = wilcoxon_test([0, 0, 0, 5], [1, 1, -1, 5])
    assert (found.n_pairs, found.n_zero) == (4, 1)
    assert found.effect == pytest.approx((2 + 2 - 2) / 6)
    assert found.p == 1
    # differences that are equal but for rounding are ties: 0.8 - 0, 1.6 - 0.8, 2.4 - 1.6
    found = wilcoxon_test([0, 0.8, 1.6], [0.8, 1.6, 2.4])
    assert found.statistic == 0
    assert found.p == pytest.approx(2 / 8)


def test_a_comparison_uses_the_test_that_its_notes_name():
    a, b = [0.5, 0.5, 0.5, 0.5], [0.6, 0.7, 0.8, 0.1]
    found = comparison({"a": evaluated([a, b]), "b": evaluated([b, a])}, "a")
    test = next(test for test in found.tests if (test.leaf, test.metric) == (LEAVES[0], "dice"))
    expected = stats.wilcoxon(np.subtract(b, a), method="exact")  # the sign test would give 5/8
    assert (test.statistic, test.p) == (expected.statistic, pytest.approx(expected.pvalue))
    assert "two-sided Wilcoxon signed-rank test" in "".join(found.notes)


def test_no_pairs_or_no_differences():
    assert wilcoxon_test([], []) == Difference(0, 0, *[None] * 7)
    assert wilcoxon_test([1, 2], [1, 2]) == Difference(2, 2, 0, None, None, 0, None, None, None)
    assert wilcoxon_test([1], [2]).p == 1


@pytest.mark.parametrize("n", [2, 5, 9, 13, 14, 30, 60])
def test_agrees_with_scipy(n):
    rng = np.random.default_rng(n)
    a, b = rng.uniform(0, 3, n), rng.uniform(0, 3, n)
    found, expected = wilcoxon_test(a.tolist(), b.tolist()), stats.wilcoxon(a, b, method="exact")
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.statistic == pytest.approx(expected.statistic)


@pytest.mark.parametrize("seed", range(6))
def test_ties_and_zeros_are_exact_too(seed):
    """Against all sign patterns of the differences that are not zero; from 14 pairs on SciPy
    approximates them.
    """
    rng = np.random.default_rng(seed)
    a, b = (np.round(rng.uniform(0, 2, 16) / 0.25) * 0.25 for _ in range(2))
    found = wilcoxon_test(a.tolist(), b.tolist())
    difference = (b - a)[b != a]
    ranks = stats.rankdata(np.abs(difference))
    signs = np.array(list(product((0, 1), repeat=len(ranks))))
    sums, seen = signs @ ranks, ranks[difference > 0].sum()
    expected = min(1.0, 2 * min((sums <= seen).mean(), (sums >= seen).mean()))
    assert found.p == pytest.approx(expected, rel=1e-12)
    assert found.n_zero == (a == b).sum()


def test_no_p_value_below_the_floor():
    """15 pairs of which 7 differ, all to one side: 2 of 128 sign patterns, where SciPy says
    0.008.
    """
    found = wilcoxon_test([0.0] * 15, [0.5] * 7 + [0.0] * 8)
    assert found.p == 2 / 2**7
    assert wilcoxon_test(range(900), [2 * value + 1 for value in range(900)]).p == pytest.approx(
        2.0**-899
    )


def test_holm_by_hand():
    assert holm([0.01, 0.04, None, 0.03]) == [
        pytest.approx(0.03),
        pytest.approx(0.06),
        None,
        pytest.approx(0.06),
    ]
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []


def test_marks_and_best():
    n = 10
    low, high = [0.5 + 0.01 * i for i in range(n)], [0.7 + 0.012 * i for i in range(n)]
    far, near = [9 + 0.1 * i for i in range(n)], [3 + 0.11 * i for i in range(n)]
    results = {
        "base": evaluated([low, high], [far, near]),
        "ours": evaluated([high, low], [near, far]),
    }
    content = comparison(results, "base")
    assert [cell(content, "ours", leaf).mark for leaf in LEAVES] == ["better", "worse"]
    assert [cell(content, "ours", leaf, "hd95").mark for leaf in LEAVES] == ["better", "worse"]
    assert [cell(content, "ours", leaf, "hd95").best for leaf in LEAVES] == [True, False]
    assert [cell(content, "base", leaf).mark for leaf in LEAVES] == ["", ""]
    (test,) = (t for t in content.tests if (t.leaf, t.metric) == ("white_matter", "hd95"))
    assert test.p == pytest.approx(2 / 2**n)
    assert test.effect == -1
    assert test.better == "ours"
    # the other way round, the tests still read "b - baseline"
    again = comparison(dict(reversed(results.items())), "base")
    assert [t.b for t in again.tests] == ["ours"] * 7
    # Holm: two tests per metric; the level of one case in a thousand is no longer reached
    strict = comparison(results, ComparisonOptions("base", alpha=0.003, correct=True))
    assert comparison(results, ComparisonOptions("base", alpha=0.003)).tests[0].significant
    assert not strict.tests[0].significant
    assert strict.tests[0].p_adjusted == pytest.approx(4 / 2**n)
    assert "base (2 of Dice, 2 of HD95)" in markdown_tables(strict)


def test_holms_family_is_what_the_table_marks():
    """Two of three methods are tested against the baseline: 4 tests of Dice, not all 6."""
    rng = np.random.default_rng(0)
    base = rng.uniform(0.4, 0.5, (2, 12))
    methods = {
        "base": base,
        "one": base + rng.uniform(0.1, 0.2, (2, 12)),
        "two": base + rng.uniform(0.1, 0.3, (2, 12)),
    }
    results = {name: evaluated(values.tolist()) for name, values in methods.items()}
    found = comparison(results, ComparisonOptions("base", correct=True))
    of_labels = [test for test in found.tests if test.metric == "dice" and test.leaf]
    marked = [test for test in of_labels if test.baseline]
    assert [test.p for test in marked] == [2 / 2**12] * 4
    assert [test.p_adjusted for test in marked] == [pytest.approx(4 * 2 / 2**12)] * 4
    others = [test for test in of_labels if not test.baseline]
    assert [test.p_adjusted for test in others] == pytest.approx(holm([test.p for test in others]))
    text = " ".join(found.notes)
    assert "base (4 of Dice)" in text
    assert re.search(r"\b12\b.*\b0\.000488\b", text)
    wrong = [
        made_evaluation(
            [
                made_case(f"{n}", {"liver": made_score({"dice": 0.5})}, known_wrong=k * n)
                for n in range(20)
            ]
        )
        for k in (0, 1)
    ]
    text = " ".join(
        comparison({"a": wrong[0], "b": wrong[1]}, ComparisonOptions("a", correct=True)).notes
    )
    assert "a (1 of Known wrong)" in text
    assert re.search(r"\b19\b.*\b0\.00000381\b", text)


def test_inventing_costs_as_much_as_missing():
    """12 of 24 cases have no tumour; A invents one in all of them, B never: their Dice elsewhere is
    the same.
    """
    dice = np.random.default_rng(0).uniform(0.7, 0.9, 24)
    cases = {"A": [], "B": []}
    for number, value in enumerate(dice):
        present = made_score({"dice": value})
        cases["A"].append(
            present if number < 12 else made_score({"dice": 0.0}, 0, outcome="invented")
        )
        cases["B"].append(present if number < 12 else made_score({}, 0, outcome="absent"))
    results = {
        name: made_evaluation(
            [
                made_case(
                    f"{n:02d}",
                    {"tumour": score},
                    known_wrong=5 if score.outcome == "invented" else 0,
                )
                for n, score in enumerate(scores)
            ]
        )
        for name, scores in cases.items()
    }
    found = comparison(results, "B")
    for leaf in ("tumour", None):
        cells = {name: found.cell(name, leaf, "dice") for name in "AB"}
        assert [cell.n for cell in cells.values()] == [24, 24]
        assert cells["A"].mean == pytest.approx(dice[:12].mean() / 2)
        assert cells["B"].mean == pytest.approx((dice[:12].mean() + 1) / 2)
        assert [cell.best for cell in cells.values()] == [False, True]
        assert cells["A"].mark == "worse"
    counts = {of.method: (of.found, of.missed, of.invented, of.absent) for of in found.detection}
    assert counts == {"A": (12, 0, 12, 0), "B": (12, 0, 0, 12)}
    assert "| A | 12 / 0 / 12 |" in markdown_tables(found)
    wrong = found.cell("A", None, "known_wrong")
    assert (wrong.mean, wrong.mark) == (pytest.approx(0.025), "worse")


def test_intervals_are_those_of_scipy():
    rng = np.random.default_rng(3)
    a, b = rng.uniform(0.5, 0.9, (2, 25))
    found = comparison({"a": evaluated([a, b]), "b": evaluated([b, a])}, "a")
    for values, cell_ in ((a, cell(found, "a", "white_matter")), (b - a, None)):
        expected = stats.bootstrap(
            (values,), np.mean, n_resamples=50_000, method="BCa", rng=1
        ).confidence_interval
        test = found.tests[0]
        low, high = (cell_.low, cell_.high) if cell_ else (test.low, test.high)
        assert low == pytest.approx(expected.low, abs=3e-3)
        assert high == pytest.approx(expected.high, abs=3e-3)
    assert comparison({"a": evaluated([a, b]), "b": evaluated([b, a])}, "a") == found, (
        "the same every time"
    )
    of, test = cell(found, "b", "white_matter"), found.tests[0]
    shown = [f"{100 * end:.1f}" for end in (of.mean, of.low, of.high)]
    assert f"| b | Dice | {shown[0]} \\[{shown[1]}, {shown[2]}\\] |" in markdown_tables(found)
    shown = [f"{100 * end:+.1f}" for end in (test.mean_difference, test.low, test.high)]
    assert f"| b vs. a | Dice | {shown[0]} \\[{shown[1]}, {shown[2]}\\] |" in markdown_tables(found)
    assert f"{shown[0]} {{[}}{shown[1]}, {shown[2]}{{]}}" in latex_tables(found)
    assert describe([0.5, 0.5, 0.5], interval=True).low == 0.5


def test_p_values_have_no_exponents():
    assert [p_text(p) for p in (1.0, 0.0123, 0.00042, 0.00006, 1e-9)] == [
        "1.000",
        "0.012",
        "0.0004",
        "0.00006",
        "<0.00001",
    ]


def test_metrics_on_request():
    values = [{"dice": 0.5, "assd": 1.0 + n} for n in range(3)]
    cases = [made_case(f"{n}", {"liver": made_score(of)}) for n, of in enumerate(values)]
    results = {name: made_evaluation(cases, ("dice", "assd", "volume_ref")) for name in "ab"}
    assert comparison(results, ComparisonOptions("a", metrics=["assd"])).metrics == ("assd",)
    for bad, message in (
        ("asd", "did you mean 'assd'"),
        ("hd100", "was not computed"),
        ("volume_ref", "no better/worse"),
    ):
        with pytest.raises(LabelSetError, match=message):
            comparison(results, ComparisonOptions("a", metrics=[bad]))


HOSTILE = [
    "a&b",
    "50%",
    "x_{1}",
    r"back\slash",
    "#$~^",
    "<|>",
    "[x]",
    "-lead",
    "new\nline",
    "Gefäß †",
    "% comment",
    "`q`",
]


def check_rows(latex: str, least: int = 1) -> list[str]:
    """Return the kinds of the tables: all rows have as many cells as their table has columns."""
    tables = re.findall(r"(?s)\\begin\{(longtable|tabular)\}\{([lc]+)\}(.*?)\\end\{\1\}", latex)
    for _, columns, part in tables:
        lines = part[part.index(r"\toprule") :].splitlines()
        rows = [line for line in lines if line.endswith(r" \\")]
        assert len(rows) > least
        for row in rows:
            assert len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1
            assert not row.startswith(("[", "*"))
    return [kind for kind, *_ in tables]


@pytest.mark.parametrize("more", [0, 117])
def test_latex_of_many_leaves_and_hostile_names(more):
    """Every special character is escaped, and all rows have as many cells as their table has
    columns.
    """
    leaves = [*HOSTILE, *(f"leaf_{n}" for n in range(more))]
    cases = [
        made_case(f"{n}", {leaf: made_score({"dice": n / 9}) for leaf in leaves}) for n in range(3)
    ]
    found = comparison({name: made_evaluation(cases) for name in HOSTILE}, HOSTILE[0])
    text = latex_tables(found)
    assert {char for char in text if not char.isascii()} == set("äß")
    kinds = check_rows(text, len(HOSTILE))
    assert kinds == [*["longtable"] * (len(kinds) - 1), "tabular"] if more else ["tabular"] * 4
    assert len(kinds) >= 4
    plain = re.sub(r"\\\\|\\[&%$#_{}]|\$[^$]*\$|\\[a-z]+", "", text)
    assert not re.search(r"[%#_~^<>|]", plain.replace("% needs", "").replace("{>}{!}{%", ""))
    assert plain.count("{") == plain.count("}")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="the test above looks at the escapes")
@pytest.mark.parametrize(("methods", "more"), [(4, 0), (3, 117)])
def test_latex_compiles_and_fits_the_page(tmp_path, methods, more):
    leaves = [*HOSTILE, "a\u0301", *(f"leaf_{n}" for n in range(more))]
    cases = [
        made_case(f"{n}", {leaf: made_score({"dice": n / 9}) for leaf in leaves}) for n in range(3)
    ]
    found = comparison({name: made_evaluation(cases) for name in HOSTILE[:methods]}, HOSTILE[0])
    packages = r"\documentclass{article}\usepackage{booktabs,graphicx,longtable}"
    text = rf"{packages}\begin{{document}}{'%'}" + "\n" + latex_tables(found) + r"\end{document}"
    (tmp_path / "table.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull \\hbox" not in done.stdout


def test_wide_latex_tables_of_groups_are_not_shrunk():
    """Three methods side by side were printed at 4 points, each page as a table of its own."""

    def scored(shift: float) -> Evaluation:
        scores = [made_score({"dice": n / 10 + shift * (1 + n % 3)}) for n in range(8)]
        protocols = ["full", "basic"] * 4
        pairs = enumerate(zip(scores, protocols, strict=True))
        return made_evaluation([made_case(f"{n}", {"a": x}, protocol=y) for n, (x, y) in pairs])

    names = ["a method with a rather long name", "another method", "the third method"]
    results = {name: scored(0.03 * number) for number, name in enumerate(names)}
    text = latex_tables(comparison(results, names[0]))
    (groups,) = re.findall(r"(?s)Groups of cases.*?Mean rank", text)
    assert "resizebox" not in groups.partition(r"\begin{table}")[0]
    check_rows(text)
    assert all(name in groups for name in names)
    assert groups.count("protocol: basic") > 1  # on every page
    assert text.count(r"\caption{(continued)}") == text.count(r"\addtocounter{table}{-1}") > 0


def test_other_scripts_are_told():
    cases = [made_case(f"{n}", {"肝": made_score({"dice": n / 9})}) for n in range(3)]
    text = latex_tables(comparison({name: made_evaluation(cases) for name in "ab"}, "a"))
    assert "XeLaTeX" in text.splitlines()[1]
    assert "XeLaTeX" not in latex_tables(
        comparison({name: evaluated([[0.1, 0.2]] * 2) for name in "ab"}, "a")
    )


def test_common_cases_and_missing_scores():
    one = evaluated([[0.1, 0.2, 0.3, 0.4], [None, None, 0.3, 0.4]])
    two = evaluated([[0.2, 0.3, 0.4, 0.5], [0.1, None, None, 0.6]], first=1)
    content = comparison({"one": one, "two": two}, "one")
    assert content.cases == ("case_01", "case_02", "case_03")
    assert content.left_out == {"one": ("case_00",), "two": ("case_04",)}
    assert content.metrics == ("dice",)
    assert [cell(content, method, "corpus_callosum").n for method in ("one", "two")] == [0, 0]
    assert [test.n_pairs for test in content.tests] == [3, 0, 3, 3]
    text = markdown_tables(content)
    assert "| n | Dice | 3 | 0 | 3 | 3 |" in text
    assert re.search(r"\b1 .*\bone\b", text)
    assert "smallest possible p-value" not in text  # nothing differs: "below 2" would help nobody


def test_tables_escape_names():
    results = {
        "a_1|x": evaluated([[0.1, 0.2], [0.3, 0.4]]),
        "50%": evaluated([[0.2, 0.3], [0.3, 0.4]]),
    }
    content = comparison(results, "50%")
    markdown, latex = markdown_tables(content), latex_tables(content)
    assert "| a\\_1\\|x | Dice | 15.0 (7.1) | **35.0** (7.1) | 25.0 (7.1) |" in markdown
    assert "| 50% | Dice | **25.0** (7.1) | **35.0** (7.1) | **30.0** (7.1) |" in markdown
    assert r"a\_1$|$x & Dice & 15.0 (7.1) & \textbf{35.0} (7.1) & 25.0 (7.1)" in latex
    assert r"50\% & Dice & \textbf{25.0} (7.1)" in latex
    assert "equal, n=2" in markdown
    check_rows(latex)


def test_files(tmp_path, capsys):
    rng = np.random.default_rng(0)
    first, second, third = (
        saved(
            tmp_path,
            name,
            evaluated(rng.uniform(0, 1, (2, 6)).tolist(), rng.uniform(1, 9, (2, 6)).tolist()),
        )
        for name in ("x", "y", "z")
    )
    arguments = [
        "compare",
        first,
        f"Leaf-Dice={second}",
        third,
        "--baseline",
        "z",
        "-o",
        str(tmp_path / "out"),
    ]
    assert main(arguments) == 0
    screen = capsys.readouterr().out
    assert "bold" not in screen
    assert "Leaf-Dice vs." in screen
    assert "\\" not in screen
    content = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert content["methods"] == ["x", "Leaf-Dice", "z"]
    assert content["sources"]["Leaf-Dice"] == f"{second}/metrics.json"
    with open(tmp_path / "out" / "tests.csv") as file:
        tests = list(csv.DictReader(file))
    assert len(tests) == 3 * (2 * 3 + 1)
    assert {(test["a"], test["b"]) for test in tests} == {
        ("x", "Leaf-Dice"),
        ("z", "x"),
        ("z", "Leaf-Dice"),
    }
    with open(tmp_path / "out" / "table.csv") as file:
        assert len(list(csv.DictReader(file))) == 3 * (2 * 3 + 1)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(before) == {"comparison.json", "table.md", "table.tex", "table.csv", "tests.csv"}
    assert main(arguments) == 0
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_bad_input(tmp_path, capsys):
    good = evaluated([[0.1, 0.2], [0.3, 0.4]], [[1, 2], [3, 4]])
    a = saved(tmp_path, "a", good)
    out = ("-o", tmp_path / "out")
    assert error_of(capsys, a, *out)
    assert "'a'" in error_of(capsys, a, a, *out)
    assert "metrics.json" in error_of(capsys, a, tmp_path / "none", *out)
    assert "'c'" in error_of(capsys, a, f"b={a}", "--baseline", "c", *out)
    assert "--alpha" in error_of(capsys, a, f"b={a}", "--alpha", 2, *out)
    other = saved(
        tmp_path, "labels", evaluated([[0.1, 0.2], [0.3, 0.4]], leaves=["white_matter", "liver"])
    )
    assert "'a' has white_matter, corpus_callosum" in error_of(capsys, a, other, *out)
    other = saved(tmp_path, "cases", evaluated([[0.1, 0.2], [0.3, 0.4]], first=7))
    assert "no case in common" in error_of(capsys, a, other, *out)
    other = saved(tmp_path, "single", evaluated([[0.1, 0.2], [0.3, 0.4]], first=1))
    assert "'case_01'" in error_of(capsys, a, other, *out)
    other = saved(
        tmp_path, "capped", evaluated([[0.1, 0.2], [0.3, 0.4]], [[1, 2], [3, 4]], cap=57.6)
    )
    assert "--cap (a: None, capped: 57.6)" in error_of(capsys, a, other, *out)
    changed = to_json(evaluated([[0.1, 0.2], [0.3, 0.4]]))
    changed["cases"][1]["leaves"]["white_matter"]["n_ref"] = 3
    other = saved(tmp_path, "reference", changed)
    assert "case 'case_01', white_matter: 'a' and 'reference'" in error_of(capsys, a, other, *out)
    other = saved(tmp_path, "summary", {"metric_per_case": []})
    assert "not a result of this version of 'nnunet_labelset evaluate'" in error_of(
        capsys, a, other, *out
    )
    assert not (tmp_path / "out").exists()


def test_bootstrap_samples_are_drawn_once_for_labels_in_as_many_cases():
    """They take most of the time: 117 labels in 150 to 200 cases were compared in two minutes."""
    counts = {f"label_{n % 7}_{n}": 20 + n % 7 for n in range(14)}

    def scored(shift: float) -> Evaluation:
        absent = made_score({}, outcome="absent", n_ref=0)
        return made_evaluation(
            [
                made_case(
                    f"{case:02}",
                    {
                        label: made_score({"dice": case % 5 / 9 + shift}) if case < n else absent
                        for label, n in counts.items()
                    },
                )
                for case in range(26)
            ]
        )

    results = {name: scored(shift) for name, shift in (("x", 0.0), ("y", 0.1), ("z", 0.2))}
    _resamples.cache_clear()
    compared = comparison(results, "x")
    drawn = _resamples.cache_info().misses
    assert drawn <= len(set(counts.values())) + 1  # and for the ranks
    assert compared.leaves == tuple(counts)  # in the order of the labels
    assert [test.leaf for test in compared.tests[:14]] == [*counts]
    _resamples.cache_clear()
    scored(0.0)
    # of all cases, and of the only protocol
    assert _resamples.cache_info().misses <= 2 * len(set(counts.values())) + 1
