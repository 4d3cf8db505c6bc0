"""Tables about cases (`participants.tsv`, CSV of any spreadsheet): rows, and a column by case
name.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import read_bytes
from nnunet_labelset.io.text import some

DELIMITERS = "\t;,"
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
SEPARATOR_LINE = re.compile(r"\s*\"?sep=([;,\t])\"?\s*?(?:\r\n|\r|\n)")
QUOTED = re.compile(r'"[^"]*"')
WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # .xlsx, .ods and .xls
MOST_LINES_ABOVE = 20  # titles and dates that a spreadsheet has above the column names

Test = Callable[[list[str]], bool]  # of the cells of a line


class TableRow(dict[str, str]):
    """The cells of a line by column; `where` names the file and the line for messages."""

    where: str = ""


def read_table(path: str | Path, names_columns: Test = any) -> list[TableRow]:
    """Return the rows of a table whose first line names the columns; cells are stripped.

    `names_columns` recognises that line if others are above it, such as a title. Comma, semicolon
    and tab are recognised by that line, or by the line `sep=;` that Excel puts before it, UTF-8 and
    UTF-16 by the first bytes. Empty lines are left out, and so are empty cells after the last
    column.
    """
    lines, delimiter = _lines(path, names_columns)
    if len(lines) < 2:
        raise LabelSetError(
            f"{path}: the table is empty: expected a line of column names and one line per case"
        )
    columns = _without_empty_end(lines[0][1])
    if twice := [name for name, number in Counter(filter(None, columns)).items() if number > 1]:
        raise LabelSetError(f"{path}: two columns are called '{twice[0]}': rename one of them")
    rows = []
    for number, cells in lines[1:]:
        row = TableRow(zip(columns, cells, strict=False))
        row.where = f"{path}, line {number}"
        _check_length(cells, columns, row.where, delimiter)
        rows.append(row)
    return rows


def _lines(path: str | Path, names_columns: Test) -> tuple[list[tuple[int, list[str]]], str]:
    """Return the lines from the column names on that are not empty, as number and cells, and the
    delimiter.
    """
    text = _text(path)
    stated = SEPARATOR_LINE.match(text)
    header = _first_line(text, stated[1] if stated else None, names_columns)
    delimiter = stated[1] if stated else _delimiter(header)
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter != "\t"
    )
    try:
        lines = [(reader.line_num, [_cell(cell) for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise LabelSetError(
            f"{path}, line {reader.line_num}: not readable as a table: {error}"
        ) from None
    lines = [(number, cells) for number, cells in lines[1 if stated else 0 :] if any(cells)]
    headers = (row for row, (_, cells) in enumerate(lines) if names_columns(cells))
    return lines[next(headers, 0) :], delimiter


def _first_line(text: str, delimiter: str | None, names_columns: Test) -> str:
    """Return the line that names the columns: the first one, if none is recognised."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines[:MOST_LINES_ABOVE]:
        cells = line.split(delimiter or _delimiter(line))
        if names_columns([_cell(cell.strip(' "')) for cell in cells]):
            return line
    return next(iter(lines), "")


def _delimiter(line: str) -> str:
    return max(DELIMITERS, key=QUOTED.sub("", line).count)


def _check_length(cells: list[str], columns: list[str], where: str, delimiter: str) -> None:
    # No text holds a tab by mistake.
    too_many = delimiter != "\t" and len(_without_empty_end(cells)) > len(columns)
    if not too_many and len(cells) >= len(columns):
        return
    hint = "add the missing ones"
    if too_many:
        hint = (
            "put texts that hold the separator in quotes, and delete lines above the column names"
        )
    raise LabelSetError(
        f"{where}: expected {len(columns)} cells, one for every column, but got {len(cells)}: "
        f"{hint}"
    )


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]], delimiter: str = ",") -> str:
    """Return a CSV file; None is an empty field. A text that a spreadsheet would take for a formula
    gets an apostrophe in front.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", delimiter=delimiter)
    writer.writerow(map(_csv_field, columns))
    for row in rows:
        writer.writerow(map(_csv_field, row))
    return text.getvalue()


def _csv_field(field: Any) -> Any:
    if isinstance(field, float):
        return f"{field:.7g}"
    if isinstance(field, str) and field.lstrip("'").startswith(FORMULA_STARTS):
        return f"'{field}"
    return field


def _cell(text: str) -> str:
    """Return the content of a cell, without the apostrophe that `csv_text` puts in front."""
    text = text.strip()
    is_guarded = text.startswith("'") and text.lstrip("'").startswith(FORMULA_STARTS)
    return text[1:] if is_guarded else text


def _text(path: str | Path) -> str:
    """Return the text of a table; what is not Unicode is what Excel calls plain CSV."""
    content = read_bytes(path)
    if content.startswith(WORKBOOKS):
        raise LabelSetError(f"{path}: a spreadsheet, not a CSV file: save it as 'CSV UTF-8'")
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        if wide or b"\0" in content:
            raise LabelSetError(
                f"{path}: not readable as text: {error}: save the table as 'CSV UTF-8'"
            ) from None
        text = content.decode("cp1252", errors="replace")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise LabelSetError(
            f"{path}, line {line}: a NUL byte is no text: save the table as 'CSV UTF-8'"
        )
    return text


def _without_empty_end(cells: list[str]) -> list[str]:
    last = max((number for number, cell in enumerate(cells) if cell), default=-1)
    return cells[: last + 1]


def column_of_cases(path: str | Path, column: str, cases: Iterable[str]) -> dict[str, str]:
    """What the table says in `column` about each case; cases that it does not list, or leaves
    empty, are left out.

    The first column names the cases: as they are, or as a part of the case name between
    punctuation, so that a line `sub-001` of a BIDS table is about the case `feta_sub-001`. Of
    several such lines the one with the longest name counts; if two are equally long, nobody knows
    which one is meant, and that is an error.
    """
    rows = read_table(path, lambda names: column in names)
    names = list(rows[0])
    if column not in names:
        raise LabelSetError(f"{path}: no column '{column}'{did_you_mean(column, names)}")
    entries: dict[str, str] = {}
    for row in rows:
        name, entry = row[names[0]], row[column]
        if name and entries.setdefault(name, entry) != entry:
            raise LabelSetError(
                f"{path}: '{name}' is listed with different entries: '{entries[name]}' and "
                f"'{entry}'"
            )
    found = {}
    cases = list(cases)
    for case in cases:
        key = _line_of_case(case, entries, path)
        if key is not None and entries[key]:
            found[case] = entries[key]
    if not found:
        raise LabelSetError(
            f"{path}: no line is about any case: column '{names[0]}' has {some(entries, 3)}; cases "
            f"are {some(cases, 3)}"
        )
    return found


def _line_of_case(case: str, entries: Mapping[str, str], path: str | Path) -> str | None:
    """Return the name of the line about a case, None if there is none."""
    if case in entries:
        return case
    matches = sorted(_parts(case) & entries.keys(), key=lambda name: (-len(name), name))
    if len(matches) > 1 and len(matches[0]) == len(matches[1]):
        raise LabelSetError(
            f"{path}: both '{matches[0]}' and '{matches[1]}' are part of the case name '{case}': "
            f"add a line for '{case}' itself"
        )
    return matches[0] if matches else None


def _parts(case: str) -> set[str]:
    """All that stands between two places of a name where no letter or digit is cut from its
    neighbour.
    """
    starts = [match.start() for match in re.finditer("(?<![A-Za-z0-9])", case)]
    ends = [match.start() for match in re.finditer("(?![A-Za-z0-9])", case)]
    return {case[start:end] for start in starts for end in ends if start < end}
