"""The tiny preprocessed data set for trainers that are made in the process of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import tiny


@pytest.fixture
def in_process(prepared: tiny.NNUNet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tiny.NNUNet:
    """The same data set for trainers made in this process, with results of their own."""
    for name, value in prepared.environment.items():
        if name.lower().startswith("nnunet"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("nnUNet_results", str(tmp_path / "results"))
    monkeypatch.setenv("nnUNet_n_proc_DA", "0")
    return prepared
