"""A verb that ends with one line for the user."""

from __future__ import annotations

import pytest

from nnunet_labelset.cli import main


def error_line(capsys: pytest.CaptureFixture[str], verb: str, *arguments: object) -> str:
    """Run a verb that must fail; return the one line that it prints."""
    assert main([verb, *map(str, arguments)]) == 1
    text = capsys.readouterr().err
    assert text.strip().count("\n") == 0, text
    return text
