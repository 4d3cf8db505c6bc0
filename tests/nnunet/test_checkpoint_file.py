"""Checkpoints of strangers are data: reading one runs nothing."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.checkpoint_file import TRUST, read_checkpoint
from nnunet_labelset.nnunet.model_file import opened_model
from nnunet_labelset.training.checkpoints import (
    StartFile,
    read_whole_checkpoint,
    whole_checkpoint,
)
from tests.helpers.errors import refusal


class Code:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_what_nnunet_saves_is_read(tmp_path: Path) -> None:
    content = {
        "network_weights": {"conv.weight": torch.ones(2, 3)},
        "logging": {"ema_fg_dice": [np.float64(0.5), np.float32(0.25)], "epochs": [np.int64(3)]},
        "optimizer_state": {"param_groups": [{"label_sets": {"counts": np.zeros((3, 2))}}]},
        "inference_allowed_mirroring_axes": (0, 1, 2),
    }
    torch.save(content, tmp_path / "checkpoint.pth")
    for mmap in (False, True):
        found = read_checkpoint(tmp_path / "checkpoint.pth", mmap=mmap)
        assert found["logging"] == content["logging"]
        assert torch.equal(found["network_weights"]["conv.weight"], torch.ones(2, 3))
        counts = found["optimizer_state"]["param_groups"][0]["label_sets"]["counts"]
        assert counts.shape == (3, 2)


def test_code_is_refused_unless_trusted(tmp_path: Path) -> None:
    path, proof = tmp_path / "checkpoint.pth", tmp_path / "proof"
    torch.save({"network_weights": Code(proof)}, path)
    with refusal(LabelSetError, path, "mkdir", "--trust"):
        read_checkpoint(path)
    assert not proof.exists()
    read_checkpoint(path, trust=True)
    assert proof.is_dir()


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth"
    torch.save({"network_weights": {"a": torch.ones(1000)}}, path)
    path.write_bytes(path.read_bytes()[:900])
    with refusal(LabelSetError, path):
        read_checkpoint(path)


def test_a_zip_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "model.zip"
    model = "Dataset001_A/nnUNetTrainer__nnUNetPlans__2d"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(f"{model}/plans.json", "{}")
        file.writestr(f"{model}/dataset.json", "{}")
        file.writestr(f"{model}/fold_0/checkpoint_final.pth", bytes(20_000_000))
    with refusal(LabelSetError, "20 MB"), opened_model(archive):
        pass


def test_a_checkpoint_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    path, crafted = tmp_path / "checkpoint.pth", tmp_path / "crafted.pth"
    torch.save({"network_weights": {"a": torch.zeros(5_000_000)}}, path)
    with (
        zipfile.ZipFile(path) as archive,
        zipfile.ZipFile(crafted, "w", zipfile.ZIP_DEFLATED) as compressed,
    ):
        for name in archive.namelist():
            compressed.writestr(name, archive.read(name))
    assert crafted.stat().st_size < 100_000
    with refusal(LabelSetError, crafted, "20 MB", "--trust"):
        read_checkpoint(crafted)
    assert read_checkpoint(path)["network_weights"]["a"].shape == (5_000_000,)


def test_a_training_runs_no_code_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `-pretrained_weights` and with `--c`, before nnU-Net loads the file."""
    path, proof = tmp_path / "checkpoint.pth", tmp_path / "proof"
    torch.save({"network_weights": Code(proof)}, path)
    monkeypatch.setattr(sys, "argv", ["nnUNetv2_train", "-pretrained_weights", str(path)])
    start_file = StartFile(str(tmp_path), "nnUNetPlans", "2d", ["background", "liver"])
    with refusal(LabelSetError, path, "mkdir", TRUST):
        start_file.check(torch.nn.Linear(1, 1))
    with refusal(LabelSetError, path, "mkdir", TRUST):
        read_whole_checkpoint(str(path))
    assert not proof.exists()
    monkeypatch.setenv(TRUST, "1")
    read_whole_checkpoint(str(path))
    assert proof.is_dir()


def test_killed_trainings_do_not_leave_more_and_more_files(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_latest.pth"
    writing = whole_checkpoint(str(path))
    leftover = writing.__enter__()  # as a process that is killed now
    leftover.write_bytes(b"half")
    with whole_checkpoint(str(path)) as temporary:
        assert temporary == leftover
        temporary.write_bytes(b"whole")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"whole"
