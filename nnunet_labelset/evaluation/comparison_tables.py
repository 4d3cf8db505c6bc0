"""Tables of a comparison: scores with marks, intervals, pairs of methods, detection and ranks, on
screen, as Markdown, LaTeX and CSV.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from textwrap import wrap

from nnunet_labelset.evaluation.compare import BEST_NOTE, EFFECT_NOTE, INTERVALS, p_text
from nnunet_labelset.evaluation.metric import COMPARED, KNOWN_WRONG, METRICS, Metric
from nnunet_labelset.evaluation.results import Cell, Comparison, PairedTest
from nnunet_labelset.evaluation.statistics import Description, Difference
from nnunet_labelset.io.tables import csv_text
from nnunet_labelset.io.text import aligned, spoken_names

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
# Characters beside each other on a page of LaTeX's article, in print of 7 points or more.
PAGE, LONG_PAGE = 98, 84  # shrunk, and in \scriptsize
HEADING = 16  # characters of a line of a heading
# what is wider than the page
SHRINK = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"
INTERVAL_NOTE = (
    f"Means with {INTERVALS}, then the mean difference of every pair of methods (first minus "
    "second)."
)
PAIR_NOTE = (
    "Every pair of methods: p, marked if the first method is better (*) or worse (†) than the "
    f"second; r; n pairs. {EFFECT_NOTE}"
)
DETECTION_NOTE = (
    "Detection: cases in which a label was found (with overlap) / missed / invented, of those in "
    "which it is annotated."
)
RANK_NOTE = (
    "Mean rank over cases and labels (1 is best), and share of bootstrap samples of the cases in "
    "which it is first."
)
GROUP_NOTE = (
    f"Groups of cases: means over labels with {INTERVALS}; then the difference to the baseline, "
    "its interval and p, not corrected for the number of groups."
)
MEAN = "Mean"
CONTINUED = ("(continued)",)


@dataclass(frozen=True)
class _Markup:
    """What differs between the three forms."""

    text: Callable[[str], str]
    bold: str
    marks: dict[str, str]
    formula: str
    stack: Callable[[Sequence[str]], str]  # the lines of a heading


def _markdown_text(text: str) -> str:
    return "".join(
        f"\\{character}" if character in "\\`*_|<>[]" else character
        for character in " ".join(text.split())
    )


def _latex_text(text: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in text)
    # pdfLaTeX knows letters with accents, no accents
    whole = unicodedata.normalize("NFC", " ".join(printable.split()))
    return "".join(LATEX_SPECIAL.get(character, character) for character in whole)


def _plain_text(text: str) -> str:
    return " ".join(text.split())


def _latex_stack(lines: Sequence[str]) -> str:
    return r"\shortstack{" + r"\\".join(lines) + "}"


SCREEN = _Markup(
    text=_plain_text,
    bold="{}",
    marks={"better": "*", "worse": "†", "": ""},
    formula="{}",
    stack="\n".join,
)
MARKDOWN = _Markup(
    text=_markdown_text,
    bold="**{}**",
    marks={"better": "\\*", "worse": "†", "": ""},
    formula="{}",
    stack=" ".join,
)
LATEX = _Markup(
    text=_latex_text,
    bold=r"\textbf{{{}}}",
    marks={"better": "$^{*}$", "worse": r"$^{\dag}$", "": ""},
    formula="${}$",
    stack=_latex_stack,
)


@dataclass(frozen=True)
class _Table:
    """Rows below a head; where the first column is not empty, a new group begins."""

    notes: Sequence[str]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    has_labels: bool = True  # in its columns: it may be turned

    @property
    def names(self) -> int:
        """The columns that say what a row is about."""
        return 2 if self.head[1] == "Metric" else 1

    def turned(self, markup: _Markup) -> _Table:
        """Return the table with labels in rows; method and metric become the heading."""
        head, last = [""], ""
        for row in self.rows:
            last = row[0] or last
            lines: list[str] = []
            for name in last.replace(" vs. ", " vs.\n").split("\n"):  # no name has a line break
                lines += wrap(name, HEADING, break_long_words=False, break_on_hyphens=False)
            head.append(markup.stack([*lines, *row[1 : self.names]]))
        columns = list(zip(self.head, *self.rows, strict=True))
        return _Table(self.notes, head, columns[self.names :], has_labels=False)

    def widths(self) -> list[int]:
        """Return the printed characters of every column, with the space between columns."""
        columns = zip(self.head, *self.rows, strict=True)
        return [max(map(_printed_width, column)) + 3 for column in columns]

    def pages(self) -> Iterator[_Table]:
        """As many columns at once as a page is wide; those that say what a row is about on each."""
        widths, names = self.widths(), self.names
        start, notes = names, self.notes
        while start < len(widths):
            stop = start + 1
            while (
                stop < len(widths)
                and sum(widths[:names]) + sum(widths[start : stop + 1]) <= LONG_PAGE
            ):
                stop += 1
            rows = [[*row[:names], *row[start:stop]] for row in self.rows]
            yield _Table(notes, [*self.head[:names], *self.head[start:stop]], rows, False)
            start, notes = stop, CONTINUED


def _printed_width(cell: str) -> int:
    """Characters of the longest line, without commands and braces."""
    lines = cell.removeprefix(r"\shortstack").split(r"\\")
    return max(len(re.sub(r"\\[a-z]+|[{}$^\\]", "", line)) for line in lines)


def _tables(compared: Comparison, markup: _Markup) -> list[_Table]:
    shown = spoken_names(compared.structures)
    labels = [markup.text(shown[name]) for name in compared.leaves]
    unions = [markup.text(shown[name]) for name in compared.unions]
    columns = [*labels, MEAN, *unions, KNOWN_WRONG.title]
    tables = [
        _Table(compared.notes, ["Model", "Metric", *columns], _score_rows(compared, markup)),
        _Table([INTERVAL_NOTE], ["Model", "Metric", *columns], _interval_rows(compared, markup)),
        _Table([PAIR_NOTE], ["Pair", "Metric", *columns], _pair_rows(compared, markup)),
        _Table([DETECTION_NOTE], ["Model", *labels, *unions], _detection_rows(compared, markup)),
    ]
    if compared.groups:
        heads = ["Group", "Metric", *map(markup.text, compared.methods)]
        tables.append(_Table([GROUP_NOTE], heads, _group_rows(compared, markup), False))
    if compared.ranks:
        heads = [METRICS[name].title for name in compared.metrics]
        rows = _rank_rows(compared, markup)
        tables.append(_Table([RANK_NOTE], ["Model", *heads], rows, False))
    return tables


def _metric_rows(
    compared: Comparison,
    markup: _Markup,
    shown: Iterable[tuple[tuple[str, ...], Cell | PairedTest, str]],
) -> list[list[str]]:
    """Return a row per metric from methods (one, or a pair), cell or test, and its text; the first
    one has the known-wrong voxels.
    """
    groups: dict[tuple[str, ...], dict[tuple[str | None, str], str]] = {}
    for methods, entry, text in shown:
        groups.setdefault(methods, {})[entry.leaf, entry.metric] = text
    structures = [*compared.leaves, None, *compared.unions]
    rows = []
    for methods, texts in groups.items():
        name = " vs. ".join(map(markup.text, methods))
        wrong = texts[None, KNOWN_WRONG.name]
        for metric in compared.metrics:
            scores = [texts[leaf, metric] for leaf in structures]
            rows.append([name, METRICS[metric].title, *scores, wrong])
            name = wrong = ""  # in the first row only
    return rows


def _score_rows(compared: Comparison, markup: _Markup) -> list[list[str]]:
    def score(cell: Cell) -> str:
        if cell.mean is None:
            return "-"
        metric = COMPARED[cell.metric]
        mean = metric.show(cell.mean)
        bold = markup.bold.format(mean) if cell.best else mean
        return bold + markup.marks[cell.mark] + metric.show_sd(cell)

    cells = compared.cells
    rows = _metric_rows(compared, markup, (((cell.method,), cell, score(cell)) for cell in cells))
    counts = ((("n",), cell, str(cell.n)) for cell in cells)  # the same for all methods
    return rows + _metric_rows(compared, markup, counts)


def _interval_rows(compared: Comparison, markup: _Markup) -> list[list[str]]:
    def show(entry: Cell | PairedTest, mean: float | None, sign: str = "") -> str:
        return markup.text(interval_text(COMPARED[entry.metric], mean, entry, sign))

    def difference(test: PairedTest) -> str:
        words = {True: " non-inferior", False: " not shown to be non-inferior", None: ""}
        return show(test, test.mean_difference, "+") + words[test.non_inferior]

    means = (((cell.method,), cell, show(cell, cell.mean)) for cell in compared.cells)
    pairs = (((test.b, test.a), test, difference(test)) for test in compared.tests)
    return _metric_rows(compared, markup, means) + _metric_rows(compared, markup, pairs)


def _pair_rows(compared: Comparison, markup: _Markup) -> list[list[str]]:
    tests = (((test.b, test.a), test, _test(test, markup)) for test in compared.tests)
    return _metric_rows(compared, markup, tests)


def _test(test: PairedTest, markup: _Markup) -> str:
    if test.p is None or test.p_adjusted is None or test.effect is None:
        return f"equal, n={test.n_pairs}" if test.n_pairs else "-"
    mark = ("better" if test.better == test.b else "worse") if test.significant else ""
    effect = markup.formula.format(f"r={test.effect:+.2f}")
    return f"{markup.text(p_text(test.p_adjusted))}{markup.marks[mark]}, {effect}, n={test.n_pairs}"


def _detection_rows(compared: Comparison, markup: _Markup) -> list[list[str]]:
    texts = {
        (entry.method, entry.leaf): f"{entry.found} / {entry.missed} / {entry.invented}"
        for entry in compared.detection
    }
    return [
        [markup.text(method), *(texts[method, leaf] for leaf in compared.structures)]
        for method in compared.methods
    ]


def _group_rows(compared: Comparison, markup: _Markup) -> list[list[str]]:
    """Return a row per group and metric, the methods side by side."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for score in compared.groups:
        metric = COMPARED[score.metric]
        words = f"{interval_text(metric, score.mean, score)} (n={score.n})"
        if score.difference is not None:
            words += f"; {_group_difference(metric, score.difference)}"
        rows.setdefault((score.column, score.group, score.metric), []).append(markup.text(words))
    lines = []
    last = ""
    for (column, group, name), cells in rows.items():
        title = markup.text(f"{column}: {group or '(not known)'}")
        lines.append(["" if title == last else title, METRICS[name].title, *cells])
        last = title
    return lines


