"""What the parts of a report share: the evaluation of a method, names of metrics, links."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from nnunet_labelset.evaluation.metric import SHOWN
from nnunet_labelset.evaluation.results import Case, Evaluation

WIDE = 10  # more leaves than this stand in rows, not in columns


@dataclass(frozen=True)
class Result:
    """The evaluation of one method."""

    name: str
    file: Path
    evaluation: Evaluation

    @property
    def cases(self) -> dict[str, Case]:
        return self.evaluation.by_case


def spoken(leaf: str) -> str:
    return leaf.replace("_", " ")


def used_metrics(results: Sequence[Result]) -> list[str]:
    return [name for name in SHOWN if all(name in result.evaluation.settings.metrics for result in results)]


def link(path: str | Path, folder: Path, shown: str | None = None) -> str:
    """A link to a file: relative inside the folder of the report, so that the folder can be moved."""
    absolute = Path(os.path.abspath(path))
    inside = absolute.is_relative_to(folder)
    address = quote(absolute.relative_to(folder).as_posix()) if inside else absolute.as_uri()
    return f'<a href="{escape(address)}">{escape(shown or str(path))}</a>'


def mean_dice(case: Case | None) -> float | None:
    return None if case is None or case.mean_dice is None else 100 * case.mean_dice
