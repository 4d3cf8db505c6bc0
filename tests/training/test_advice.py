"""Advice in the training log: which trainer, and what is wrong."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnunet_labelset.contract import Contract
from nnunet_labelset.io.files import write_json
from nnunet_labelset.losses.engine import fused
from nnunet_labelset.nnunet.recommendation import next_commands, reasons, sided_pairs
from nnunet_labelset.training.checks import Advice, dead_labels, log_warnings
from tests.helpers import tiny
from tests.helpers.tiny import dataset_json, make
from tests.helpers.training import TRAINERS


@dataclass
class Plan:
    """The sizes that nnU-Net has planned."""

    patch_size: tuple[int, ...] = (32, 32)
    median_image_size_in_voxels: tuple[float, ...] = (32, 32)


def advice(
    protocols: dict[str, Any], trainer: str = "nnUNetTrainerLeafDice", **labels: int
) -> tuple[Advice, list[str]]:
    """Advice for one case of every protocol, and the list that it writes to."""
    names = {"background": 0, **(labels or {"shell": 1, "core": 2, "dot": 3})}
    block = {"version": 1, "protocols": protocols, "cases": {name: name for name in protocols}}
    contract = Contract.from_dataset_json({"labels": names, "label_sets": block})
    lines: list[str] = []
    return Advice(contract, trainer, lines.append, {}), lines


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
        (["Niere links", "Niere rechts"], [("Niere links", "Niere rechts")]),
        (["rein gauche", "rein droit"], [("rein gauche", "rein droit")]),
        (["left_kidney", "liver", "cleft", "cright"], []),
    ],
)
def test_names_that_differ_by_side(names: list[str], pairs: list[tuple[str, str]]) -> None:
    assert sided_pairs(names) == pairs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "preprocessed"))
    write_json(tmp_path / "Dataset007_A" / "dataset.json", {"file_ending": ".nii.gz"})
    return tmp_path / "Dataset007_A"


def test_next_commands_lead_from_the_data_set_to_the_training(folder: Path) -> None:
    commands = next_commands(7, folder, ["liver", "spleen"])
    assert [command.split()[:2] for command in commands] == [
        ["nnunet_labelset", "verify"],
        ["nnUNetv2_plan_and_preprocess", "-d"],
        ["nnunet_labelset", "splits"],
        ["nnunet_labelset", "train"],
    ]
    assert commands[-1].split()[2:] == ["7", "3d_fullres", "0", "-tr", "nnUNetTrainerLabelSet"]


def test_next_commands_know_what_was_done_and_planned(folder: Path) -> None:
    planned = folder.parent / "preprocessed" / folder.name
    write_json(planned / "dataset.json", {})
    write_json(planned / "nnUNetPlans.json", {"configurations": {"2d": {}}})
    write_json(planned / "splits_final.json", [])
    verify, train = next_commands(7, folder, ["liver"], preprocessed=True)
    assert verify.split()[1] == "verify"
    assert train.split()[3] == "2d"
    assert len(next_commands(7, folder, ["liver"])) == 4  # label maps have changed since


def test_next_commands_know_flat_images(folder: Path) -> None:
    write_json(folder / "dataset.json", {"file_ending": ".png"})
    assert next_commands(7, folder, ["artery"])[-1].split()[3] == "2d"


def test_next_commands_know_about_sides(folder: Path) -> None:
    command = next_commands(7, folder, ["kidney_l", "kidney_r"])[-1]
    assert command.split()[-1] == "nnUNetTrainerLabelSet_NoMirroring"
    listed = {"file_ending": ".nii.gz", "mirrored_labels": [["A", "B"]]}
    write_json(folder / "dataset.json", listed)
    command = next_commands(7, folder, ["background", "A", "B"])[-1]
    assert command.split()[-1] == "nnUNetTrainerLabelSet_NoMirroring"


def test_reasons_are_facts_of_the_data() -> None:
    coverage = {"background": 4, "liver": 16, "spleen": 4, "larynx": 0}
    assert reasons({**coverage, "spleen": 5}, 16, (32, 32), (32, 32)) == []
    (few,) = reasons(coverage, 16, (32, 32), (32, 32))
    assert "'spleen' 4 of 16" in few
    assert "larynx" not in few  # none: another warning
    (patch,) = reasons({"liver": 3}, 3, (16, 32), (24.0, 28.0))
    assert "16x32" in patch
    assert "24x28" in patch
    (background,) = reasons({"background": 0, "liver": 3}, 3, (32, 32), (32, 32))
    assert "background" in background


def test_the_recommendation_names_both_trainers() -> None:
    adviser, lines = advice({"a": {"shell": ["shell", "core"]}, "b": {}})
    adviser.recommend({"background": 2, "shell": 1, "core": 1, "dot": 2}, 2, Plan())
    (line,) = lines
    assert "nnUNetTrainerLabelSet " in line
    assert "nnUNetTrainerLeafDice" in line


def test_complete_cases_need_no_label_sets() -> None:
    adviser, lines = advice({"a": {}})
    adviser.recommend({"background": 1, "shell": 1, "core": 1, "dot": 1}, 1, Plan())
    (line,) = lines
    assert "nnUNetTrainer " in line


OLD_LEFT_OPEN = {"a": {"background": ["background", "shell", "core"]}}
COVERAGE = {"background": 0, "shell": 0, "core": 0, "dot": 1}


def test_who_extends_a_model_is_never_told_to_train_without_teacher() -> None:
    """Following that advice destroyed the old labels: 86 and 85 % became 5.7 and 0.0 %."""
    adviser, lines = advice(OLD_LEFT_OPEN, "nnUNetTrainerLabelSetTeacher_short")
    adviser.recommend_extended(COVERAGE, ["dot"], has_teacher=True)
    (line,) = lines
    assert "nnUNetTrainerLabelSetTeacher " in line
    assert "nnUNetTrainerLabelSet " not in line


def test_who_extends_a_model_without_teacher_is_warned() -> None:
    adviser, lines = advice(OLD_LEFT_OPEN, "nnUNetTrainerLabelSet")
    adviser.recommend_extended(COVERAGE, ["dot"], has_teacher=False)
    warning = lines[-1]
    assert warning.startswith("WARNING")
    assert "nnUNetTrainerLabelSetTeacher" in warning
    assert all(f"'{label}'" in warning for label in ("background", "shell", "core"))
    assert "'dot'" not in warning


def test_no_advice_leads_from_an_extended_training_to_one_that_forgets() -> None:
    """Sides, dead labels and missing labels are told while a model is extended, too."""
    block = {"left_dot": 1, "right_dot": 2, "core": 3}
    protocols = {"a": {"background": ["background", "left_dot", "right_dot"]}}
    adviser, lines = advice(protocols, "nnUNetTrainerLeafDiceCE", **block)
    coverage = {"background": 0, "left_dot": 0, "right_dot": 0, "core": 1}
    adviser.recommend_extended(coverage, ["core"], has_teacher=True)
    adviser.warn_of_missing_labels(coverage)
    adviser.warn_of_mirroring((0, 1))
    counts = np.array([[0, 0, 0], [0, 0, 0], [0, 0, 5]])  # tp, fp, fn
    adviser.warn_of_dead_labels(tuple(block), [[0.0, 0.0, 0.0]] * 3, counts, num_epochs=9)
    named = {word.strip(",.():") for line in lines for word in line.split()}
    trainers = {word for word in named if word.startswith("nnUNetTrainerLabelSet")}
    assert trainers == {"nnUNetTrainerLabelSetTeacher", "nnUNetTrainerLabelSetTeacher_NoMirroring"}
    assert len(lines) == 3  # the old model teaches what no case annotates


def test_who_extends_with_complete_cases_needs_no_teacher() -> None:
    adviser, lines = advice({"a": {}}, "nnUNetTrainerLabelSet")
    adviser.recommend_extended(dict.fromkeys(COVERAGE, 1), ["dot"], has_teacher=False)
    (line,) = lines
    assert "nnUNetTrainerLabelSet " in line


def test_dead_labels() -> None:
    nan = np.nan
    history = [[0.1, 0, nan, 0], [0, 0, nan, nan], [0, 0, nan, 0], [0, 0, nan, 0.0]]
    assert dead_labels(history, 3) == [0, 1, 3]
    assert dead_labels(history, 4) == [1]
    assert dead_labels([], 3) == []
    # what was right once never decays to exactly 0
    faded = [[0.7**epoch, 0.01] for epoch in range(40)]
    assert dead_labels(faded, 20) == [0]


@pytest.mark.parametrize(
    ("trainer", "remedy"),
    [
        ("nnUNetTrainerLeafDice", "nnUNetTrainerLabelSet"),
        ("nnUNetTrainerLabelSet", "nnunet_labelset verify"),
    ],
)
def test_dead_labels_are_told_with_a_remedy(trainer: str, remedy: str) -> None:
    adviser, lines = advice({"a": {}}, trainer)
    history = [[0.9, 0.0, np.nan]] * 3
    names = ("shell", "core", "dot")
    missed = np.array([[0, 0, 0], [1, 1, 1], [5, 5, 5]])  # tp, fp, fn
    adviser.warn_of_dead_labels(names, history, missed, num_epochs=9)
    (line,) = lines
    assert "'core'" in line
    assert remedy in line
    adviser.warn_of_dead_labels(names, history[:2], missed, num_epochs=9)
    missed[2] = 0
    adviser.warn_of_dead_labels(names, history, missed, num_epochs=9)
    assert len(lines) == 1  # not in every epoch; false positives only


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
    warning = "WARNING: 'dot_left' and 'dot_right'"
    make(in_process, TRAINERS["nnUNetTrainerLabelSet"], dataset, fold="all").on_train_start()
    assert warning in capsys.readouterr().out
    make(
        in_process, TRAINERS["nnUNetTrainerLabelSet_NoMirroring"], dataset, fold="all"
    ).on_train_start()
    assert warning not in capsys.readouterr().out


def test_kernels_that_are_switched_off_are_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logger = logging.getLogger("nnunet_labelset")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(fused, "_broken", False)
    lines: list[str] = []
    for _ in range(2):  # a second trainer in this process
        log_warnings(lines.append)
    fused.switch_off("their sums differ by 0.5")
    (line,) = lines
    assert "their sums differ by 0.5" in line
    assert fused.SWITCH in line