def _group_difference(metric: Metric, difference: Difference) -> str:
    shown = interval_text(metric, difference.mean_difference, difference, "+")
    return shown if difference.p is None else f"{shown}, p={p_text(difference.p)}"


def interval_text(
    metric: Metric, mean: float | None, ends: Description | Difference, sign: str = ""
) -> str:
    """Return `91.5 [90.1, 92.9]`, without an interval where there are too few cases."""
    if ends.low is None:
        return metric.show(mean, sign)
    low, high = metric.show(ends.low, sign), metric.show(ends.high, sign)
    return f"{metric.show(mean, sign)} [{low}, {high}]"


def _rank_rows(compared: Comparison, markup: _Markup) -> list[list[str]]:
    texts = {
        (rank.method, rank.metric): markup.text(f"{rank.mean_rank:.2f} ({100 * rank.first:.0f} %)")
        for rank in compared.ranks
    }
    return [
        [markup.text(method), *(texts.get((method, metric), "-") for metric in compared.metrics)]
        for method in compared.methods
    ]


def screen_tables(compared: Comparison, width: int) -> str:
    """Return the tables as aligned text; those wider than the screen have labels in rows."""
    parts = []
    for number, table in enumerate(_tables(compared, SCREEN)):
        text = _screen_text(table)
        if len(text.partition("\n")[0]) > width:
            text = _screen_text(table.turned(SCREEN) if table.has_labels else table, width)
        shown = [line for line in table.notes if line != BEST_NOTE]  # no bold on a screen
        if number:
            parts.append(f"{shown[0]}\n\n{text}")
        else:
            remarks = "\n".join(f"- {line}" for line in shown)
            parts.append(f"{text}\n\n{remarks}")
    return "\n\n".join(parts) + "\n"


