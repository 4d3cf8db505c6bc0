"""Warnings that name the trainer to use."""

from __future__ import annotations

import numpy as np
import pytest

from nnunet_labelset.nnunet.recommendation import next_commands, reasons, sided_pairs
from nnunet_labelset.training.advice import dead_leaves
from tests.helpers import tiny
from tests.helpers.tiny import dataset_json, make
from tests.training.test_trainer import TRAINERS


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (
            ["background", "LeftParotid", "RightParotid", "Larynx"],
            [("LeftParotid", "RightParotid")],
        ),
        (["kidney_l", "kidney_r"], [("kidney_l", "kidney_r")]),
        (["left lung", "lung right", "right lung"], [("left lung", "right lung")]),
        (["lh_cortex", "rh_cortex"], [("lh_cortex", "rh_cortex")]),
        (["LEFT_KIDNEY", "RIGHT_KIDNEY"], [("LEFT_KIDNEY", "RIGHT_KIDNEY")]),
        (["left_kidney", "liver", "cleft", "cright"], []),
    ],
)
def test_names_that_differ_by_side(names: list[str], pairs: list[tuple[str, str]]) -> None:
    assert sided_pairs(names) == pairs


def test_next_commands_know_about_sides() -> None:
    assert next_commands(7, ["liver", "spleen"], preprocessed=True) == [
        "  nnunet_labelset train 7 3d_fullres 0 -tr nnUNetTrainerLabelSet"
    ]
    assert next_commands(7, ["kidney_l", "kidney_r"])[1].endswith(
        " -tr nnUNetTrainerLabelSet_NoMirroring"
    )


def test_reasons_are_facts_of_the_data() -> None:
    coverage = {"background": 4, "liver": 16, "spleen": 4, "larynx": 0}
    assert reasons({**coverage, "spleen": 5}, 16, (32, 32), (32, 32)) == []
    (few,) = reasons(coverage, 16, (32, 32), (32, 32))
    assert "few cases annotate 'spleen' 4 of 16" in few
    assert "larynx" not in few  # none: another warning
    (patch,) = reasons({"liver": 3}, 3, (16, 32), (24.0, 28.0))
    assert "the patch (16x32) is smaller than the median volume (24x28)" in patch
    (background,) = reasons({"background": 0, "liver": 3}, 3, (32, 32), (32, 32))
    assert background.startswith("no case annotates background")


def test_the_recommendation_is_said_at_the_start(
    in_process: tiny.NNUNet, capsys: pytest.CaptureFixture
) -> None:
    make(in_process, TRAINERS["nnUNetTrainerLeafDice"], fold="all").initialize()
    printed = capsys.readouterr().out
    assert (
        "Recommended for these cases: nnUNetTrainerLabelSet (this is nnUNetTrainerLeafDice)"
        in printed
    )
    assert "the patch (16x16x16) is smaller than the median volume" in printed
    dataset = dataset_json(in_process)
    protocols = dataset["label_sets"]["protocols"]
    protocols["full"] = {"background": ["background", "dot"]}
    protocols["no_core"] = {**protocols["no_core"], "background": ["background", "dot"]}
    protocols["merged"] = {"background": ["background", "core"]}
    make(in_process, TRAINERS["nnUNetTrainerLabelSet"], dataset, fold="all").initialize()
    printed = capsys.readouterr().out
    assert "no case annotates background" in printed
    assert "few cases annotate 'dot' 1 of 8" in printed
    dataset["label_sets"]["protocols"] = {"full": {}, "no_core": {}, "merged": {}}
    make(in_process, TRAINERS["nnUNetTrainerLabelSet"], dataset, fold="all").initialize()
    assert (
        "every case is fully annotated: nnU-Net's own nnUNetTrainer would do"
        in capsys.readouterr().out
    )


def test_dead_leaves() -> None:
    nan = np.nan
    history = [[0.1, 0, nan, 0], [0, 0, nan, nan], [0, 0, nan, 0], [0, 0, nan, 0.0]]
    assert dead_leaves(history, 3) == [0, 1, 3]
    assert dead_leaves(history, 4) == [1]
    assert dead_leaves([], 3) == []
    faded = [
        [0.7**epoch, 0.01] for epoch in range(40)
    ]  # what was right once is never forgotten to the last digit
    assert dead_leaves(faded, 20) == [0]


def test_sides_and_mirroring_are_told_at_the_start(
    in_process: tiny.NNUNet, capsys: pytest.CaptureFixture
) -> None:
    dataset = dataset_json(in_process)
    names = {
        "background": "background",
        "shell": "dot_left",
        "core": "core",
        "dot": "dot_right",
        "ignore": "ignore",
    }
    dataset["labels"] = {names[name]: value for name, value in dataset["labels"].items()}
    dataset["label_sets"]["protocols"] = {
        name: {names[value]: [names[leaf] for leaf in leaves] for value, leaves in protocol.items()}
        for name, protocol in dataset["label_sets"]["protocols"].items()
    }
    make(in_process, TRAINERS["nnUNetTrainerLabelSet"], dataset, fold="all").on_train_start()
    assert "use nnUNetTrainerLabelSet_NoMirroring" in capsys.readouterr().out
    make(
        in_process, TRAINERS["nnUNetTrainerLabelSet_NoMirroring"], dataset, fold="all"
    ).on_train_start()
    assert "NoMirroring," not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("nnUNetTrainerLeafDice", "use nnUNetTrainerLabelSet"),
        ("nnUNetTrainerLabelSet", "Look at its annotations"),
    ],
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
        for key, value in (
            ("lrs", 0.1),
            ("train_losses", 0.1),
            ("val_losses", 0.1),
            ("mean_fg_dice", 0.5),
        ):
            trainer.logger.log(key, value, epoch)
        trainer.logger.log("dice_per_class_or_region", [0.9, 0.0, np.nan], epoch)
        trainer.on_epoch_end()
    printed = capsys.readouterr().out
    assert "'core' is annotated, but its Dice has been 0 in its last 3 scores" in printed
    assert advice in printed
    assert "'shell' is annotated" not in printed
    assert "'dot' is annotated" not in printed
