"""The page around a report: style for screen and paper, a script that sorts tables, and escaped building blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
:root { --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --shade: #f3f5f8; --accent: #0b5cad; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 15px/1.5 system-ui, Helvetica, Arial, sans-serif; }
main, header, nav { max-width: 1180px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 28px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 40px 0 8px; padding-top: 8px; border-top: 2px solid var(--line); }
h3 { font-size: 15px; margin: 22px 0 6px; overflow-wrap: anywhere; }
p { margin: 6px 0; max-width: 80ch; }
p.note, .lead { color: var(--soft); }
a { color: var(--accent); }
nav { margin-top: 12px; }
nav a { margin-right: 14px; white-space: nowrap; }
.scroll { overflow-x: auto; margin: 10px 0; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { vertical-align: bottom; background: var(--shade); border-bottom: 2px solid #8c959f; }
th.text, td.text { text-align: left; }
td.name { min-width: 13ch; max-width: 34ch; white-space: normal; overflow-wrap: anywhere; text-align: left; }
th button { all: unset; cursor: pointer; font-weight: 600; white-space: pre-line; }
th button:focus-visible { outline: 2px solid var(--accent); }
th[aria-sort] button::after { content: " \\25B2"; font-size: 9px; }
th[aria-sort="descending"] button::after { content: " \\25BC"; }
tbody tr:hover { background: var(--shade); }
tr.first td { border-top: 2px solid #8c959f; }
.best { font-weight: 700; }
.mark { font-weight: 700; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(350px, 1fr)); gap: 12px 20px; }
.plots.two { grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); }
figure { margin: 0; }
svg { max-width: 100%; height: auto; font: 11px system-ui, Helvetica, Arial, sans-serif; }
svg .plot-title { font-size: 13px; font-weight: 600; }
svg .unit { text-anchor: end; fill: var(--soft); }
svg .tick { text-anchor: middle; fill: var(--soft); }
svg .tick-right { text-anchor: end; fill: var(--soft); }
svg .tick-left { fill: var(--soft); }
svg .grid { stroke: #e3e7ec; }
svg .box { fill: #dfe4ea; stroke: #8c959f; }
svg .median { stroke: #1b1f24; stroke-width: 2.5; }
svg polyline { fill: none; stroke-width: 1.3; stroke-opacity: 0.75; stroke-linejoin: round; }
svg .train { stroke: #0072B2; }
svg .val { stroke: #D55E00; stroke-dasharray: 7 2; }
svg .pseudo { stroke: #009E73; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 8px 0; font-size: 13.5px; }
.chip { display: inline-block; width: 15px; height: 15px; margin-right: 6px; vertical-align: -2px; }
.chip { border: 1px solid #57606a; }
.line { display: inline-block; width: 24px; margin-right: 6px; vertical-align: 4px; border-top: 2px solid; }
.hatch { background: repeating-linear-gradient(135deg, #fff 0 3px, #111 3px 4px, #777 4px 7px); }
.case { break-inside: avoid; margin-bottom: 26px; }
.pictures { display: grid; grid-template-columns: 1fr 1fr; gap: 8px 14px; }
.pictures img { width: 100%; height: auto; display: block; background: #000; }
figcaption { font-size: 13px; overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: 13px; margin: 40px 0 24px; }
@page { size: A4; margin: 12mm; }
@media print {
  body { font-size: 10.5px; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  main, header { max-width: none; padding: 0; }
  nav { display: none; }
  a { color: inherit; text-decoration: none; }
  h2 { break-after: avoid; margin-top: 18px; }
  h3 { break-after: avoid; }
  .scroll { overflow: visible; }
  table { font-size: 8.5px; width: 100%; }
  th, td { padding: 2px 4px; white-space: normal; }
  thead { display: table-header-group; }
  tr, figure { break-inside: avoid; }
  .plots, .plots.two { grid-template-columns: 1fr 1fr; gap: 6px 12px; }
  h1 { font-size: 20px; }
  h2 { font-size: 15px; }
  h3 { font-size: 12px; }
  figcaption, .legend { font-size: 9px; }
  td.name { min-width: 0; }
  th[aria-sort] button::after { content: ""; }
}
"""

