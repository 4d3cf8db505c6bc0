"""The one error for bad user data; the command line turns it into one line and exit code 1."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LabelSetError(ValueError):
    """Something that the user gave (a contract, a file, a tensor) is wrong; the message says what
    and how to fix it.
    """


def near_miss(word: str, known: Iterable[str]) -> str:
    """A hint `"; did you mean 'brainstem'?"` when `word` is close to a known one."""
    close = difflib.get_close_matches(word, list(map(str, known)), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The near miss, or else some of the known ones."""
    known = list(map(str, known))
    some = f"; known: {', '.join(known[:20])}{', ...' if len(known) > 20 else ''}" if known else ""
    return near_miss(word, known) or some
