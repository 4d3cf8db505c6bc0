"""Warnings that name the trainer to use."""

from __future__ import annotations

import numpy as np
import pytest

from nnunet_labelset.training.advice import dead_leaves, sided_pairs
from tests.helpers import tiny
from tests.helpers.tiny import dataset_json, make
from tests.training.test_trainer import TRAINERS


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (["background", "LeftParotid", "RightParotid", "Larynx"], [("LeftParotid", "RightParotid")]),
        (["kidney_l", "kidney_r"], [("kidney_l", "kidney_r")]),
        (["left lung", "lung right", "right lung"], [("left lung", "right lung")]),
        (["lh_cortex", "rh_cortex"], [("lh_cortex", "rh_cortex")]),
        (["LEFT_KIDNEY", "RIGHT_KIDNEY"], [("LEFT_KIDNEY", "RIGHT_KIDNEY")]),
        (["left_kidney", "liver", "cleft", "cright"], []),
    ],
)
def test_names_that_differ_by_side(names: list[str], pairs: list[tuple[str, str]]) -> None:
    assert sided_pairs(names) == pairs


def test_dead_leaves() -> None:
    nan = np.nan
    history = [[0.1, 0, nan, 0], [0, 0, nan, nan], [0, 0, nan, 0], [0, 0, nan, 0.0]]
    assert dead_leaves(history, 3) == [0, 1, 3]
    assert dead_leaves(history, 4) == [1]
    assert dead_leaves([], 3) == []


def test_sides_and_mirroring_are_told_at_the_start(in_process: tiny.NNUNet, capsys: pytest.CaptureFixture) -> None:
    dataset = dataset_json(in_process)
    names = {"background": "background", "shell": "dot_left", "core": "core", "dot": "dot_right", "ignore": "ignore"}
    dataset["labels"] = {names[name]: value for name, value in dataset["labels"].items()}
    dataset["label_sets"]["protocols"] = {
        name: {names[value]: [names[leaf] for leaf in leaves] for value, leaves in protocol.items()}
        for name, protocol in dataset["label_sets"]["protocols"].items()
    }
    make(in_process, TRAINERS["nnUNetTrainerLabelSet"], dataset, fold="all").on_train_start()
    assert "use nnUNetTrainerLabelSet_NoMirroring" in capsys.readouterr().out
    make(in_process, TRAINERS["nnUNetTrainerLabelSet_NoMirroring"], dataset, fold="all").on_train_start()
    assert "NoMirroring," not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "advice"),
    [("nnUNetTrainerLeafDice", "use nnUNetTrainerLabelSet"), ("nnUNetTrainerLabelSet", "Look at its annotations")],
)
def test_dead_leaves_are_told_with_advice(
    in_process: tiny.NNUNet, capsys: pytest.CaptureFixture, name: str, advice: str
) -> None:
    trainer = make(in_process, TRAINERS[name])
    trainer.num_epochs = 9
    trainer.initialize()
    trainer.disable_checkpointing = True
    for epoch in range(3):
        trainer.on_epoch_start()
        for key, value in (("lrs", 0.1), ("train_losses", 0.1), ("val_losses", 0.1), ("mean_fg_dice", 0.5)):
            trainer.logger.log(key, value, epoch)
        trainer.logger.log("dice_per_class_or_region", [0.9, 0.0, np.nan], epoch)
        trainer.on_epoch_end()
    printed = capsys.readouterr().out
    assert "'core' is annotated, but its Dice has been 0 in its last 3 scores" in printed
    assert advice in printed
    assert "'shell' is annotated" not in printed
    assert "'dot' is annotated" not in printed
