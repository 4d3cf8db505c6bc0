"""Tables of a comparison, as Markdown and LaTeX: scores with marks, then every pair of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

METRIC_NAMES = {"dice": "DSC", "hd95": "HD95"}
LATEX_SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
}


PAIR_NOTE = (
    "Every pair of methods: p, marked if the first method is better (*) or worse (†) than the second; "
    "r, the matched-pairs rank-biserial correlation of the differences, positive if the first method has the larger "
    "values; n pairs."
)


class _Markup:
    """What differs between the two languages."""

    def __init__(self, text: Callable[[str], str], bold: str, better: str, worse: str, formula: str) -> None:
        self.text, self.bold, self.formula = text, bold, formula
        self.marks = {"better": better, "worse": worse, "": ""}


def _markdown_text(text: str) -> str:
    return "".join(f"\\{character}" if character in "\\`*_|<>[]" else character for character in text)


def _latex_text(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)


MARKDOWN = _Markup(_markdown_text, "**{}**", "\\*", "†", "{}")
LATEX = _Markup(_latex_text, r"\textbf{{{}}}", "$^{*}$", r"$^{\dag}$", "${}$")


def _leaf_heads(content: Mapping[str, Any], markup: _Markup) -> list[str]:
    return [markup.text(leaf.replace("_", " ")) for leaf in content["leaves"]]


def _score_rows(content: Mapping[str, Any], markup: _Markup) -> list[list[str]]:
    cells = {(cell["method"], cell["metric"], cell["leaf"]): cell for cell in content["cells"]}
    rows = []
    for method in content["methods"]:
        for metric in content["metrics"]:
            name = markup.text(method) if metric == content["metrics"][0] else ""
            found = [_score(cells[method, metric, leaf], markup) for leaf in content["leaves"]]
            rows.append([name, METRIC_NAMES[metric], *found])
    for metric in content["metrics"]:
        counts = []
        for leaf in content["leaves"]:
            n = [cells[method, metric, leaf]["n"] for method in content["methods"]]
            counts.append(str(n[0]) if len(set(n)) == 1 else "/".join(map(str, n)))
        rows.append(["n" if metric == content["metrics"][0] else "", METRIC_NAMES[metric], *counts])
    return rows


def _score(cell: Mapping[str, Any], markup: _Markup) -> str:
    if cell["mean"] is None:
        return "-"
    scale = 100 if cell["metric"] == "dice" else 1
    mean = f"{scale * cell['mean']:.1f}"
    sd = "" if cell["sd"] is None else f" ({scale * cell['sd']:.1f})"
    return (markup.bold.format(mean) if cell["best"] else mean) + markup.marks[cell["mark"]] + sd


def _pair_rows(content: Mapping[str, Any], markup: _Markup) -> list[list[str]]:
    tests: dict[tuple[str, str], dict[str, list[str]]] = {}
    for test in content["tests"]:
        of_pair = tests.setdefault((test["b"], test["a"]), {metric: [] for metric in content["metrics"]})
        of_pair[test["metric"]].append(_test(test, markup))
    return [
        [
            f"{markup.text(b)} vs. {markup.text(a)}" if metric == content["metrics"][0] else "",
            METRIC_NAMES[metric],
            *row,
        ]
        for (b, a), of_pair in tests.items()
        for metric, row in of_pair.items()
    ]


def _test(test: Mapping[str, Any], markup: _Markup) -> str:
    if test["p"] is None:
        return f"equal, n={test['n_pairs']}" if test["n_pairs"] else "-"
    mark = ("better" if test["better"] == test["b"] else "worse") if test["significant"] else ""
    effect = markup.formula.format(f"r={test['effect']:+.2f}")
    return f"{_p_value(test['p_adjusted'])}{markup.marks[mark]}, {effect}, n={test['n_pairs']}"


def _p_value(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def notes(content: Mapping[str, Any]) -> list[str]:
    """What a reader must know about the table; plain sentences."""
    tests = content["tests"]
    alpha = f"{content['alpha']:g}"
    lines = [
        f"Mean (standard deviation) over {len(content['cases'])} cases; DSC in percent, HD95 in mm; best mean in bold.",
        f"* better, † worse than {content['baseline']} (two-sided Wilcoxon signed-rank test, p < {alpha}).",
    ]
    if content["correction"] == "holm":
        sizes = {
            metric: sum(t["metric"] == metric and t["p"] is not None for t in tests) for metric in content["metrics"]
        }
        family = ", ".join(f"{size} tests of {METRIC_NAMES[metric]}" for metric, size in sizes.items())
        lines.append(f"p-values are corrected by Holm's method over all pairs and leaves ({family}).")
    else:
        lines.append("p-values are not corrected for multiple tests.")
    if content.get("hd95_cap") is not None:
        lines.append(f"HD95 is at most {content['hd95_cap']:g} mm, which is also that of missed leaves.")
    if any(len({c["n"] for c in content["cells"] if (c["leaf"], c["metric"]) == key}) > 1 for key in _columns(content)):
        lines.append(
            "n differs between methods (in their order): a leaf that is absent in reference and prediction has no score"
            + (
                "."
                if content.get("hd95_cap") is not None
                else ", and a missed one no HD95 (evaluate --cap gives it one)."
            )
        )
    most = max((test["n_pairs"] - test["n_zero"] for test in tests), default=0)
    if 2.0 ** (1 - most) >= content["alpha"]:
        lines.append(f"With at most {most} differing pairs, no p-value can be below {2.0 ** (1 - most):.2g}.")
    for method, cases in content["left_out"].items():
        if cases:
            lines.append(f"{len(cases)} case(s) of {method} are not in all result sets and were left out.")
    return lines


def _columns(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(leaf, metric) for leaf in content["leaves"] for metric in content["metrics"]]


def markdown_tables(content: Mapping[str, Any]) -> str:
    heads = _leaf_heads(content, MARKDOWN)

    def table(first: str, rows: Sequence[Sequence[str]]) -> str:
        lines = [[first, "Metric", *heads], ["---", "---", *["---:"] * len(heads)], *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    first, second = table("Model", _score_rows(content, MARKDOWN)), table("Pair", _pair_rows(content, MARKDOWN))
    remarks = "\n".join(f"- {_markdown_text(line)}" for line in notes(content))
    return f"{first}\n\n{remarks}\n\n{_markdown_text(PAIR_NOTE)}\n\n{second}\n"


def latex_tables(content: Mapping[str, Any]) -> str:
    """Two tables; they need the packages booktabs and graphicx."""
    heads = _leaf_heads(content, LATEX)

    def table(first: str, rows: Sequence[Sequence[str]], caption: str) -> str:
        body: list[str] = []
        for row in rows:
            if row[0] and body:
                body.append(r"\midrule")
            body.append(" & ".join(row) + r" \\")
        lines = [
            r"\begin{table}[tb]",
            rf"\caption{{{caption}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{ll{'c' * len(heads)}}}",
            r"\toprule",
            " & ".join([first, "Metric", *heads]) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
        ]
        return "\n".join(lines)

    def caption(*lines: str) -> str:
        return " ".join(_latex_text(line).replace("†", r"$^{\dag}$").replace("*", "$^{*}$") for line in lines)

    tables = [
        table("Model", _score_rows(content, LATEX), caption(*notes(content))),
        table("Pair", _pair_rows(content, LATEX), caption(PAIR_NOTE)),
    ]
    return "% needs \\usepackage{booktabs,graphicx}\n" + "\n\n".join(tables) + "\n"
