"""Words for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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


def aligned(rows: Sequence[Sequence[str]], names: int) -> list[str]:
    """Return rows of cells as lines; the first `names` columns to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if number < names else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


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
