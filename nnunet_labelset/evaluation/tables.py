"""Tables of a comparison, as Markdown and LaTeX: scores with marks, intervals, pairs of methods, detection, ranks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from nnunet_labelset.evaluation.metric import KNOWN_WRONG, METRICS, Metric
from nnunet_labelset.evaluation.notes import EFFECT_NOTE, p_text
from nnunet_labelset.evaluation.results import Cell, Comparison, PairedTest
from nnunet_labelset.io.text import spoken

LATEX_SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "†": r"$^{\dag}$",
    # Behind the end of a row, these would be taken for its options.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}
WIDE = 12  # more leaves than this stand in rows, not in columns
PAGE = 120  # characters that stand side by side on a page, in the smallest print
SHRINK = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"  # what is wider than the page
INTERVAL_NOTE = (
    "Means with their 95 % confidence intervals (BCa bootstrap), then the mean difference of every pair of methods."
)
PAIR_NOTE = (
    "Every pair of methods: p, marked if the first method is better (*) or worse (†) than the second; "
    f"r; n pairs. {EFFECT_NOTE}"
)
DETECTION_NOTE = "Detection: cases in which a leaf was found / missed / invented, of those in which it is annotated."
RANK_NOTE = (
    "Mean rank over cases and leaves (1 is best), and share of bootstrap samples of the cases in which it is first."
)


@dataclass(frozen=True)
class _Markup:
    """What differs between the two languages."""

    text: Callable[[str], str]
    bold: str
    better: str
    worse: str
    formula: str

    def mark(self, mark: str) -> str:
        return {"better": self.better, "worse": self.worse, "": ""}[mark]


def _markdown_text(text: str) -> str:
    return "".join(f"\\{character}" if character in "\\`*_|<>[]" else character for character in " ".join(text.split()))


def _latex_text(text: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in text)
    whole = unicodedata.normalize("NFC", " ".join(printable.split()))  # pdfLaTeX knows letters with accents, no accents
    return "".join(LATEX_SPECIAL.get(character, character) for character in whole)


MARKDOWN = _Markup(_markdown_text, "**{}**", "\\*", "†", "{}")
LATEX = _Markup(_latex_text, r"\textbf{{{}}}", "$^{*}$", r"$^{\dag}$", "${}$")


@dataclass(frozen=True)
class _Table:
    """Rows below a head; where the first column is not empty, a new group begins."""

    notes: Sequence[str]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def turned(self) -> _Table:
        """Leaves in rows; the first columns, method and metric, become the head: one below the other."""
        names = 2 if self.head[1] == "Metric" else 1
        head, last = [""], ""
        for row in self.rows:
            last = row[0] or last
            lines = [*last.replace(" vs. ", " vs.\n").split("\n"), *row[1:names]]  # no name has a line break
            head.append(r"\shortstack{" + r"\\".join(lines) + "}")
        columns = zip(*(row[names:] for row in self.rows), strict=True)
        return _Table(
            self.notes, head, [[leaf, *cells] for leaf, cells in zip(self.head[names:], columns, strict=True)]
        )

    def pages(self) -> Iterator[_Table]:
        """As many columns at once as a page is wide; the first one, the leaves, on each."""
        widths = [max(map(_printed_width, column)) + 3 for column in zip(self.head, *self.rows, strict=True)]
        start, notes = 1, self.notes
        while start < len(widths):
            stop = start + 1
            while stop < len(widths) and widths[0] + sum(widths[start : stop + 1]) <= PAGE:
                stop += 1
            rows = [[row[0], *row[start:stop]] for row in self.rows]
            yield _Table(notes, [self.head[0], *self.head[start:stop]], rows)
            start, notes = stop, ["(continued)"]


def _printed_width(cell: str) -> int:
    """Characters of the longest line, without commands and braces."""
    lines = cell.removeprefix(r"\shortstack").split(r"\\")
    return max(len(re.sub(r"\\[a-z]+|[{}$^\\]", "", line)) for line in lines)


def _tables(found: Comparison, markup: _Markup) -> list[_Table]:
    leaves = [markup.text(spoken(leaf)) for leaf in found.structures]
    tests = partial(_test, markup=markup)
    tables = [
        _Table(found.notes, ["Model", "Metric", *leaves, KNOWN_WRONG.title], _score_rows(found, markup)),
        _Table([INTERVAL_NOTE], ["Model", "Metric", *leaves, KNOWN_WRONG.title], _interval_rows(found, markup)),
        _Table([PAIR_NOTE], ["Pair", "Metric", *leaves, KNOWN_WRONG.title], _pair_rows(found, markup, tests)),
        _Table([DETECTION_NOTE], ["Model", *leaves], _detection_rows(found, markup)),
    ]
    if found.ranks:
        heads = [METRICS[name].title for name in found.metrics]
        tables.append(_Table([RANK_NOTE], ["Model", *heads], _rank_rows(found, markup)))
    return tables


def _metric_rows(found: Comparison, name: str, show: Callable[[str, str], str]) -> list[list[str]]:
    """A row per metric, `show(leaf, metric)` for every structure; in the first one the name, and the whole case."""
    rows = []
    for row, metric in enumerate(found.metrics):
        cells = [show(leaf, metric) for leaf in found.structures]
        whole = "" if row else show("", KNOWN_WRONG.name)
        rows.append(["" if row else name, METRICS[metric].title, *cells, whole])
    return rows


def _score_rows(found: Comparison, markup: _Markup) -> list[list[str]]:
    def score(method: str, leaf: str, metric: str) -> str:
        return _score(found.cell(method, leaf, metric), METRICS.get(metric, KNOWN_WRONG), markup)

    def count(leaf: str, metric: str) -> str:
        cell = found.cell(found.methods[0], leaf, metric)
        return f"{cell.n} ({cell.n_union} u)" if cell.n_union and leaf in found.leaves else str(cell.n)

    rows = [row for method in found.methods for row in _metric_rows(found, markup.text(method), partial(score, method))]
    return rows + _metric_rows(found, "n", count)


def _score(cell: Cell, metric: Metric, markup: _Markup) -> str:
    if cell.mean is None:
        return "-"
    mean = metric.show(cell.mean)
    return (markup.bold.format(mean) if cell.best else mean) + markup.mark(cell.mark) + metric.show_sd(cell)


def _interval_rows(found: Comparison, markup: _Markup) -> list[list[str]]:
    def show(mean: float | None, low: float | None, high: float | None, metric: str, sign: str = "") -> str:
        row = METRICS.get(metric, KNOWN_WRONG)
        values = [round(row.scale * value, row.digits) + 0.0 for value in (mean, low, high) if value is not None]
        texts = [f"{value:{sign}.{row.digits}f}" for value in values]  # + 0.0, because -0.0 is no number to print
        return markup.text(f"{texts[0]} [{texts[1]}, {texts[2]}]" if len(texts) == 3 else "".join(texts) or "-")

    def cell(method: str, leaf: str, metric: str) -> str:
        of = found.cell(method, leaf, metric)
        return show(of.mean, of.low, of.high, metric)

    rows = [row for method in found.methods for row in _metric_rows(found, markup.text(method), partial(cell, method))]
    return rows + _pair_rows(found, markup, lambda of: show(of.mean_difference, of.low, of.high, of.metric, "+"))


def _pair_rows(found: Comparison, markup: _Markup, show: Callable[[PairedTest], str]) -> list[list[str]]:
    by_pair: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for test in found.tests:
        by_pair.setdefault((test.b, test.a), {})[test.leaf, test.metric] = show(test)
    return [
        row
        for (b, a), shown in by_pair.items()
        for row in _metric_rows(found, f"{markup.text(b)} vs. {markup.text(a)}", lambda *of, shown=shown: shown[of])
    ]


def _test(test: PairedTest, markup: _Markup) -> str:
    if test.p is None or test.p_adjusted is None or test.effect is None:
        return f"equal, n={test.n_pairs}" if test.n_pairs else "-"
    mark = ("better" if test.better == test.b else "worse") if test.significant else ""
    effect = markup.formula.format(f"r={test.effect:+.2f}")
    return f"{markup.text(p_text(test.p_adjusted))}{markup.mark(mark)}, {effect}, n={test.n_pairs}"


def _detection_rows(found: Comparison, markup: _Markup) -> list[list[str]]:
    cells = {(of.method, of.leaf): f"{of.found} / {of.missed} / {of.invented}" for of in found.detection}
    return [[markup.text(method), *(cells[method, leaf] for leaf in found.structures)] for method in found.methods]


def _rank_rows(found: Comparison, markup: _Markup) -> list[list[str]]:
    cells = {(of.method, of.metric): markup.text(f"{of.mean_rank:.2f} ({100 * of.first:.0f} %)") for of in found.ranks}
    rows = [
        [markup.text(method), *(cells.get((method, metric), "-") for metric in found.metrics)]
        for method in found.methods
    ]
    critical = [found.critical_difference.get(metric) for metric in found.metrics]
    return [*rows, ["critical difference", *("-" if value is None else f"{value:.2f}" for value in critical)]]


def markdown_tables(found: Comparison) -> str:
    parts = []
    for number, table in enumerate(_tables(found, MARKDOWN)):
        rule = ["---" if column < 2 else "---:" for column in range(len(table.head))]
        lines = "\n".join(f"| {' | '.join(line)} |" for line in [table.head, rule, *table.rows])
        if number:
            parts.append(f"{_markdown_text(' '.join(table.notes))}\n\n{lines}")
        else:
            remarks = "\n".join(f"- {_markdown_text(line)}" for line in table.notes)
            parts.append(f"{lines}\n\n{remarks}")
    return "\n\n".join(parts) + "\n"


def latex_tables(found: Comparison) -> str:
    """Many leaves become tables of several pages, as many methods in each as a page is wide."""
    parts = []
    for table in _tables(found, LATEX):
        if len(found.structures) > WIDE and len(table.head) > len(found.structures):
            parts += [_long_table(page) for page in table.turned().pages()]
            continue
        body: list[str] = []
        for row in table.rows:
            if row[0] and body:
                body.append(r"\midrule")
            body.append(_latex_row(row))
        names = 2 if table.head[1] == "Metric" else 1
        columns = "l" * names + "c" * (len(table.head) - names)
        head = [r"\begin{table}[tb]", rf"\caption{{{_caption(table)}}}", SHRINK]
        head += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(table.head), r"\midrule"]
        parts.append("\n".join([*head, *body, r"\bottomrule", r"\end{tabular}}", r"\end{table}"]))
    text = "\n\n".join(parts)
    if any(character > "\u017f" for character in text):
        parts.insert(
            0, "% has characters that pdfLaTeX does not know: use XeLaTeX or LuaLaTeX with a font that has them"
        )
    return "% needs \\usepackage{booktabs,graphicx,longtable}\n" + "\n\n".join(parts) + "\n"


def _long_table(table: _Table) -> str:
    head = [r"{\tiny\setlength{\tabcolsep}{3pt}", rf"\begin{{longtable}}{{l{'c' * (len(table.head) - 1)}}}"]
    head += [rf"\caption{{{_caption(table)}}}\\", r"\toprule", _latex_row(table.head), r"\midrule", r"\endhead"]
    return "\n".join([*head, *map(_latex_row, table.rows), r"\bottomrule", r"\end{longtable}}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _caption(table: _Table) -> str:
    return " ".join(_latex_text(line).replace("{*}", "$^{*}$") for line in table.notes)
