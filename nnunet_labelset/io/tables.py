"""Tables about cases (`participants.tsv`, CSV): a column by case name."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path

from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.text import some


def read_table(path: str | Path) -> list[dict[str, str]]:
    """Rows of a CSV file, or of a tab-separated one if its name ends with .tsv."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except FileNotFoundError:
        raise LabelSetError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LabelSetError(f"{path}: not readable as text: {error}") from None
    tabs = Path(path).suffix.lower() == ".tsv"
    reader = csv.DictReader(text.splitlines(), delimiter="\t" if tabs else ",", restkey="")
    rows = []
    for row in reader:
        if None in row.values():
            raise LabelSetError(f"{path}, line {reader.line_num}: expected {len(row)} cells, one for every column")
        rows.append(row)
    if not rows:
        raise LabelSetError(f"{path}: the table is empty: expected a line of column names and one line per case")
    return rows


def column_of_cases(path: str | Path, column: str, cases: Iterable[str]) -> dict[str, str]:
    """What the table says in `column` about each case; cases that it does not list, or leaves empty, are left out.

    The first column names the cases: as they are, or as a part of the case name between punctuation, so that a line
    `sub-001` of a BIDS table is about the case `feta_sub-001`. Of several such lines the longest name counts.
    """
    rows = read_table(path)
    names = list(rows[0])
    if column not in names:
        raise LabelSetError(f"{path}: no column '{column}'{did_you_mean(column, names)}")
    entries: dict[str, str] = {}
    for row in rows:
        name, entry = row[names[0]].strip(), row[column].strip()
        if name and entries.setdefault(name, entry) != entry:
            raise LabelSetError(f"{path}: '{name}' is listed with different entries: '{entries[name]}' and '{entry}'")
    by_length = sorted(entries, key=len, reverse=True)
    found = {}
    cases = list(cases)
    for case in cases:
        key = case if case in entries else next((name for name in by_length if _is_part(name, case)), None)
        if key is not None and entries[key]:
            found[case] = entries[key]
    if not found:
        raise LabelSetError(
            f"{path}: no line is about any case: column '{names[0]}' has {some(entries, 3)}; cases are {some(cases, 3)}"
        )
    return found


def _is_part(name: str, case: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", case) is not None
