"""One sigmoid per label: nnU-Net's region loss where all is known, and plain label maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset.contract import Contract
from nnunet_labelset.trainers.sigmoid import nnUNetTrainerLabelSetSigmoid
from nnunet_labelset.training.sigmoid import one_region_per_label
from tests.helpers import tiny

TRAINER = "nnUNetTrainerLabelSetSigmoid_short"


def encoded(trainer: Any, case: str, value: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Values of the right shapes for a case, and the same as the loss gets them."""
    shapes = [(2, 1, size, size, size) for size in (16, 8)]
    values = [torch.full(shape, value, dtype=torch.int16) for shape in shapes]
    batch = trainer.encode_batch({"target": values, "keys": np.array([case, case])})
    return values, batch["target"]


def test_every_label_is_a_region_and_the_values_keep_their_meaning(
    in_process: tiny.NNUNet,
) -> None:
    plain = tiny.dataset_json(in_process)
    before = Contract.from_dataset_json(plain)
    after = Contract.from_dataset_json(one_region_per_label(plain))
    assert after.leaf_names == before.leaf_names
    assert after.value_names == before.value_names
    expected = {name: frozenset({i}) for i, name in enumerate(before.leaf_names) if i}
    assert after.regions == expected
    for case in before.cases:
        assert after.protocol(case).sets == before.protocol(case).sets


def test_a_data_set_with_regions_stays_as_it_is(regions_in_process: tiny.NNUNet) -> None:
    regions = tiny.dataset_json(regions_in_process)
    assert one_region_per_label(regions) == regions


def test_complete_cases_are_trained_with_nnunets_own_region_loss(in_process: tiny.NNUNet) -> None:
    dataset = tiny.dataset_json(in_process)
    ours = tiny.make(in_process, nnUNetTrainerLabelSetSigmoid)
    plain = tiny.make(in_process, nnUNetTrainer, one_region_per_label(dataset))
    for trainer in (ours, plain):
        trainer.initialize()
    labels = len(ours.contract.leaf_names)
    case = next(case for case in ours.contract.cases if ours.contract.is_fully_annotated(case))
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 1, size, size, size) for size in (16, 8)]
    values = [torch.randint(labels, shape, generator=generator) for shape in shapes]
    target = ours.encode_batch({"target": values, "keys": np.array([case, case])})["target"]
    outputs = [torch.randn(2, labels - 1, *shape[2:], generator=generator) for shape in shapes]
    # one mask per region; the last channel of nnU-Net's target marks ignored voxels
    masks = [
        torch.cat([*(scale == value for value in range(1, labels)), scale == labels], 1)
        for scale in values
    ]
    expected = float(plain.loss(outputs, masks)) + 1
    assert float(ours.loss(outputs, target)) == pytest.approx(expected, abs=1e-4)


def test_a_gap_says_nothing_about_the_labels_that_it_may_be(in_process: tiny.NNUNet) -> None:
    trainer = tiny.make(in_process, nnUNetTrainerLabelSetSigmoid)
    trainer.initialize()
    contract = trainer.contract
    gap = len(contract.leaf_names)
    case = next(case for case in contract.cases if 1 < len(contract.protocol(case).sets[gap]) < gap)
    open_labels = contract.protocol(case).sets[gap]
    _, target = encoded(trainer, case, gap)
    outputs = [torch.zeros(2, gap - 1, *scale.shape[2:]).requires_grad_() for scale in target]
    trainer.loss(outputs, target).backward()
    gradient = outputs[0].grad
    assert gradient is not None
    for label in range(1, gap):
        says_something = bool((gradient[:, label - 1] != 0).any())
        assert says_something == (label not in open_labels)


@pytest.mark.slow
def test_stock_nnunet_predicts_plain_labels(prepared: tiny.NNUNet, tmp_path: Path) -> None:
    prepared.train("3d_fullres", 0, TRAINER)
    model = prepared.model_folder(TRAINER)
    dataset = json.loads((model / "dataset.json").read_text())
    assert Contract.from_dataset_json(dataset).regions
    images = prepared.raw / tiny.NAME / "imagesTs"
    where = ["-i", images, "-o", tmp_path, "-d", 901, "-c", "3d_fullres", "-tr", TRAINER, "-f", 0]
    prepared.run("nnUNetv2_predict", *where, "-npp", 1, "-nps", 1, "-device", "cpu")
    values = sitk.GetArrayFromImage(sitk.ReadImage(str(next(tmp_path.glob("*.nii.gz")))))
    assert values.max() < len(Contract.from_dataset_json(dataset).leaf_names)
    done = prepared.run(
        "nnunet_labelset", "export", "-d", 901, "-tr", TRAINER, "-o", tmp_path / "model.zip"
    )
    assert "segmentation" in done.stdout
