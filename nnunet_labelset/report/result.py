"""What the parts of a report share: the evaluation of a method, names of metrics, links."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

# name, unit, factor
METRICS = {"dice": ("Dice", "%", 100.0), "hd95": ("HD95", "mm", 1.0)}
WIDE = 10  # more leaves than this stand in rows, not in columns


@dataclass(frozen=True)
class Result:
    """The evaluation of one method."""

    name: str
    file: Path
    metrics: Mapping[str, Any]

    @cached_property
    def cases(self) -> dict[str, Mapping[str, Any]]:
        return {case["case"]: case for case in self.metrics["cases"]}


def spoken(leaf: str) -> str:
    return leaf.replace("_", " ")


def used_metrics(results: Sequence[Result]) -> list[str]:
    return ["dice", *(["hd95"] if any(result.metrics["settings"]["hd95"] for result in results) else [])]


def link(path: str | Path, folder: Path, shown: str | None = None) -> str:
    """A link to a file: relative inside the folder of the report, so that the folder can be moved."""
    absolute = Path(os.path.abspath(path))
    inside = absolute.is_relative_to(folder)
    address = quote(absolute.relative_to(folder).as_posix()) if inside else absolute.as_uri()
    return f'<a href="{escape(address)}">{escape(shown or str(path))}</a>'


def mean_dice(case: Mapping[str, Any] | None) -> float | None:
    scores = [leaf["dice"] for leaf in case["leaves"].values() if leaf["dice"] is not None] if case else []
    return 100 * sum(scores) / len(scores) if scores else None
