"""The recommended trainer: what it combines, and how the cross entropy comes in."""

from __future__ import annotations

import pytest

from nnunet_labelset.losses import RunningDice
from tests.helpers import tiny
from tests.helpers.tiny import make
from tests.helpers.training import TRAINERS


@pytest.mark.parametrize(
    "name", ["nnUNetTrainerLabelSet", "nnUNetTrainerLabelSetTeacher_NoMirroring"]
)
def test_cross_entropy_comes_after_dice(in_process: tiny.NNUNet, name: str) -> None:
    trainer = make(in_process, TRAINERS[name])
    trainer.num_epochs = 10
    trainer.initialize()
    assert isinstance(trainer.loss.loss, RunningDice)
    weights = []
    for trainer.current_epoch in range(10):
        trainer.on_train_epoch_start()
        weights.append(trainer.loss.loss.ce_share)
    assert weights == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1])


@pytest.mark.parametrize("method", ["LabelSet", "LabelSetTeacher", "LeafDice"])
def test_no_mirroring(in_process: tiny.NNUNet, method: str) -> None:
    for length in ("", "_50epochs", "_short"):
        trainer = make(in_process, TRAINERS[f"nnUNetTrainer{method}{length}_NoMirroring"])
        *_, axes = trainer.configure_rotation_dummyDA_mirroring_and_inital_patch_size()
        assert axes is None
        assert trainer.inference_allowed_mirroring_axes is None
        with_mirroring = make(in_process, TRAINERS[f"nnUNetTrainer{method}{length}"])
        assert with_mirroring.num_epochs == trainer.num_epochs
        assert with_mirroring.initial_lr == trainer.initial_lr
