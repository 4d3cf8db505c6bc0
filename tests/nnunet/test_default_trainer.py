"""Without `-tr`, `train` and `predict` take a trainer that suits the data, and say which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.checkpoint_file import NEW_OUTPUTS, OUTPUTS
from nnunet_labelset.nnunet.default_trainer import prediction_arguments, training_arguments
from nnunet_labelset.nnunet.forward import check_device
from tests.helpers.errors import refusal

BLOCK = {"version": 1, "protocols": {"p": {}}, "cases": {"a": "p"}}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path


def declare(folders: Path, labels: list[str], **more: object) -> None:
    folder = folders / "nnUNet_preprocessed" / "Dataset020_Test"
    folder.mkdir()
    content = {"labels": {name: value for value, name in enumerate(labels)}, **more}
    (folder / "dataset.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("labels", "trainer"),
    [
        (["background", "liver"], "nnUNetTrainerLabelSet"),
        (["background", "kidney_l", "kidney_r"], "nnUNetTrainerLabelSet_NoMirroring"),
    ],
)
def test_a_declared_data_set_is_trained_with_the_recommended_trainer(
    folders: Path, capsys: pytest.CaptureFixture, labels: list[str], trainer: str
) -> None:
    declare(folders, labels, label_sets=BLOCK)
    arguments = ["20", "3d_fullres", "1", "--npz", "-p", "MyPlans"]
    assert training_arguments(arguments) == [*arguments, "-tr", trainer]
    assert trainer in capsys.readouterr().out


@pytest.mark.parametrize(
    ("start", "trainer"),
    [
        ({OUTPUTS: ["background", "liver", "spleen"], NEW_OUTPUTS: ["spleen"]}, "LabelSetTeacher"),
        ({OUTPUTS: ["background", "liver", "kidney"], NEW_OUTPUTS: ["kidney"]}, "LabelSet"),
        ({"network_weights": {}}, "LabelSet"),
    ],
)
def test_an_extended_model_is_not_trained_without_its_teacher(
    folders: Path, start: dict[str, Any], trainer: str
) -> None:
    """The new cases do not annotate the liver, which the old model knows."""
    gap = {"background": ["background", "liver"]}
    block = {"version": 1, "protocols": {"p": gap}, "cases": {"a": "p"}}
    declare(folders, ["background", "liver", "spleen"], label_sets=block)
    torch.save(start, folders / "start.pth")
    arguments = ["20", "2d", "0", "-pretrained_weights", str(folders / "start.pth")]
    assert training_arguments(arguments)[-1] == f"nnUNetTrainer{trainer}"


def test_an_undeclared_data_set_stays_with_nnunet_and_says_so(
    folders: Path, capsys: pytest.CaptureFixture
) -> None:
    declare(folders, ["background", "liver"])
    assert training_arguments(["20", "2d", "0"])[-2:] == ["-tr", "nnUNetTrainer"]
    assert "label_sets" in capsys.readouterr().out


def test_the_users_trainer_stays(folders: Path) -> None:
    arguments = ["-tr", "nnUNetTrainerLeafDice", "20", "2d", "0"]
    assert training_arguments(arguments) == arguments


def test_a_slip_gets_a_suggestion(folders: Path) -> None:
    with refusal(LabelSetError, "nnUNetTrainerLeafDice"):
        training_arguments(["20", "2d", "0", "-tr", "nnUNetTrainerLeafDise"])


@pytest.mark.parametrize("arguments", [["--help"], ["20"], ["20", "2d", "0", "-h"]])
def test_what_nnunet_explains_is_left_to_it(folders: Path, arguments: list[str]) -> None:
    assert training_arguments(arguments) == arguments


@pytest.mark.parametrize("flag", ["--c", "--val"])
def test_a_training_goes_on_with_its_trainer(folders: Path, flag: str) -> None:
    """The recommended trainer would begin anew, beside the training that was meant."""
    declare(folders, ["background", "liver"])
    trained = folders / "nnUNet_results" / "Dataset020_Test"
    (trained / "nnUNetTrainerLeafDice__nnUNetPlans__2d" / "fold_0").mkdir(parents=True)
    assert training_arguments(["20", "2d", "0", flag])[-2:] == ["-tr", "nnUNetTrainerLeafDice"]
    with refusal(LabelSetError, trained):
        training_arguments(["20", "2d", "1", flag])


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refusal(LabelSetError, "-device cpu"):
        check_device(["27", "2d", "0"])
    check_device(["27", "2d", "0", "-device", "cpu"])
    check_device(["--help"])


def test_predict_takes_the_only_model(folders: Path, capsys: pytest.CaptureFixture) -> None:
    results = folders / "nnUNet_results" / "Dataset020_Test"
    (results / "nnUNetTrainerLeafDice__nnUNetPlans__2d").mkdir(parents=True)
    (results / "nnUNetTrainerOther__nnUNetPlans__3d_fullres").mkdir()
    arguments = ["-i", "in", "-o", "out", "-d", "20", "-c", "2d"]
    assert prediction_arguments(arguments) == [*arguments, "-tr", "nnUNetTrainerLeafDice"]
    (results / "nnUNetTrainerLabelSet__nnUNetPlans__2d").mkdir()
    with refusal(LabelSetError, "nnUNetTrainerLabelSet", "nnUNetTrainerLeafDice"):
        prediction_arguments(arguments)


def test_plans_of_a_network_trained_from_scratch_are_found(folders: Path) -> None:
    plans = "nnsslPlans__from_scratch"  # as nnUNetv2_train_pretrained --from_scratch calls them
    model = folders / "nnUNet_results" / "Dataset020_Test" / f"nnUNetTrainerX__{plans}__2d"
    model.mkdir(parents=True)
    arguments = ["-d", "20", "-c", "2d", "-i", "images", "-o", "out", "-p", plans]
    assert prediction_arguments(arguments)[-2:] == ["-tr", "nnUNetTrainerX"]


@pytest.mark.parametrize("option", [("-device", "cpu"), ("-chk", "checkpoint_best.pth")])
def test_options_of_nnunet_are_not_taken_for_shorter_ones(
    folders: Path, option: tuple[str, str]
) -> None:
    model = folders / "nnUNet_results" / "Dataset020_Test" / "nnUNetTrainerX__nnUNetPlans__2d"
    model.mkdir(parents=True)
    arguments = ["-d", "20", "-c", "2d", "-i", "images", "-o", "out", *option]
    assert prediction_arguments(arguments)[-2:] == ["-tr", "nnUNetTrainerX"]
