"""Errors and warnings, collected so that a user sees all of them at once."""

from __future__ import annotations

import os
from pathlib import Path


class Findings:
    """Errors and warnings of a data set; files are named relative to its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def error(self, where: str | Path, text: str) -> None:
        self.errors.append(f"{self.name(where)}: {text}")

    def warning(self, where: str | Path, text: str) -> None:
        self.warnings.append(f"{self.name(where)}: {text}")

    def name(self, where: str | Path) -> str:
        return os.path.relpath(where, self.folder) if isinstance(where, Path) else where
