"""Facts worth telling about cases: told together by kind, and kept whole in a table beside the
data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.publish import NOTES

OVERLAP = "structures overlap, the later one taken"
NOTE_COLUMNS = ("case", "note", "about", "detail")
MOST_LINES = 10  # of one kind; the table has them all


class Note(NamedTuple):
    """A fact about a case. Notes of one kind are told together, those `about` one thing in one
    line.
    """

    kind: str
    about: str = ""
    detail: str = ""


def note_lines(notes: Iterable[tuple[str, Note]]) -> list[str]:
    """Notes by kind and by what they are about, the most frequent first."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for case, note in notes:
        cases = kinds.setdefault(note.kind, {}).setdefault(note.about, [])
        cases.append(f"{note.detail} in {case}" if note.detail else case)
    lines = []
    for kind, things in kinds.items():
        ordered = sorted(things.items(), key=lambda item: -len(item[1]))
        for about, cases in ordered[:MOST_LINES]:
            lines.append(
                f"note: {kind}{': ' + about if about else ''}: {some(dict.fromkeys(cases))}"
            )
        if len(ordered) > MOST_LINES:
            lines.append(f"note: {kind}: {len(ordered) - MOST_LINES} more, see {NOTES}")
    return lines