def _screen_text(table: _Table, width: int | None = None) -> str:
    """Return a table as aligned text; headings may have several lines."""
    stacks = [cell.split("\n") for cell in table.head]
    height = max(map(len, stacks))
    padded = [[""] * (height - len(lines)) + lines for lines in stacks]
    return "\n".join(aligned([*zip(*padded, strict=True), *table.rows], table.names, width))


def markdown_tables(compared: Comparison) -> str:
    parts = []
    for number, table in enumerate(_tables(compared, MARKDOWN)):
        rule = ["---" if column < 2 else "---:" for column in range(len(table.head))]
        lines = "\n".join(f"| {' | '.join(line)} |" for line in [table.head, rule, *table.rows])
        if number:
            parts.append(f"{_markdown_text(' '.join(table.notes))}\n\n{lines}")
        else:
            remarks = "\n".join(f"- {_markdown_text(line)}" for line in table.notes)
            parts.append(f"{lines}\n\n{remarks}")
    return "\n\n".join(parts) + "\n"


def latex_tables(compared: Comparison) -> str:
    """Return LaTeX. A table that is too wide for legible print has labels (or groups) in rows, on
    several pages, with as many methods in each as a page is wide.
    """
    parts = []
    for table in _tables(compared, LATEX):
        if sum(table.widths()) <= PAGE:
            parts.append(_short_table(table))
            continue
        long_table = table.turned(LATEX) if table.has_labels else table
        parts += [_long_table(page) for page in long_table.pages()]
    if any(character > "\u017f" for character in "".join(parts)):
        hint = "use XeLaTeX or LuaLaTeX with a font that has them"
        parts.insert(0, f"% has characters that pdfLaTeX does not know: {hint}")
    return "% needs \\usepackage{booktabs,graphicx,longtable}\n" + "\n\n".join(parts) + "\n"


