"""Checkpoints: whole or not there, and only for the contract that they were trained with."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from nnunet_labelset.trainers.leaf_dice import nnUNetTrainerLeafDice
from nnunet_labelset.trainers.short import nnUNetTrainerLeafDice_short
from tests.helpers import tiny


@pytest.fixture
def checkpoint(in_process: tiny.NNUNet, tmp_path: Path) -> Path:
    trainer = tiny.make(in_process, nnUNetTrainerLeafDice)
    trainer.initialize()
    path = tmp_path / "checkpoint_latest.pth"
    trainer.save_checkpoint(str(path))
    return path


def resume(nnunet: tiny.NNUNet, checkpoint: Path, dataset: dict[str, Any] | None = None) -> None:
    trainer = tiny.make(nnunet, nnUNetTrainerLeafDice, dataset)
    trainer._resuming = True
    trainer.load_checkpoint(str(checkpoint))


def test_what_the_fold_uses_must_be_the_same(in_process: tiny.NNUNet, checkpoint: Path) -> None:
    resume(in_process, checkpoint)
    dataset = tiny.dataset_json(in_process)
    cases = dataset["label_sets"]["cases"]
    dataset["label_sets"]["cases"] = dict.fromkeys(cases, "full")
    with pytest.raises(SystemExit, match="case 'merged_0': merged became full, case 'part_0'"):
        resume(in_process, checkpoint, dataset)
    dataset["label_sets"]["cases"] = cases
    dataset["label_sets"]["protocols"]["no_core"] = {"ignore": ["core"]}
    with pytest.raises(
        SystemExit, match="case 'part_0': its protocol 'no_core' has another meaning"
    ):
        resume(in_process, checkpoint, dataset)


def test_what_the_fold_does_not_use_may_change(in_process: tiny.NNUNet, checkpoint: Path) -> None:
    dataset = tiny.dataset_json(in_process)
    block = dataset["label_sets"]
    block["protocols"] |= {
        "new": {"core": ["core", "dot"]},
        "renamed": block["protocols"]["no_core"],
    }
    block["cases"] |= {"a_test_case": "new", "part_0": "renamed"}
    resume(in_process, checkpoint, dataset)


def test_a_checkpoint_is_never_half_written(
    in_process: tiny.NNUNet, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = checkpoint.read_bytes()

    def cut_off(content: Any, path: str) -> None:
        Path(path).write_bytes(before[: len(before) // 2])
        raise KeyboardInterrupt

    trainer = tiny.make(in_process, nnUNetTrainerLeafDice)
    trainer.initialize()
    monkeypatch.setattr(torch, "save", cut_off)
    with pytest.raises(KeyboardInterrupt):
        trainer.save_checkpoint(str(checkpoint))
    assert checkpoint.read_bytes() == before
    monkeypatch.undo()
    trainer.save_checkpoint(str(checkpoint))  # what was left behind is in nobody's way
    assert [path.name for path in checkpoint.parent.glob("checkpoint*")] == [checkpoint.name]


@pytest.mark.parametrize("size", [0, 1000, -1000])
def test_a_cut_off_checkpoint_is_named_with_the_one_to_take(
    in_process: tiny.NNUNet, checkpoint: Path, size: int
) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes()[:size])
    with pytest.raises(
        SystemExit, match=r"checkpoint_latest.pth: not a whole checkpoint .*start a new training"
    ):
        resume(in_process, checkpoint)
    checkpoint.with_name("checkpoint_best.pth").touch()
    with pytest.raises(SystemExit, match=r"remove it, and --c goes on from checkpoint_best.pth"):
        resume(in_process, checkpoint)


def test_a_short_training_goes_on_with_the_patches_that_it_has_not_seen(
    in_process: tiny.NNUNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a continued training learns is what the uninterrupted one learns."""
    for name, value in {"epochs": 2, "iterations": 2}.items():
        monkeypatch.setenv(f"nnunet_labelset_{name}", str(value))
    seen: list[torch.Tensor] = []
    step = nnUNetTrainerLeafDice_short.train_step

    def watched(self: Any, batch: dict) -> dict:
        seen.append(copy.deepcopy(batch["data"]))
        return step(self, batch)

    monkeypatch.setattr(nnUNetTrainerLeafDice_short, "train_step", watched)
    whole = tiny.make(in_process, nnUNetTrainerLeafDice_short)
    whole.save_every = 1
    monkeypatch.setattr(whole, "on_train_end", lambda: None)  # which removes checkpoint_latest.pth
    whole.run_training()
    continued = tiny.make(in_process, nnUNetTrainerLeafDice_short)
    continued.load_checkpoint(str(Path(whole.output_folder) / "checkpoint_latest.pth"))
    assert continued.current_epoch == 1
    continued.run_training()
    assert len(seen) == 6
    assert not torch.equal(seen[0], seen[4])
    assert torch.equal(torch.stack(seen[2:4]), torch.stack(seen[4:]))
