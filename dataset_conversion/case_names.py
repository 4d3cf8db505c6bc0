"""Names of cases: safe as file names, and each only once."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import SAFE_NAME, check_name

RENAME = "rename it in a case list (--annotated FILE.csv, column 'name')"
LONGEST = 100  # characters of a name that was made safe
SPELLED = str.maketrans(
    {
        "ä": "ae",
        "ö": "oe",
        "ü": "ue",
        "Ä": "Ae",
        "Ö": "Oe",
        "Ü": "Ue",
        "ß": "ss",
        "ø": "o",
        "Ø": "O",
    }
)


class Renamed(NamedTuple):
    """A case whose name could not stay."""

    source: str
    old: str
    new: str


class UnsafeNameError(LabelSetError):
    """A name with characters that no file name should have; told once for all cases of a source."""


class CaseNames:
    """The names of a data set. With `safe`, names that cannot be file names are changed."""

    def __init__(self, safe: bool = False) -> None:
        self.safe = safe
        self.renamed: list[Renamed] = []
        self._places: dict[str, str] = {}  # where each case was found, by its name in small letters

    def add(self, case: str, where: str, way_out: str) -> str:
        """Return the name of a case in the data set; one that is taken is an error.

        Names that differ only in capital letters are one file on some systems.
        """
        name = case
        if self.safe and not _is_safe(case):
            name = self._safe_name(case)
            self.renamed.append(Renamed(where, case, name))
        try:
            check_name(name, f"{where}: case")
        except LabelSetError as error:
            kind = LabelSetError if SAFE_NAME.fullmatch(name) else UnsafeNameError
            raise kind(f"{error}: {RENAME}, or use --safe-names") from None
        if name.lower() in self._places:
            raise LabelSetError(
                f"{where}: case '{name}' is also in {self._places[name.lower()]}: {way_out}, "
                f"or {RENAME}"
            )
        self._places[name.lower()] = f"{where} as '{name}'"
        return name

    def _safe_name(self, case: str) -> str:
        """Return a name that is safe and that no case before has."""
        name = safe_name(case)
        number = 2
        while name.lower() in self._places:
            name = f"{safe_name(case)}_{number}"
            number += 1
        return name


def _is_safe(name: str) -> bool:
    return bool(SAFE_NAME.fullmatch(name)) and len(name) <= LONGEST


def safe_name(name: str) -> str:
    """Return a name of ASCII letters, digits, '_', '-', '+' and '.' that resembles `name`.

    >>> safe_name("Müller, Anna (2)")
    'Mueller_Anna_2'
    """
    composed = unicodedata.normalize("NFC", name).translate(SPELLED)
    plain = unicodedata.normalize("NFKD", composed).encode("ascii", "ignore").decode()
    words = re.sub(r"[^A-Za-z0-9_.+-]+", "_", plain).strip("_.+-")
    return words[:LONGEST] or "case"
