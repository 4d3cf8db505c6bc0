"""Errors are checked for the facts in them, so that sentences may improve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refusal(kind: type[BaseException], *facts: object) -> Iterator[None]:
    """Expect an error that names these facts: a case, a file, an option, a value."""
    assert facts, "name what the user must be told"
    with pytest.raises(kind) as caught:
        yield
    check_facts(str(caught.value), *facts)


def facts_of(message: str) -> list[str]:
    """Return the facts in a message: names in quotes and numbers, or else all of it."""
    return re.findall(r"'[^']+'|\b\d+\b", message) or [message]


def check_facts(text: str, *facts: object) -> None:
    """Fail unless a message or an output names all of these facts."""
    assert facts, "name what the user must be told"
    missing = [str(fact) for fact in facts if str(fact) not in text]
    assert not missing, f"not in '{text}'"
