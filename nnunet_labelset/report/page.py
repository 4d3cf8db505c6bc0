"""What the sections of a report share: the evaluations with what was asked for, and the blocks of
the page. All text is escaped by Markup, whatever cases or methods are called.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup, escape

from nnunet_labelset import __version__
from nnunet_labelset.contract import Contract
from nnunet_labelset.evaluation.averages import mean_column
from nnunet_labelset.evaluation.metric import METRICS, SHOWN, Metric
from nnunet_labelset.evaluation.results import Comparison, Evaluation, Score
from nnunet_labelset.evaluation.statistics import Description
from nnunet_labelset.nnunet.logs import Curves

WIDE = 10  # more labels than this stand in rows, not in columns


@dataclass(frozen=True)
class Report:
    """One evaluation or several of the same cases."""

    results: Mapping[str, Evaluation]
    sources: Mapping[str, str]
    folder: Path  # where the report will stand, for the links
    contract: Contract | None = None
    no_contract: str = ""  # why there is none
    compared: Comparison | None = None
    stale: Sequence[str] = ()
    models: Mapping[str, Sequence[Curves]] = field(default_factory=dict)
    worst: int = 3
    wanted_cases: Sequence[str] = ()

    @property
    def methods(self) -> list[str]:
        return list(self.results)

    @property
    def first(self) -> Evaluation:
        return next(iter(self.results.values()))

    @cached_property
    def cases(self) -> list[str]:
        """Those that all methods have."""
        return sorted(set.intersection(*(set(result.by_case) for result in self.results.values())))

    @cached_property
    def structures(self) -> list[str]:
        """Return labels, then unions and regions."""
        return list(
            dict.fromkeys(name for result in self.results.values() for name in result.structures)
        )

    @property
    def metrics(self) -> list[Metric]:
        """What is shown, of what all evaluations have."""
        return [
            METRICS[name]
            for name in SHOWN
            if all(name in of.settings.metrics for of in self.results.values())
        ]

    @property
    def unit(self) -> str:
        return self.first.unit

    def score(self, method: str, case: str, structure: str) -> Score | None:
        return self.results[method].score(case, structure)

    def value(self, method: str, case: str, structure: str, metric: str) -> float | None:
        return self.results[method].value(case, structure, metric)

    def means(self, metric: str) -> dict[str, Description]:
        """Return the one mean of every method: over the labels of a case, then over the cases."""
        if self.compared is not None:
            return {method: self.compared.cell(method, None, metric) for method in self.methods}
        return {
            method: result.averages.overall.mean[metric] for method, result in self.results.items()
        }

    def case_mean(self, method: str, case: str) -> float | None:
        """Return the mean Dice over the labels that count in a case, as `evaluate` has it."""
        result = self.results[method]
        column = mean_column({method: result.by_case}, [case], result.leaves, METRICS["dice"])
        return next(iter(column.values[method]), None)

    @cached_property
    def best_method(self) -> str:
        """That with the best mean Dice, as the overview has it."""
        means = self.means("dice")
        return max(means, key=lambda method: means[method].mean or 0.0)


def asset(name: str) -> str:
    return (files("nnunet_labelset.report") / "assets" / name).read_text(encoding="utf-8")


ENVIRONMENT = Environment(autoescape=True, loader=FunctionLoader(asset))


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    body: Markup


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what it shows, and what it is sorted by if that differs."""

    html: Markup
    value: str = ""
    kind: str = ""  # classes; "row" makes it the header of its row
    style: str = ""


def _filled(template: str, **content: object) -> Markup:
    return Markup(ENVIRONMENT.get_template(template).render(content))


def page(title: str, lead: Sequence[object], sections: Sequence[Section]) -> str:
    """The whole document, which needs nothing else."""
    inside = {name: Markup(asset(name)) for name in ("page.css", "figures.css", "page.js")}
    return _filled(
        "page.html", title=title, lead=lead, sections=sections, version=__version__, inside=inside
    )


def join(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between).join(parts)  # type: ignore[arg-type]


def paragraph(content: object, kind: str = "") -> Markup:
    return (
        Markup('<p class="{}">{}</p>').format(kind, content)
        if kind
        else Markup("<p>{}</p>").format(content)
    )


def bullets(lines: Iterable[object], kind: str = "notes") -> Markup:
    return Markup('<ul class="{}">{}</ul>').format(
        kind, join(Markup("<li>{}</li>").format(line) for line in lines)
    )


def details(title: object, body: Markup) -> Markup:
    return Markup("<details><summary>{}</summary>{}</details>").format(title, body)


def folded(title: object, body: Markup, fold: bool) -> Markup:
    """Return a body, folded if it is long."""
    return details(title, body) if fold else body


def header(content: object) -> Cell:
    """The name of a row, read out with each of its cells."""
    return Cell(escape(content), "", "row")


def text(content: object, kind: str = "text") -> Cell:
    return Cell(escape(content), "", kind)


def number(
    content: float | int | None, digits: int = 1, shown: object = None, kind: str = ""
) -> Cell:
    """A number that sorts by its full value; None is a dash that sorts last."""
    if content is None:
        return Cell(Markup("&ndash;"), " ", kind)
    return Cell(escape(f"{content:.{digits}f}" if shown is None else shown), f"{content:.6g}", kind)


def table(
    caption: str,
    columns: Sequence[str],
    groups: Sequence[Sequence[Sequence[Cell]]],
    texts: int = 1,
    kind: str = "sortable",
) -> Markup:
    """A table; the first `texts` columns hold words, and a line separates groups of rows."""
    content = _filled("table.html", columns=columns, groups=groups, texts=texts, kind=kind)
    return scroll(f"Table: {caption}", content)  # not the name of its section, a landmark as well


def scroll(label: str, content: Markup) -> Markup:
    """An area that scrolls sideways, also with the keyboard."""
    return Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">{}</div>').format(
        label, content
    )


def figure(name: str, picture: Markup, caption: object = "") -> Markup:
    """A figure that can be saved under `name`."""
    return Markup('<figure data-name="{}">{}<figcaption>{}</figcaption></figure>').format(
        name, picture, caption
    )


def plots(figures: Iterable[Markup], kind: str = "plots") -> Markup:
    return Markup('<div class="{}">{}</div>').format(kind, join(figures))


def legend(items: Iterable[tuple[str, str]]) -> Markup:
    """Return names with a sign: a coloured square, stripes (`hatch`), the pattern of a kind of
    error (`pattern: KIND`), or a line (`line:STYLE`, on black `contour:STYLE`).
    """
    entries = (Markup("<li>{}{}</li>").format(_sign(sign), name) for sign, name in items)
    return Markup('<ul class="legend">{}</ul>').format(join(entries))


def _sign(sign: str) -> Markup:
    kind, _, style = sign.partition(":")
    if kind in ("line", "contour"):
        return Markup('<span class="{}" style="border-top:2px {}"></span>').format(kind, style)
    if kind == "pattern":
        return Markup('<span class="chip {}"></span>').format(style.strip())
    if kind == "hatch":
        return Markup('<span class="chip hatch"></span>')
    return Markup('<span class="chip" style="background:{}"></span>').format(sign)


def link(path: str | Path, folder: Path, shown: str | None = None) -> Markup:
    """A link to a file: relative inside the folder of the report, so that the folder can be
    moved.
    """
    absolute = Path(os.path.abspath(path))
    inside = absolute.is_relative_to(folder)
    address = quote(os.fsencode(absolute.relative_to(folder))) if inside else absolute.as_uri()
    return Markup('<a href="{}">{}</a>').format(address, shown or str(path))
