"""The same trainers on a data set with regions: nnU-Net's commands, and its loss where all is
known.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch
from batchgenerators.utilities.file_and_folder_operations import load_pickle
from nnunetv2.evaluation.evaluate_predictions import load_summary_json
from nnunetv2.postprocessing.remove_connected_components import apply_postprocessing_to_folder
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset.cli import main
from nnunet_labelset.trainers.baselines import nnUNetTrainerSoftTargetDice
from nnunet_labelset.trainers.label_set import nnUNetTrainerLabelSet
from nnunet_labelset.trainers.leaf_dice import nnUNetTrainerLeafDice, nnUNetTrainerLeafDiceCE
from nnunet_labelset.trainers.marginal import nnUNetTrainerMarginalCE, nnUNetTrainerMarginalDiceCE
from nnunet_labelset.trainers.variants import (
    nnUNetTrainerLabelSetTeacher_short,
    nnUNetTrainerLeafDiceCE_short,
)
from tests.helpers import tiny
from tests.helpers.errors import refusal
from tests.helpers.tiny import enter

TRAINER = "nnUNetTrainerLeafDiceCE_short"
KEYS = [(1, 2, 3), (2, 3), 3]


def batch(cases: list[str], seed: int = 0, values: int = 5) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "data": torch.randn(len(cases), 1, 16, 16, 16, generator=generator),
        "target": [
            torch.randint(values, (len(cases), 1, s, s, s), generator=generator, dtype=torch.int16)
            for s in (16, 8)
        ],
        "keys": np.array(cases),
    }


@pytest.mark.parametrize(
    "cls", [nnUNetTrainerLeafDiceCE, nnUNetTrainerMarginalDiceCE, nnUNetTrainerLabelSet]
)
def test_complete_cases_are_trained_with_nnunets_own_region_loss(
    regions_in_process: tiny.NNUNet, cls: type
) -> None:
    ours, plain = tiny.make(regions_in_process, cls), tiny.make(regions_in_process, nnUNetTrainer)
    for trainer in (ours, plain):
        trainer.configuration_manager.configuration["batch_dice"] = cls is nnUNetTrainerLabelSet
        trainer.initialize()
    ours.current_epoch = ours.num_epochs - 1
    # the cross entropy of nnUNetTrainerLabelSet has its full weight at last
    ours.on_train_epoch_start()
    example = batch(["full_0", "full_1"])
    masks = [
        torch.cat([*(torch.isin(scale, torch.tensor(key)) for key in KEYS), scale == 4], 1)
        for scale in example["target"]
    ]
    logits = [torch.randn(2, 3, s, s, s) for s in (16, 8)]
    expected = plain.loss(logits, masks) + 1
    assert float(ours.loss(logits, ours.encode_batch(example)["target"])) == pytest.approx(
        float(expected), abs=1e-4
    )


@pytest.mark.parametrize(
    "cls", [nnUNetTrainerLeafDice, nnUNetTrainerMarginalCE, nnUNetTrainerLeafDiceCE]
)
def test_the_outermost_contour_says_nothing_about_what_is_inside(
    regions_in_process: tiny.NNUNet, cls: type
) -> None:
    trainer = tiny.make(regions_in_process, cls)
    trainer.initialize()
    example = trainer.encode_batch(batch(["whole_0", "whole_1"], values=2))
    logits = [torch.randn(2, 3, s, s, s, requires_grad=True) for s in (16, 8)]
    trainer.loss(logits, example["target"]).backward()
    inside = batch(["whole_0", "whole_1"], values=2)["target"][0][:, 0] == 1
    assert logits[0].grad is not None
    assert (logits[0].grad[:, 0] != 0).all()  # the whole is known everywhere
    assert (logits[0].grad[:, 1:].movedim(1, -1)[inside] == 0).all()
    if cls is not nnUNetTrainerLeafDice:  # Dice alone has no gradient where a region has no voxel
        assert (logits[0].grad[:, 1:].movedim(1, -1)[~inside] != 0).all()


def test_the_patches_carry_values(regions_in_process: tiny.NNUNet) -> None:
    """nnU-Net's transforms would turn them into masks of regions, and a label-set would be lost."""
    trainer = tiny.make(regions_in_process, nnUNetTrainerLeafDiceCE_short)
    trainer.on_train_start()
    for loader in (trainer.dataloader_train, trainer.dataloader_val):
        example = next(loader)
        assert example["target"][0].shape[1] == 1
        assert trainer.train_step(copy.deepcopy(example))["loss"] > 0


