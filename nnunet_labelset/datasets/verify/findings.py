"""Errors and warnings, collected so that a user sees all of them at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nnunet_labelset.io.text import some

MOST_ON_SCREEN = 30


@dataclass(frozen=True)
class Problem:
    """What a check has found: where, what is wrong and how to fix it. A doubt is a warning."""

    where: str | Path
    text: str
    detail: str = ""
    is_doubt: bool = False


Problems = Iterator[Problem]


def doubt(where: str | Path, text: str, detail: str = "") -> Problem:
    return Problem(where, text, detail, is_doubt=True)


class Finding(str):
    """One line `where (detail): text`; findings with the same text are shown together."""

    where: str
    text: str

    def __new__(cls, where: str, text: str, detail: str = "") -> Finding:
        where = f"{where} ({detail})" if detail else where
        line = super().__new__(cls, f"{where}: {text}")
        line.where = where
        line.text = text
        return line


class Findings:
    """Errors and warnings of a data set; files are named relative to its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors: list[Finding] = []
        self.warnings: list[Finding] = []

    def add(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            where = problem.where
            if isinstance(where, Path):
                where = os.path.relpath(where, self.folder)
            finding = Finding(where, problem.text, problem.detail)
            (self.warnings if problem.is_doubt else self.errors).append(finding)


def screen_lines(findings: Sequence[Finding]) -> list[str]:
    """Return the lines for a screen: findings that many files share are shown once, and of very
    many kinds only the first.
    """
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        kinds.setdefault(finding.text, []).append(finding.where)
    lines = [f"{some(where, 3)}: {text}" for text, where in kinds.items()]
    hidden = len(lines) - MOST_ON_SCREEN
    if hidden <= 0:
        return lines
    return [*lines[:MOST_ON_SCREEN], f"... and {hidden} more kinds: -o FILE writes all of them"]