# Sorts by data-v where a cell has one, numbers before text, empty cells last; a second click turns the order round.
SCRIPT = """
document.querySelectorAll("table.sortable").forEach(function (table) {
  table.querySelectorAll("th button").forEach(function (button) {
    button.addEventListener("click", function () {
      var head = button.parentNode, column = head.cellIndex, body = table.tBodies[0];
      var down = head.getAttribute("aria-sort") === "ascending";
      var value = function (row) {
        var cell = row.cells[column];
        return cell.hasAttribute("data-v") ? cell.getAttribute("data-v") : cell.textContent.trim();
      };
      var rows = Array.prototype.slice.call(body.rows);
      rows.sort(function (a, b) {
        var x = value(a), y = value(b);
        if (x === "" || y === "") { return (x === "") - (y === ""); }
        var order = isNaN(x) || isNaN(y) ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
        return down ? -order : order;
      });
      table.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.forEach(function (row) { row.classList.remove("first"); body.appendChild(row); });
    });
  });
});
"""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: HTML that is already escaped, and what it is sorted by."""

    html: str
    value: str = ""
    kind: str = ""  # classes
    style: str = ""


def text(content: object, kind: str = "name") -> Cell:
    return Cell(escape(str(content)), str(content), kind)


def number(content: float | int | None, digits: int = 1, shown: str | None = None, kind: str = "") -> Cell:
    """A number that sorts by its full value; None is an empty cell that sorts last."""
    if content is None:
        return Cell("&ndash;", "", kind)
    return Cell(escape(f"{content:.{digits}f}" if shown is None else shown), repr(content), kind)


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    text_columns: int = 1,
    first: Sequence[int] = (),
) -> str:
    """A sortable table; `first` are the rows that begin a group and get a line above."""
    head = "".join(
        f'<th scope="col"{" class=text" if index < text_columns else ""}><button>{escape(name)}</button></th>'
        for index, name in enumerate(columns)
    )
    lines = []
    for index, row in enumerate(rows):
        cells = "".join(
            "<td"
            + (f' class="{cell.kind}"' if cell.kind else "")
            + (f' style="{escape(cell.style)}"' if cell.style else "")
            + f' data-v="{escape(cell.value)}">{cell.html}</td>'
            for cell in row
        )
        lines.append(f"<tr{' class=first' if index in first else ''}>{cells}</tr>")
    return (
        f'<div class="scroll"><table class="sortable" aria-label="{escape(caption)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def legend(items: Sequence[tuple[str, str]]) -> str:
    """Names with a coloured square; a colour `hatch` is drawn as stripes, `line: ...` as a line."""
    parts = []
    for colour, name in items:
        if colour == "hatch":
            sign = '<span class="chip hatch"></span>'
        elif colour.startswith("line:"):
            sign = f'<span class="line" style="border-top:{colour[5:]}"></span>'
        else:
            sign = f'<span class="chip" style="background:{colour}"></span>'
        parts.append(f"<span>{sign}{escape(name)}</span>")
    return f'<div class="legend">{"".join(parts)}</div>'


def page(title: str, lead: str, sections: Sequence[tuple[str, str, str]], footer: str) -> str:
    """The whole document; `sections` are `(anchor, heading, HTML)`. Its policy forbids to load anything else."""
    links = "".join(f'<a href="#{anchor}">{escape(heading)}</a>' for anchor, heading, _ in sections)
    body = "".join(
        f'<section id="{anchor}"><h2>{escape(heading)}</h2>{html}</section>' for anchor, heading, html in sections
    )
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f'<header><h1>{escape(title)}</h1><div class="lead">{lead}</div></header>'
        f'<nav aria-label="Sections">{links}</nav>'
        f"<main>{body}<footer>{footer}</footer></main><script>{SCRIPT}</script></body></html>\n"
    )
