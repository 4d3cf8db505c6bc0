"""`nnunet_labelset coverage`: the paper's Table 1, in how many cases of each group every leaf is
annotated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.tables import column_of_cases, csv_text
from nnunet_labelset.io.text import aligned
from nnunet_labelset.nnunet.raw import TEST, TRAINING, raw_cases, training_cases

TEXT = "text"
FORMATS = {TEXT: ".txt", "markdown": ".md", "csv": ".csv"}
PICTURES = (".png", ".pdf", ".svg")
WIDEST = 100  # a text table that is wider has the labels in its rows
MOST_ON_SCREEN = 40
HEADING_WIDTH = 20
ALL = "all"
COPIES = "completed"  # what a model said is not annotation


@dataclass(frozen=True)
class CoverageRow:
    """One group: its number of cases, and in how many of them each foreground leaf is annotated."""

    part: str
    group: str
    cases: int
    counts: Mapping[str, int]


def coverage_table(
    contract: Contract,
    cases: Iterable[str] | None = None,
    groups: Mapping[str, str] | None = None,
    part: str = "",
) -> list[CoverageRow]:
    """Rows of Table 1 for `cases` (default: all of the contract), and a row of sums if there are
    several groups.

    `groups` says to which group a case belongs; without it, that is its protocol.
    A leaf counts as annotated where `Contract.annotated` says so. Background is left out.
    """
    members: dict[str, list[str]] = (
        {protocol: [] for protocol in contract.protocols} if groups is None else {}
    )
    chosen = list(contract.cases if cases is None else cases)
    contract.require_cases(chosen)
    for case in chosen:
        group = contract.protocol_name(case) if groups is None else groups.get(case, "(no entry)")
        members.setdefault(group, []).append(case)
    members = {group: names for group, names in members.items() if names}
    if len(members) > 1:
        members[ALL] = chosen
    rows = []
    for group, names in members.items():
        # of leaves and, after them, of regions that are no leaf of the same name
        counts = contract.coverage(names)
        del counts[contract.leaf_names[0]]
        rows.append(CoverageRow(part, group, len(names), counts))
    return rows


def format_table(rows: Sequence[CoverageRow], style: str = "text") -> str:
    """The table as `text`, `markdown` or `csv`, with a newline at the end."""
    if style not in FORMATS:
        raise LabelSetError(
            f"Expected the format to be one of {', '.join(FORMATS)}, but got {style!r}"
        )
    if not rows:
        return "no cases\n"
    name_columns = ["part", "group"] if any(row.part for row in rows) else ["group"]
    heading = [*name_columns, "cases", *rows[0].counts]
    cells = []
    for row in rows:
        names = [getattr(row, column) for column in name_columns]
        cells.append([*names, str(row.cases), *map(str, row.counts.values())])
    if style == "csv":
        return csv_text(heading, cells)
    if style == "markdown":
        return _markdown(heading, cells, len(name_columns))
    text_table = _align([heading, *cells], len(name_columns))
    if max(map(len, text_table.splitlines())) > WIDEST:
        groups = ["group", *(" ".join(line[: len(name_columns)]) for line in cells)]
        columns = list(zip(heading, *cells, strict=True))[len(name_columns) :]
        text_table = _align([groups, *columns], 1, WIDEST)
    return text_table


def _markdown(heading: Sequence[str], cells: Sequence[Sequence[str]], names: int) -> str:
    rule = ["---"] * names + ["---:"] * (len(heading) - names)
    lines = []
    for line in (heading, rule, *cells):
        escaped = (cell.replace("|", "\\|") for cell in line)
        lines.append(f"| {' | '.join(escaped)} |\n")
    return "".join(lines)


def shortened(rows: Sequence[CoverageRow]) -> tuple[list[CoverageRow], str]:
    """The rows for a screen: of very many groups only the sums, and a note that says so."""
    left = [row for row in rows if row.group == ALL]
    if len(rows) <= MOST_ON_SCREEN or not left:
        return list(rows), ""
    return left, f"{len(rows) - len(left)} groups are not shown: -o FILE writes all of them\n"


def _align(cells: Sequence[Sequence[str]], names: int, width: int | None = None) -> str:
    """Columns under headings of several lines; the first `names` columns to the left, numbers to
    the right. What is wider than `width` continues below.
    """
    heading = [
        _heading_lines(cell) if column >= names else [cell] for column, cell in enumerate(cells[0])
    ]
    height = max(map(len, heading))
    lines = [
        [([""] * (height - len(words)) + words)[row] for words in heading] for row in range(height)
    ]
    lines += [list(line) for line in cells[1:]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    lines.insert(height, ["-" * width for width in widths])
    return "".join(f"{line}\n" for line in aligned(lines, names, width))


def _heading_lines(name: str) -> list[str]:
    """Return a label broken at `_`, and the name of a group broken between its labels."""
    words = re.split(r" |(?=\+)", name)
    if len(words) == 1:
        return name.split("_")
    lines = [words[0]]
    for word in words[1:]:
        separator = "" if word.startswith("+") else " "
        if len(lines[-1] + separator + word) <= HEADING_WIDTH:
            lines[-1] += separator + word
        else:
            lines.append(word)
    return lines


def describe_label_sets(contract: Contract, most: int | None = None) -> str:
    """One line for every value that stands for several leaves: what a count of 0 in the table may
    mean.
    """
    lines = []
    for name, protocol in contract.protocols.items():
        for value, labels in zip(contract.value_names, protocol.sets, strict=True):
            if 1 < len(labels) < contract.num_leaves:
                words = contract.words(labels)
                lines.append(f"  {name}: '{value}' voxels may be {words}\n")
    if not lines:
        return ""
    heading = (
        "Labels that were not drawn separately are not counted above. Where they may be hidden:\n"
    )
    if most is not None and len(lines) > most:
        lines[most:] = [f"  ... {len(lines) - most} more: -o FILE writes all of them\n"]
    return heading + "".join(lines)


def dataset_coverage(
    folder: Path,
    contract: Contract,
    dataset_json: Mapping[str, Any],
    table: str | None = None,
    column: str | None = None,
) -> list[CoverageRow]:
    """Rows for the training cases of a raw data set, for the copies that a model has completed, and
    for its test cases as far as they have a protocol.
    """
    training, cases = training_cases(folder, dataset_json), raw_cases(folder, dataset_json)
    test = [
        case.name
        for case in cases
        if case.part == TEST and case.label and case.name in contract.cases
    ]
    groups = column_of_cases(table, column, training + test) if table and column else None
    copies = originals(dataset_json)
    annotated = [case for case in training if case not in copies]
    parts = {TRAINING: annotated, COPIES: list(copies), TEST: test}
    parts = {part: names for part, names in parts.items() if names}
    rows = []
    for part, names in parts.items():
        rows += coverage_table(contract, names, groups, part if len(parts) > 1 else "")
    return rows
