"""Case names stay here, whatever nnU-Net logs elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from nnunetv2.training.logging.nnunet_logger import MetaLogger

from nnunet_labelset.trainers.label_set import nnUNetTrainerLabelSet
from tests.helpers import tiny


def test_loggers_see_no_case_names(
    in_process: tiny.NNUNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(MetaLogger, "update_config", lambda self, config: sent.append(config))
    trainer = tiny.make(in_process, nnUNetTrainerLabelSet)
    assert sent
    text = json.dumps(sent, default=str)
    assert not [case for case in tiny.CASES if case in text]
    assert "shell" in text
    dataset_json = tiny.dataset_json(in_process)
    assert trainer.dataset_json == dataset_json
    assert trainer.my_init_kwargs["dataset_json"] == dataset_json  # goes into checkpoints
