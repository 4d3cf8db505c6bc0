"""Facts worth telling about cases."""

from __future__ import annotations

from typing import NamedTuple

VOLUME = "volume of the voxels"  # of every ROI, in the table of notes only
OVERLAP = "structures overlap, the later one taken"


class Note(NamedTuple):
    """A fact about a case. Notes of one kind are told together, those `about` one thing in one
    line.
    """

    kind: str
    about: str = ""
    detail: str = ""
