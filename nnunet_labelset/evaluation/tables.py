"""Tables of a comparison, as Markdown and LaTeX: scores with marks, intervals, pairs of methods,
detection, ranks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nnunet_labelset.evaluation.metric import COMPARED, KNOWN_WRONG, METRICS
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
# what is wider than the page
SHRINK = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"
INTERVAL_NOTE = "Means with their 95 % confidence intervals (BCa bootstrap), then the mean difference of every pair of methods."
PAIR_NOTE = (
    "Every pair of methods: p, marked if the first method is better (*) or worse (†) than the second; "
    f"r; n pairs. {EFFECT_NOTE}"
)
DETECTION_NOTE = "Detection: cases in which a leaf was found / missed / invented, of those in which it is annotated."
RANK_NOTE = "Mean rank over cases and leaves (1 is best), and share of bootstrap samples of the cases in which it is first."


@dataclass(frozen=True)
class _Markup:
    """What differs between the two languages."""

    text: Callable[[str], str]
    bold: str
    marks: dict[str, str]
    formula: str


def _markdown_text(text: str) -> str:
    return "".join(
        f"\\{character}" if character in "\\`*_|<>[]" else character
        for character in " ".join(text.split())
    )


def _latex_text(text: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in text)
    whole = unicodedata.normalize(
        "NFC", " ".join(printable.split())
    )  # pdfLaTeX knows letters with accents, no accents
    return "".join(LATEX_SPECIAL.get(character, character) for character in whole)


MARKDOWN = _Markup(_markdown_text, "**{}**", {"better": "\\*", "worse": "†", "": ""}, "{}")
LATEX = _Markup(
    _latex_text, r"\textbf{{{}}}", {"better": "$^{*}$", "worse": r"$^{\dag}$", "": ""}, "${}$"
)


@dataclass(frozen=True)
class _Table:
    """Rows below a head; where the first column is not empty, a new group begins."""

    notes: Sequence[str]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def names(self) -> int:
        """The columns that say what a row is about."""
        return 2 if self.head[1] == "Metric" else 1

    def turned(self) -> _Table:
        """Leaves in rows; the first columns, method and metric, become the head: one below the
        other.
        """
        head, last = [""], ""
        for row in self.rows:
            last = row[0] or last
            lines = [
                *last.replace(" vs. ", " vs.\n").split("\n"),
                *row[1 : self.names],
            ]  # no name has a line break
            head.append(r"\shortstack{" + r"\\".join(lines) + "}")
        columns = list(zip(self.head, *self.rows, strict=True))
        return _Table(self.notes, head, columns[self.names :])

    def pages(self) -> Iterator[_Table]:
        """As many columns at once as a page is wide; the first one, the leaves, on each."""
        widths = [
            max(map(_printed_width, column)) + 3
            for column in zip(self.head, *self.rows, strict=True)
        ]
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
    tables = [
        _Table(
            found.notes, ["Model", "Metric", *leaves, KNOWN_WRONG.title], _score_rows(found, markup)
        ),
        _Table(
            [INTERVAL_NOTE],
            ["Model", "Metric", *leaves, KNOWN_WRONG.title],
            _interval_rows(found, markup),
        ),
        _Table(
            [PAIR_NOTE], ["Pair", "Metric", *leaves, KNOWN_WRONG.title], _pair_rows(found, markup)
        ),
        _Table([DETECTION_NOTE], ["Model", *leaves], _detection_rows(found, markup)),
    ]
    if found.ranks:
        heads = [METRICS[name].title for name in found.metrics]
        tables.append(_Table([RANK_NOTE], ["Model", *heads], _rank_rows(found, markup)))
    return tables


def _metric_rows(
    found: Comparison,
    markup: _Markup,
    shown: Iterable[tuple[tuple[str, ...], Cell | PairedTest, str]],
) -> list[list[str]]:
    """From methods (one, or a pair), cell or test, and its text: a row per metric; in the first one
    the whole case.
    """
    groups: dict[tuple[str, ...], dict[tuple[str, str], str]] = {}
    for methods, of, text in shown:
        groups.setdefault(methods, {})[of.leaf, of.metric] = text
    rows = []
    for methods, texts in groups.items():
        name, whole = " vs. ".join(map(markup.text, methods)), texts["", KNOWN_WRONG.name]
        for metric in found.metrics:
            rows.append(
                [
                    name,
                    METRICS[metric].title,
                    *(texts[leaf, metric] for leaf in found.structures),
                    whole,
                ]
            )
            name = whole = ""  # in the first row only
    return rows


def _score_rows(found: Comparison, markup: _Markup) -> list[list[str]]:
    def score(cell: Cell) -> str:
        if cell.mean is None:
            return "-"
        metric = COMPARED[cell.metric]
        mean = metric.show(cell.mean)
        return (
            (markup.bold.format(mean) if cell.best else mean)
            + markup.marks[cell.mark]
            + metric.show_sd(cell)
        )

    def count(cell: Cell) -> str:  # the same for all methods
        return (
            f"{cell.n} ({cell.n_union} u)"
            if cell.n_union and cell.leaf in found.leaves
            else str(cell.n)
        )

    rows = _metric_rows(
        found, markup, (((cell.method,), cell, score(cell)) for cell in found.cells)
    )
    return rows + _metric_rows(found, markup, ((("n",), cell, count(cell)) for cell in found.cells))


def _interval_rows(found: Comparison, markup: _Markup) -> list[list[str]]:
    def show(of: Cell | PairedTest, mean: float | None, sign: str = "") -> str:
        row = COMPARED[of.metric]
        values = [
            round(row.scale * value, row.digits) + 0.0
            for value in (mean, of.low, of.high)
            if value is not None
        ]
        texts = [
            f"{value:{sign}.{row.digits}f}" for value in values
        ]  # + 0.0, because -0.0 is no number to print
        return markup.text(
            f"{texts[0]} [{texts[1]}, {texts[2]}]" if len(texts) == 3 else "".join(texts) or "-"
        )

    rows = _metric_rows(
        found, markup, (((of.method,), of, show(of, of.mean)) for of in found.cells)
    )
    pairs = (((of.b, of.a), of, show(of, of.mean_difference, "+")) for of in found.tests)
    return rows + _metric_rows(found, markup, pairs)


def _pair_rows(found: Comparison, markup: _Markup) -> list[list[str]]:
    return _metric_rows(
        found, markup, (((test.b, test.a), test, _test(test, markup)) for test in found.tests)
    )


def _test(test: PairedTest, markup: _Markup) -> str:
    if test.p is None or test.p_adjusted is None or test.effect is None:
        return f"equal, n={test.n_pairs}" if test.n_pairs else "-"
    mark = ("better" if test.better == test.b else "worse") if test.significant else ""
    effect = markup.formula.format(f"r={test.effect:+.2f}")
    return f"{markup.text(p_text(test.p_adjusted))}{markup.marks[mark]}, {effect}, n={test.n_pairs}"


def _detection_rows(found: Comparison, markup: _Markup) -> list[list[str]]:
    cells = {
        (of.method, of.leaf): f"{of.found} / {of.missed} / {of.invented}" for of in found.detection
    }
    return [
        [markup.text(method), *(cells[method, leaf] for leaf in found.structures)]
        for method in found.methods
    ]


def _rank_rows(found: Comparison, markup: _Markup) -> list[list[str]]:
    cells = {
        (of.method, of.metric): markup.text(f"{of.mean_rank:.2f} ({100 * of.first:.0f} %)")
        for of in found.ranks
    }
    rows = [
        [markup.text(method), *(cells.get((method, metric), "-") for metric in found.metrics)]
        for method in found.methods
    ]
    critical = [found.critical_difference.get(metric) for metric in found.metrics]
    return [
        *rows,
        ["critical difference", *("-" if value is None else f"{value:.2f}" for value in critical)],
    ]


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
        columns = "l" * table.names + "c" * (len(table.head) - table.names)
        head = [r"\begin{table}[tb]", rf"\caption{{{_caption(table)}}}", SHRINK]
        head += [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_row(table.head),
            r"\midrule",
        ]
        parts.append("\n".join([*head, *body, r"\bottomrule", r"\end{tabular}}", r"\end{table}"]))
    if any(character > "\u017f" for part in parts for character in part):
        hint = "use XeLaTeX or LuaLaTeX with a font that has them"
        parts.insert(0, f"% has characters that pdfLaTeX does not know: {hint}")
    return "% needs \\usepackage{booktabs,graphicx,longtable}\n" + "\n\n".join(parts) + "\n"


def _long_table(table: _Table) -> str:
    head = [
        r"{\tiny\setlength{\tabcolsep}{3pt}",
        rf"\begin{{longtable}}{{l{'c' * (len(table.head) - 1)}}}",
    ]
    head += [
        rf"\caption{{{_caption(table)}}}\\",
        r"\toprule",
        _latex_row(table.head),
        r"\midrule",
        r"\endhead",
    ]
    return "\n".join([*head, *map(_latex_row, table.rows), r"\bottomrule", r"\end{longtable}}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _caption(table: _Table) -> str:
    return " ".join(_latex_text(line).replace("{*}", "$^{*}$") for line in table.notes)
