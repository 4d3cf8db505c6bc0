"""Errors and warnings, collected so that a user sees all of them at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nnunet_labelset.io.text import some

MOST_ON_SCREEN = 30


class Finding(str):
    """One line `where (detail): text`; findings with the same text are shown together."""

    where: str
    text: str

    def __new__(cls, where: str, text: str, detail: str = "") -> Finding:
        where = f"{where} ({detail})" if detail else where
        line = super().__new__(cls, f"{where}: {text}")
        line.where, line.text = where, text
        return line


class Findings:
    """Errors and warnings of a data set; files are named relative to its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors: list[Finding] = []
        self.warnings: list[Finding] = []

    def error(self, where: str | Path, text: str, detail: str = "") -> None:
        self.errors.append(Finding(self.name(where), text, detail))

    def warning(self, where: str | Path, text: str, detail: str = "") -> None:
        self.warnings.append(Finding(self.name(where), text, detail))

    def name(self, where: str | Path) -> str:
        return os.path.relpath(where, self.folder) if isinstance(where, Path) else where


def screen_lines(findings: Sequence[Finding]) -> list[str]:
    """The lines for a screen: what is said of many files is said once, and of very many kinds only
    the first.
    """
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        kinds.setdefault(finding.text, []).append(finding.where)
    lines = [f"{some(where, 3)}: {text}" for text, where in kinds.items()]
    left = len(lines) - MOST_ON_SCREEN
    return (
        [*lines[:MOST_ON_SCREEN], f"... and {left} more kinds: -o FILE writes all of them"]
        if left > 0
        else lines
    )
