"""What a model card counts: training cases, not the test cases that the contract names beside
them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from nnunet_labelset.io.files import write_json
from nnunet_labelset.nnunet.checkpoint_file import STATE
from nnunet_labelset.nnunet.model_card import model_card

MODEL = "nnUNetTrainerLabelSet__nnUNetPlans__3d_fullres"
DATASET = {
    "channel_names": {"0": "CT"},
    "labels": {"background": 0, "liver": 1, "spleen": 2},
    "label_sets": {
        "version": 1,
        "protocols": {
            "complete": {},
            "partial": {"background": ["background", "spleen"]},
            "test": {},
        },
        "cases": {"a": "complete", "b": "partial", "c": "partial", "t1": "test", "t2": "complete"},
    },
}


def test_test_cases_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "results" / "Dataset010_Organs" / MODEL
    write_json(model / "dataset.json", DATASET)
    folder = tmp_path / "preprocessed" / "Dataset010_Organs"
    monkeypatch.setenv("nnUNet_preprocessed", str(folder.parent))
    # nothing tells
    assert "| 2 | spleen | 3 of 5 | not scored |" in model_card(model, ["0"], "nnUNetTrainer")
    folder.mkdir(parents=True)
    (folder / "splits_final.json").write_text(json.dumps([{"train": ["a", "b"], "val": ["c"]}]))
    card = model_card(model, ["0"], "nnUNetTrainer")
    assert "| 2 | spleen | 1 of 2 | not scored |" in card
    assert "| 1 | liver | 2 of 2 | not scored |" in card
    assert re.search(r"partial \(1 .*background or spleen", card)
    assert "test (" not in card


def test_the_cases_of_the_checkpoint_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The splits may have changed since the training."""
    model = tmp_path / "results" / "Dataset010_Organs" / MODEL
    write_json(model / "dataset.json", DATASET)
    folder = tmp_path / "preprocessed" / "Dataset010_Organs"
    monkeypatch.setenv("nnUNet_preprocessed", str(folder.parent))
    write_json(folder / "splits_final.json", [{"train": ["b", "c"], "val": ["a"]}])
    state = {STATE: {"training_cases": ["a", "b"]}}
    (model / "fold_0").mkdir()
    checkpoint = {"optimizer_state": {"param_groups": [state]}}
    torch.save(checkpoint, model / "fold_0" / "checkpoint_final.pth")
    assert "| 2 | spleen | 1 of 2 | not scored |" in model_card(model, ["0"], "nnUNetTrainer")