def test_pseudo_dice_by_region(regions_in_process: tiny.NNUNet) -> None:
    trainer = tiny.make(regions_in_process, nnUNetTrainerLeafDiceCE)
    trainer.initialize()
    trainer.network.eval()
    example = batch(["full_0", "whole_0"])
    outputs = trainer.validation_step(copy.deepcopy(example))
    with torch.no_grad():
        predicted = torch.sigmoid(trainer.network(example["data"])[0]) > 0.5
    everything = {0, 1, 2, 3}
    sets = [[{0}, {1}, {2}, {3}, everything], [{0}, {1, 2, 3}, {2}, {3}, everything]]
    expected = np.zeros((3, 3), int)
    for b in range(2):
        for region, leaves in enumerate(({1, 2, 3}, {2, 3}, {3})):
            voxels = zip(
                example["target"][0][b].flatten().tolist(),
                predicted[b, region].flatten().tolist(),
                strict=True,
            )
            for value, positive in voxels:
                inside, outside = sets[b][value] <= leaves, not sets[b][value] & leaves
                expected[:, region] += [
                    inside and positive,
                    outside and positive,
                    inside and not positive,
                ]
    assert [outputs[key].tolist() for key in ("tp_hard", "fp_hard", "fn_hard")] == expected.tolist()


def test_mistakes_stop_at_once(regions_in_process: tiny.NNUNet) -> None:
    with refusal(SystemExit, "soft-target", "regions", "nnUNetTrainerLabelSet"):
        tiny.make(regions_in_process, nnUNetTrainerSoftTargetDice).initialize()
    with refusal(SystemExit, "teacher", "regions", "nnUNetTrainerLabelSet"):
        tiny.make(regions_in_process, nnUNetTrainerLabelSetTeacher_short).initialize()
    labels, block = tiny.REGIONS["labels"], tiny.REGIONS["label_sets"]
    two = {key: labels[key] for key in ("background", "whole", "inner", "ignore")}
    for changes, fact in (
        ({"labels": {**labels, "inner": []}}, "'inner'"),
        (
            {"labels": {**two, "whole": [1, 2], "inner": [2]}, "regions_class_order": [1, 2]},
            "'dot'",
        ),
        ({"regions_class_order": None}, "regions_class_order"),
        (
            {"label_sets": {**block, "protocols": {"full": {}, "merged": {"whole": ["shell"]}}}},
            "'whole'",
        ),
    ):
        dataset = {**tiny.dataset_json(regions_in_process), **changes}
        with refusal(SystemExit, fact):
            tiny.make(regions_in_process, nnUNetTrainerLeafDice, dataset)


