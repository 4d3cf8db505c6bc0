"""`nnunet_labelset splits`: nnU-Net's `splits_final.json`, stratified by protocol, every fold trained on every leaf."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.text import some


def read_subjects(pattern: str, cases: Iterable[str]) -> dict[str, str]:
    """The subject of each case that a regular expression matches: its first group if it has one, else the match."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise LabelSetError(f"--subject '{pattern}': not a regular expression: {error}") from None
    matches = {case: expression.search(case) for case in cases}
    if not any(matches.values()):
        raise LabelSetError(f"--subject '{pattern}' matches no case; cases are {some(matches)}")
    return {case: match[1 if expression.groups else 0] or "" for case, match in matches.items() if match}