def _short_table(table: _Table) -> str:
    body: list[str] = []
    for row in table.rows:
        if row[0] and body:
            body.append(r"\midrule")
        body.append(_latex_row(row))
    columns = "l" * table.names + "c" * (len(table.head) - table.names)
    head = [
        r"\begin{table}[tb]",
        rf"\caption{{{_caption(table)}}}",
        SHRINK,
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _latex_row(table.head),
        r"\midrule",
    ]
    return "\n".join([*head, *body, r"\bottomrule", r"\end{tabular}}", r"\end{table}"])


def _long_table(table: _Table) -> str:
    """Return a table over several pages; its notes stand on the first one only."""
    columns = "l" * table.names + "c" * (len(table.head) - table.names)
    heading = [r"\toprule", _latex_row(table.head), r"\midrule"]
    head = [
        *([r"\addtocounter{table}{-1}"] if table.notes == CONTINUED else []),
        r"{\scriptsize\setlength{\tabcolsep}{3pt}",
        rf"\begin{{longtable}}{{{columns}}}",
        rf"\caption{{{_caption(table)}}}\\",
        *heading,
        r"\endfirsthead",
        rf"\caption[]{{{CONTINUED[0]}}}\\",
        *heading,
        r"\endhead",
    ]
    return "\n".join([*head, *map(_latex_row, table.rows), r"\bottomrule", r"\end{longtable}}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _caption(table: _Table) -> str:
    return " ".join(_latex_text(line).replace("{*}", "$^{*}$") for line in table.notes)


DESCRIPTION = tuple(field.name for field in fields(Description))
CELL = ("method", "leaf", "metric", *DESCRIPTION, "n_absent", "best", "mark")
TESTED = tuple(field.name for field in fields(Difference))
TEST_COLUMNS = (
    "a",
    "b",
    "baseline",
    "leaf",
    "metric",
    *TESTED,
    "p_adjusted",
    "significant",
    "better",
    "non_inferior",
)


def comparison_csv(compared: Comparison) -> tuple[str, str]:
    """Return the cells, then the tests; an empty label is the whole case."""
    heads = {"leaf": "label"}
    return (
        csv_text(
            [heads.get(name, name) for name in CELL],
            ([getattr(cell, name) for name in CELL] for cell in compared.cells),
        ),
        csv_text(
            [heads.get(name, name) for name in TEST_COLUMNS],
            ([getattr(test, name) for name in TEST_COLUMNS] for test in compared.tests),
        ),
    )
