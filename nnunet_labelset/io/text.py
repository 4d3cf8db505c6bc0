"""Words for messages."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence


def some(names: Iterable[object], most: int = 5, separator: str = ", ") -> str:
    """A list of names for a message, cut after `most`."""
    shown = [str(name) for name in names]
    return separator.join(shown[:most]) + (
        f"{separator}... ({len(shown)} in all)" if len(shown) > most else ""
    )


def listed(title: str, lines: Sequence[str], most: int = 20) -> str:
    """A message with a line for every problem, cut after `most`."""
    more = [f"... {len(lines)} in all"] if len(lines) > most else []
    return "\n  ".join([title, *lines[:most], *more])


SCREEN_WIDTH = 100  # columns of a table on screen


def aligned(rows: Sequence[Sequence[str]], names: int, width: int | None = None) -> list[str]:
    """Return rows of cells as lines; the first `names` columns to the left, others to the right.

    A table that is wider than `width` continues below, with its first column again.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for columns in _blocks(widths, width):
        for row in rows:
            cells = [
                row[column].ljust(widths[column])
                if column < names
                else row[column].rjust(widths[column])
                for column in columns
            ]
            lines.append("  ".join(cells).rstrip())
        lines.append("")
    return lines[:-1]


def _blocks(widths: Sequence[int], width: int | None) -> list[list[int]]:
    """Return the columns of every block; each starts with column 0."""
    blocks = [[0]]
    for column in range(1, len(widths)):
        used = sum(widths[other] + 2 for other in blocks[-1])
        if width is not None and used + widths[column] > width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(column)
    return blocks


def variants(name: str) -> Iterator[str]:
    """Yield a name, and what it can be called if it is taken: `name (2)`, `name (3)`, ..."""
    yield name
    for number in itertools.count(2):
        yield f"{name} ({number})"


def spoken(name: str) -> str:
    """The name of a leaf in a sentence or a heading."""
    return name.replace("_", " ")


def spoken_names(names: Iterable[str]) -> dict[str, str]:
    """Return names as they are shown; `a_b` keeps its underscore where `a b` is a name too."""
    unique = list(dict.fromkeys(names))
    shown = [spoken(name) for name in unique]
    return {
        name: word if shown.count(word) == 1 else name
        for name, word in zip(unique, shown, strict=True)
    }


def composed(name: str) -> str:
    """Return a name in which `u` and a mark above it are `ü`, one character, as most programs write
    it.
    """
    return unicodedata.normalize("NFC", name)


def plain_name(name: str) -> str:
    """Return a name without capitals and final punctuation, with `_` for blanks and hyphens."""
    return re.sub(r"[\s_-]+", "_", composed(name).strip().rstrip(".:?#").casefold())
