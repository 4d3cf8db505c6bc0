"""`train --pretrained`: fine-tuning a checkpoint of nnssl, with an emulated nnU-Net that can."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet import default_trainer, discovery, pretraining
from tests.helpers import tiny
from tests.helpers.pretraining import write_nnunet

TRAINER = discovery.PRETRAINED_TRAINER
PLANS = "nnsslPlans"
DATASET_JSON = {
    "labels": {"background": 0, "liver": 1},
    "label_sets": {"version": 1, "protocols": {"p": {}}, "cases": {"a": "p"}},
}


def test_a_released_nnunet_has_no_such_command(capsys: pytest.CaptureFixture) -> None:
    if discovery.has_pretraining():
        pytest.skip("this nnU-Net has it")
    from nnunet_labelset.cli import main
    from nnunet_labelset.trainers import pretrained, variants

    assert main(["train", "--pretrained", "901", "3d_fullres", "0", "-p", PLANS]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "nnUNetv2_train_pretrained" in line
    assert not hasattr(pretrained, TRAINER)
    assert not [name for name in vars(variants) if "Pretrained" in name]
    assert not [name for name in discovery.known_trainers() if "LabelSetPretrained" in name]
    assert TRAINER not in discovery.described_trainers()


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments for a data set; the checks before the command take nnU-Net for one that has it."""
    folder = tmp_path / "Dataset020_Test"
    folder.mkdir()
    (folder / "dataset.json").write_text(json.dumps(DATASET_JSON))
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path))
    for module in (discovery, pretraining):
        monkeypatch.setattr(module, "has_pretraining", lambda: True)
    return ["20", "3d_fullres", "0", "-p", PLANS]


def test_without_trainer_ours_is_taken(emulated: list[str], tmp_path: Path) -> None:
    words, trainer = default_trainer.fine_tuning_arguments(emulated)
    assert words == [*emulated, "-tr", TRAINER]
    assert trainer == TRAINER
    sides = {"background": 0, "kidney_l": 1, "kidney_r": 2}
    declared = {**DATASET_JSON, "labels": sides}
    (tmp_path / "Dataset020_Test" / "dataset.json").write_text(json.dumps(declared))
    _, trainer = default_trainer.fine_tuning_arguments(emulated)
    assert trainer == f"{TRAINER}_NoMirroring"


def test_help_and_wrong_arguments_go_to_the_command(emulated: list[str]) -> None:
    for words in (["--help"], [*emulated, "-h"], ["20"]):
        assert default_trainer.fine_tuning_arguments(words) == (words, None)


def test_more_gpus_and_unknown_trainers_are_refused(emulated: list[str]) -> None:
    for words, fact in ((["-num_gpus", "2"], "-num_gpus 2"), (["-tr", "None"], "-tr None")):
        with pytest.raises(LabelSetError, match=fact):
            pretraining.train_pretrained([*emulated, *words])


@pytest.fixture(scope="module")
def fine_tuning(prepared: tiny.NNUNet, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The tiny data set with the plans and the checkpoint of a pretraining, and a way to run."""
    folder = tmp_path_factory.mktemp("development")
    environment = {**write_nnunet(folder), "nnUNet_n_proc_DA": "0"}
    data = prepared.preprocessed / tiny.NAME
    plans = json.loads((data / "nnUNetResEncUNetMPlans.json").read_text())
    plans["plans_name"] = PLANS
    plans["pretrain_info"] = {"checkpoint_path": str(folder / "nnssl.pth")}
    fullres = plans["configurations"]["3d_fullres"]
    fullres["data_identifier"] = "nnUNetPlans_3d_fullres"
    (data / f"{PLANS}.json").write_text(json.dumps(plans))
    weights = network_of(fullres).state_dict()
    torch.save({"network_weights": weights}, folder / "nnssl.pth")

    def run(verb: str, *words: object, check: bool = True, **more: str) -> str:
        done = prepared.run(
            "nnunet_labelset", verb, *words, "-device", "cpu", check=check, **environment, **more
        )
        return done.stdout + done.stderr

    return SimpleNamespace(nnunet=prepared, run=run, environment=environment, weights=weights)


def network_of(configuration: dict) -> torch.nn.Module:
    from nnunetv2.utilities.get_network_from_plans import get_network_from_plans

    architecture = configuration["architecture"]
    return get_network_from_plans(
        architecture["network_class_name"],
        architecture["arch_kwargs"],
        architecture["_kw_requires_import"],
        1,
        4,
        deep_supervision=False,
    )


WORDS = ("--pretrained", 901, "3d_fullres", 0, "-p", PLANS)


def test_train_resume_validate_predict(fine_tuning: SimpleNamespace, tmp_path: Path) -> None:
    nnunet = fine_tuning.nnunet
    trainer = f"{TRAINER}_short"
    log = fine_tuning.run("train", *WORDS, "-tr", trainer)
    assert "Loaded Network from" in log
    assert "Cases in which each label is annotated" in log
    fold = nnunet.model_folder(trainer, plans=PLANS) / "fold_0"
    assert (fold / "validation" / "summary.json").is_file()

    (fold / "checkpoint_final.pth").rename(fold / "checkpoint_latest.pth")
    log = fine_tuning.run("train", *WORDS, "-tr", trainer, "--c", nnunet_labelset_epochs="2")
    assert "Epoch 1" in log
    assert "Epoch 0" not in log.split("Epoch 1")[1]
    fine_tuning.run("train", *WORDS, "-tr", trainer, "--val")

    predictions = tmp_path / "predictions"
    images = nnunet.raw / tiny.NAME / "imagesTs"
    words = ("-d", 901, "-i", images, "-o", predictions, "-c", "3d_fullres", "-f", 0, "-p", PLANS)
    assert trainer in fine_tuning.run("predict", *words, "-npp", 1, "-nps", 1)
    assert len(list(predictions.glob("*.nii.gz"))) == 2


def test_primus_and_trainers_of_the_user(fine_tuning: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(
        "from nnunetv2.training.nnUNetTrainer.pretraining.pretrainedTrainer import (\n"
        "    PretrainedTrainer_Primus)\n"
        "from nnunet_labelset.trainer import RecommendedMixin\n"
        "from nnunet_labelset.training.short import ShortMixin\n"
        "class TheirTrainer(ShortMixin, RecommendedMixin, PretrainedTrainer_Primus): ...\n"
    )
    words = ("-tr", "TheirTrainer", "--from_scratch")
    fine_tuning.run("train", *WORDS, *words, nnUNet_extTrainer=str(tmp_path))
    model = fine_tuning.nnunet.model_folder("TheirTrainer", plans=f"{PLANS}__from_scratch")
    assert (model / "fold_0" / "checkpoint_final.pth").is_file()


def test_trainers_are_listed_where_nnunet_has_them(fine_tuning: SimpleNamespace) -> None:
    done = fine_tuning.nnunet.run(
        "nnunet_labelset", "trainers", "--list", **fine_tuning.environment
    )
    assert f"{TRAINER} " in done.stdout
    assert f"{TRAINER}Primus " in done.stdout
