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


def test_no_mirroring(in_process: tiny.NNUNet) -> None:
    for name, cls in TRAINERS.items():
        if name.endswith("_NoMirroring"):
            axes = make(
                in_process, cls
            ).configure_rotation_dummyDA_mirroring_and_inital_patch_size()[-1]
            assert axes is None
