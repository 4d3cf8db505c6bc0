"""What the plugin is for: leaves that only a few cases annotate are learnt everywhere."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset.trainers.plain import nnUNetTrainer_short
from nnunet_labelset.trainers.variants import nnUNetTrainerLabelSet_short
from tests.helpers import tiny


def trained(nnunet: tiny.NNUNet, cls: type) -> nnUNetTrainer:
    plans = json.loads((nnunet.preprocessed / tiny.NAME / "nnUNetPlans.json").read_text())
    configuration = plans["configurations"]["3d_fullres"]  # wide enough to learn something
    configuration["patch_size"] = [24, 24, 24]
    configuration["architecture"]["arch_kwargs"]["features_per_stage"] = [16, 32, 64]
    dataset = json.loads((nnunet.preprocessed / tiny.NAME / "dataset.json").read_text())
    trainer = cls(
        {**plans, "continue_training": False}, "3d_fullres", "all", dataset, torch.device("cpu")
    )
    trainer.disable_checkpointing = True
    trainer.run_training()
    return trainer


def dice_of_the_unannotated(trainer: nnUNetTrainer) -> float:
    """Mean Dice of the core on new volumes of the scanner whose cases never annotate it.

    (They lack the dot too. Nothing tells it from the core there, so that chance decides whether it
    is found.)
    """
    predictor = nnUNetPredictor(device=torch.device("cpu"), use_mirroring=False, allow_tqdm=False)
    predictor.manual_initialization(
        trainer.network,
        trainer.plans_manager,
        trainer.configuration_manager,
        None,
        trainer.dataset_json,
        "",
        None,
    )
    trainer.set_deep_supervision_enabled(False)
    scores = []
    for seed in range(200, 204):
        image, labels = tiny.volume(seed, "no_core")
        data = torch.from_numpy((image - image.mean()) / image.std())[None]
        predicted = predictor.predict_sliding_window_return_logits(data).argmax(0).numpy()
        a, b = predicted == 2, labels == 2
        scores.append(2 * np.sum(a & b) / (a.sum() + b.sum()))
    return float(np.mean(scores))


def test_label_sets_teach_what_ignoring_cannot(
    in_process: tiny.NNUNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("nnunet_labelset_epochs", "5")
    monkeypatch.setenv("nnunet_labelset_iterations", "40")
    ignoring = dice_of_the_unannotated(trained(in_process, nnUNetTrainer_short))
    label_sets = dice_of_the_unannotated(trained(in_process, nnUNetTrainerLabelSet_short))
    assert label_sets > 0.8
    assert label_sets > ignoring + 0.05
