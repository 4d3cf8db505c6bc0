"""Words for messages."""

from __future__ import annotations

from collections.abc import Iterable


def some(names: Iterable[object], most: int = 5, separator: str = ", ") -> str:
    """A list of names for a message, cut after `most`."""
    shown = [str(name) for name in names]
    return separator.join(shown[:most]) + (f"{separator}... ({len(shown)} in all)" if len(shown) > most else "")


def spoken(name: str) -> str:
    """The name of a leaf in a sentence or a heading."""
    return name.replace("_", " ")
