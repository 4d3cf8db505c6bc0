"""The one error for bad user data; the command line turns it into one line and exit code 1."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LabelSetError(ValueError):
    """Something that the user gave (a contract, a file, a tensor) is wrong; the message says what and how to fix it."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint `"; did you mean 'brainstem'?"` when `word` is close to a known one, else some known ones."""
    known = [str(name) for name in known]
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known: {', '.join(known[:20])}{', ...' if len(known) > 20 else ''}" if known else ""
