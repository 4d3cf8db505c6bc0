"""The test of a machine, on the CPU."""

from __future__ import annotations

import pytest
import torch

from nnunet_labelset import selftest
from nnunet_labelset.losses import RunningLeafDiceCELoss
from nnunet_labelset.study import selftest as checks


def test_the_losses_are_right_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(["-device", "cpu", "--no-training"]) == 0
    table = capsys.readouterr().out
    for name in checks.pairs_of_losses():
        assert name in table
    assert "WRONG" not in table
    assert torch.__version__ in table
    assert "ratio" in table


def test_a_wrong_loss_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forward = RunningLeafDiceCELoss.forward
    monkeypatch.setattr(
        RunningLeafDiceCELoss, "forward", lambda self, *inputs: 1.001 * forward(self, *inputs)
    )
    assert selftest.main(["-device", "cpu", "--no-training"]) == 1
    assert capsys.readouterr().out.count("| WRONG |") == 1


@pytest.mark.slow
def test_a_short_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(["-device", "cpu"]) == 0
    assert "predicted cases" in capsys.readouterr().out
