"""Checkpoints: whole or not there, and only for the contract that they were trained with."""

from __future__ import annotations

import copy
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nnunet_labelset.contract import Contract
from nnunet_labelset.trainers.leaf_dice import nnUNetTrainerLeafDice
from nnunet_labelset.trainers.variants import nnUNetTrainerLeafDice_short
from nnunet_labelset.training.outputs import FinalValidation
from tests.helpers import tiny
from tests.helpers.errors import refusal


@pytest.fixture
def checkpoint(in_process: tiny.NNUNet, tmp_path: Path) -> Path:
    trainer = tiny.make(in_process, nnUNetTrainerLeafDice)
    trainer.initialize()
    path = tmp_path / "checkpoint_latest.pth"
    trainer.save_checkpoint(str(path))
    return path


def resume(nnunet: tiny.NNUNet, checkpoint: Path, dataset: dict[str, Any] | None = None) -> None:
    trainer = tiny.make(nnunet, nnUNetTrainerLeafDice, dataset)
    trainer.is_resuming = True
    trainer.load_checkpoint(str(checkpoint))


def test_what_the_fold_uses_must_be_the_same(in_process: tiny.NNUNet, checkpoint: Path) -> None:
    resume(in_process, checkpoint)
    dataset = tiny.dataset_json(in_process)
    cases = dataset["label_sets"]["cases"]
    dataset["label_sets"]["cases"] = dict.fromkeys(cases, "full")
    with refusal(SystemExit, "'merged_0'", "merged", "full", "'part_0'"):
        resume(in_process, checkpoint, dataset)
    dataset["label_sets"]["cases"] = cases
    dataset["label_sets"]["protocols"]["no_core"] = {"ignore": ["core"]}
    with refusal(SystemExit, "'part_0'", "'no_core'"):
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
    with refusal(SystemExit, checkpoint, "without --c"):
        resume(in_process, checkpoint)
    checkpoint.with_name("checkpoint_best.pth").touch()
    with refusal(SystemExit, checkpoint, "--c ", "checkpoint_best.pth"):
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


def move_to_training(nnunet: tiny.NNUNet, monkeypatch: pytest.MonkeyPatch) -> str:
    """Change the split: the first validation case becomes a training case."""
    split = nnUNetTrainerLeafDice.do_split

    def changed(self: Any) -> tuple[list[str], list[str]]:
        training, validation = split(self)
        return [*training, validation[0]], validation[1:]

    moved = tiny.make(nnunet, nnUNetTrainerLeafDice).do_split()[1][0]
    monkeypatch.setattr(nnUNetTrainerLeafDice, "do_split", changed)
    return moved


@pytest.mark.parametrize("is_resuming", [True, False])
def test_a_fold_with_other_cases_is_refused(
    in_process: tiny.NNUNet, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, is_resuming: bool
) -> None:
    """`--val` would score a network on its own training cases."""
    case = move_to_training(in_process, monkeypatch)
    trainer = tiny.make(in_process, nnUNetTrainerLeafDice)
    trainer.is_resuming = is_resuming
    facts = (f"'{case}'", "new training case", "was a validation case", "splits_final.json")
    with refusal(SystemExit, *facts):
        trainer.load_checkpoint(str(checkpoint))


def test_a_checkpoint_of_an_older_version_resumes(
    in_process: tiny.NNUNet, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.2 stored four keys, and no cases; a new checkpoint then has them."""
    content = torch.load(checkpoint, weights_only=False)
    counts = np.arange(9.0).reshape(3, 3)
    old_state = {"pseudo_dice_counts": counts, "a key of a later version": 1}
    content["optimizer_state"]["param_groups"][0]["label_sets"] = old_state
    torch.save(content, checkpoint)
    trainer = tiny.make(in_process, nnUNetTrainerLeafDice)
    trainer.load_checkpoint(str(checkpoint))
    assert np.array_equal(trainer.state.pseudo_dice_counts, counts)
    trainer.save_checkpoint(str(checkpoint))
    case = move_to_training(in_process, monkeypatch)
    with refusal(SystemExit, f"'{case}'", "splits_final.json"):
        resume(in_process, checkpoint)


@pytest.mark.parametrize("name", ["filename_or_checkpoint", "checkpoint", None])
@pytest.mark.parametrize("is_dict", [True, False])
def test_every_way_to_name_a_checkpoint(
    in_process: tiny.NNUNet, checkpoint: Path, name: str | None, is_dict: bool
) -> None:
    """nnU-Net's master renamed the argument, which may be a dict."""
    source = torch.load(checkpoint, weights_only=False) if is_dict else str(checkpoint)
    trainer = tiny.make(in_process, nnUNetTrainerLeafDice)
    if name is None:
        trainer.load_checkpoint(source)
    else:
        trainer.load_checkpoint(**{name: source})
    assert trainer.current_epoch == 1
    weights = torch.load(checkpoint, weights_only=False)["network_weights"]
    loaded = trainer.network.state_dict()
    assert all(torch.equal(loaded[key], weights[key]) for key in weights)


def test_killed_trainings_leave_one_file_at_most(
    in_process: tiny.NNUNet, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = tiny.make(in_process, nnUNetTrainerLeafDice)
    trainer.initialize()

    def killed(content: Any, path: str) -> None:
        Path(path).write_bytes(b"half")
        os._exit(9)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", killed)
        for _ in range(2):
            process = os.fork()
            if process == 0:
                trainer.save_checkpoint(str(checkpoint))
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    assert len(list(checkpoint.parent.glob(".*.pth"))) == 1
    trainer.save_checkpoint(str(checkpoint))
    assert not list(checkpoint.parent.glob(".*.pth"))
    resume(in_process, checkpoint)


def test_a_full_disk_is_one_line(
    in_process: tiny.NNUNet, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = tiny.make(in_process, nnUNetTrainerLeafDice)
    trainer.initialize()

    def full(content: Any, path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", full)
    with refusal(SystemExit, checkpoint, "No space left"):
        trainer.save_checkpoint(str(checkpoint))


def test_old_predictions_do_not_stay(tmp_path: Path) -> None:
    """Of cases that the fold no longer validates, and probabilities of another checkpoint."""
    old_files = ["old.nii.gz", "old.npz", "old.pkl", "summary.json"]
    other_files = ["metrics.json", ".hidden.nii.gz"]
    folder = tmp_path / "validation"
    folder.mkdir()
    for name in [*old_files, *other_files]:
        (folder / name).touch()
    contract = Contract.from_dataset_json(
        {"labels": tiny.LABELS, "label_sets": {"version": 1, "protocols": {}, "cases": {}}}
    )
    final = FinalValidation(str(tmp_path), "", contract, {"file_ending": ".nii.gz"})
    final.prepare(is_ddp=False)
    assert sorted(path.name for path in folder.iterdir()) == sorted(other_files)