def test_the_whole_road(prepared_regions: tiny.NNUNet, tmp_path: Path) -> None:
    """Train, validate by region, predict and ensemble with stock nnU-Net, export."""
    nnunet = prepared_regions
    log = nnunet.train("3d_fullres", 0, TRAINER, "--npz")
    assert re.search(r"whole +\d+ of \d+", log)
    assert "running Dice" not in log  # which regions do not have
    assert log.count("Mean Validation Dice") == 1
    model = nnunet.model_folder(TRAINER)
    summary = load_summary_json(str(model / "fold_0" / "validation" / "summary.json"))
    assert list(summary["mean"]) == KEYS
    for case in summary["metric_per_case"]:
        whole_only = "whole" in Path(case["reference_file"]).name
        scores = [case["metrics"][key] for key in KEYS]
        assert scores[0]["TP"] + scores[0]["FN"] > 0
        assert np.isnan([score["Dice"] for score in scores[1:]]).all() == whole_only
    images = nnunet.raw / tiny.NAME / "imagesTs"
    arguments = [
        "-i",
        images,
        "-o",
        tmp_path / "out",
        "-d",
        901,
        "-c",
        "3d_fullres",
        "-tr",
        TRAINER,
        "-f",
        0,
    ]
    options = ["-npp", 1, "-nps", 1, "-device", "cpu", "--disable_tta", "--save_probabilities"]
    nnunet.run("nnUNetv2_predict", *arguments, *options)
    nnunet.run(
        "nnUNetv2_ensemble",
        "-i",
        tmp_path / "out",
        tmp_path / "out",
        "-o",
        tmp_path / "both",
        "-np",
        1,
    )
    values, both = (
        sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / folder / "test_100.nii.gz")))
        for folder in ("out", "both")
    )
    assert set(np.unique(values)) <= {0, 1, 2, 3}  # regions_class_order
    assert np.array_equal(values, both)
    archive = tmp_path / "model.zip"
    done = nnunet.run("nnunet_labelset", "export", "-d", 901, "-tr", TRAINER, "-o", archive)
    assert "segmentation" in done.stdout
    assert json.loads((model / "dataset.json").read_text())["label_sets"]["version"] == 2


def test_cascade(prepared_regions: tiny.NNUNet) -> None:
    prepared_regions.train("3d_lowres", "all", TRAINER)
    prepared_regions.train("3d_cascade_fullres", "all", TRAINER)
    validation = (
        prepared_regions.model_folder(TRAINER, "3d_cascade_fullres") / "fold_all" / "validation"
    )
    assert list(load_summary_json(str(validation / "summary.json"))["mean"]) == KEYS


def test_2d_selection_and_postprocessing(
    prepared_regions: tiny.NNUNet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """nnU-Net's commands ensemble and postprocess regions; our selection does, with what is known
    of every region.
    """
    nnunet = enter(prepared_regions, monkeypatch, prepared_regions.results)
    for configuration in ("2d", "3d_fullres"):
        if not list(
            (nnunet.model_folder(TRAINER, configuration) / "fold_0" / "validation").glob("*.npz")
        ):
            nnunet.train(configuration, 0, TRAINER, "--npz")
    words = [901, "-tr", TRAINER, "-c", "2d", "3d_fullres", "-f", 0, "-np", 1]
    nnunet.run("nnUNetv2_find_best_configuration", *words)
    (ensemble,) = (nnunet.results / tiny.NAME / "ensembles").iterdir()
    (ensemble / "postprocessing.pkl").unlink(missing_ok=True)
    assert main(["find_best_configuration", *map(str, words)]) == 0
    assert "Best by label-set-aware Dice" in capsys.readouterr().out
    information = json.loads(
        (nnunet.results / tiny.NAME / "inference_information.json").read_text()
    )
    assert len(information["all_results"]) == 3
    summary = load_summary_json(str(ensemble / "summary.json"))
    assert list(summary["mean"]) == KEYS
    assert summary["annotated_cases"]["(1, 2, 3)"] >= summary["annotated_cases"]["3"]
    chosen = Path(information["best_model_or_ensemble"]["postprocessing_file"])
    functions, options = load_pickle(str(chosen))
    apply_postprocessing_to_folder(
        str(ensemble),
        str(tmp_path / "postprocessed"),
        functions,
        options,
        str(ensemble / "plans.json"),
        str(ensemble / "dataset.json"),
        1,
    )
    assert len(list((tmp_path / "postprocessed").glob("*.nii.gz"))) == len(
        summary["metric_per_case"]
    )


def test_training_goes_on(prepared_regions: tiny.NNUNet) -> None:
    if not (prepared_regions.model_folder(TRAINER) / "fold_0" / "checkpoint_final.pth").is_file():
        prepared_regions.train("3d_fullres", 0, TRAINER, "--npz")
    log = prepared_regions.train(
        "3d_fullres", 0, TRAINER, "--c", "--npz", nnunet_labelset_epochs="2"
    )
    assert "Epoch 1" in log
    assert "Epoch 0" not in log
