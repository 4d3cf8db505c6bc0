"""The teacher resolves label-sets inside what the annotation allows, after a warm-up, and goes on
with `--c`.
"""

from __future__ import annotations

import copy
import gc
import re
import sys
from pathlib import Path

import pytest
import torch
from nnunetv2.run.load_pretrained_weights import load_pretrained_weights

from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.nnunet.checkpoint_file import NEW_OUTPUTS, OUTPUTS
from nnunet_labelset.training.teacher import of_old_model, resolved
from tests.helpers import tiny
from tests.helpers.tiny import make
from tests.helpers.training import TRAINERS, batch

MEMBERSHIP = LabelSets.from_superset_map(3, {3: [1, 2], 4: [0, 1, 2]}).membership


def test_the_answer_is_restricted_to_the_label_set() -> None:
    # (1, 3, 4)
    logits = torch.tensor([[[9.0, 9.0, 9.0, 0.0], [1.0, 4.0, 0.0, 3.0], [0.0, 0.0, 0.5, 0.0]]])
    target = torch.tensor([[[3, 3, 3, 0]]], dtype=torch.int16)
    # within {1, 2}: leaf 1 with 0.73, leaf 1 with 0.98, leaf 2 with 0.62; the last voxel is
    # annotated
    assert resolved(logits, target, MEMBERSHIP, 0.5).tolist() == [[[1, 1, 2, 0]]]
    assert resolved(logits, target, MEMBERSHIP, 0.9).tolist() == [[[3, 1, 3, 0]]]
    assert resolved(logits, target, MEMBERSHIP, 0.9).dtype == torch.int16


def test_what_may_be_every_leaf_stays_ignored() -> None:
    logits, target = torch.tensor([[[9.0], [0.0], [0.0]]]), torch.tensor([[[4]]])
    assert resolved(logits, target, MEMBERSHIP, 0.5).tolist() == [[[4]]]


def test_the_old_model_cannot_tell_a_new_leaf_from_background() -> None:
    """It is sure of background where the new leaf is: such a voxel stays open, unless the
    annotation excludes it.
    """
    membership = LabelSets.from_superset_map(4, {4: [0, 3], 5: [0, 1], 6: [0, 1, 3]}).membership
    logits = torch.zeros(1, 4, 4)
    logits[0, 0, :3], logits[0, 1, 3] = 9, 9  # background three times, then the old leaf 1
    logits[0, 3] = -4
    target = torch.tensor([[[4, 5, 6, 6]]])
    assert resolved(of_old_model(logits, [3]), target, membership, 0.51).tolist() == [
        [[4, 0, 6, 1]]
    ]
    # what must not happen
    assert resolved(logits, target, membership, 0.51).tolist() == [[[0, 0, 0, 1]]]


def started(nnunet: tiny.NNUNet, name: str, **options):
    trainer = make(nnunet, TRAINERS[name], fold="all", **options)
    trainer.num_epochs, trainer.num_iterations_per_epoch = 10, 20
    trainer.on_train_start()
    return trainer


def open_voxels(trainer, example: dict) -> int:
    """Voxels that a label-set of several leaves is left to."""
    size = trainer.label_sets.membership.sum(1)
    return sum(
        int((size[scale.long()] == 2).sum())
        for scale in trainer.encode_batch(copy.deepcopy(example))["target"]
    )


def test_the_teacher_speaks_after_the_warm_up_and_in_training_only(in_process: tiny.NNUNet) -> None:
    trainer = started(in_process, "nnUNetTrainerLabelSetTeacher")
    trainer.teacher_threshold = 0.0
    trainer.train_step(batch(1, ["full_0", "part_0"], values=4))
    example = batch(0, ["part_0", "part_1"], values=5)
    assert open_voxels(trainer, example) > 0
    trainer.current_epoch = 4
    assert open_voxels(trainer, example) == 0
    with torch.no_grad():
        assert open_voxels(trainer, example) > 0


def test_the_teacher_follows_the_network(in_process: tiny.NNUNet) -> None:
    trainer = started(in_process, "nnUNetTrainerLabelSetTeacher")
    trainer.current_epoch = 5
    first = copy.deepcopy(trainer.network.state_dict())
    for step in range(2):
        trainer.train_step(batch(step, ["full_0", "part_0"], values=4))
    weights, taught = trainer.network.state_dict(), trainer.teacher.module.state_dict()
    name = next(name for name in weights if name.endswith("conv.weight"))
    assert not torch.equal(weights[name], first[name])
    assert not torch.equal(weights[name], taught[name])
    assert (weights[name] - taught[name]).abs().max() < (weights[name] - first[name]).abs().max()


@pytest.mark.parametrize("name", ["nnUNetTrainerLabelSet", "nnUNetTrainerLabelSetTeacher"])
def test_training_goes_on_from_a_checkpoint(
    in_process: tiny.NNUNet, tmp_path: Path, name: str
) -> None:
    first = started(in_process, name)
    first.current_epoch = 6
    examples = [batch(step, ["full_0", "part_0"], values=4) for step in range(4)]
    for example in examples[:2]:
        first.train_step(copy.deepcopy(example))
    checkpoint = tmp_path / "checkpoint.pth"
    first.save_checkpoint(str(checkpoint))
    second = make(in_process, TRAINERS[name], fold="all")
    second.num_epochs, second.num_iterations_per_epoch = 10, 20
    second.load_checkpoint(str(checkpoint))
    second.on_train_start()
    second.current_epoch = first.current_epoch
    for trainer in (first, second):
        trainer.lr_scheduler.step(trainer.current_epoch)
    for example in examples[2:]:
        losses = [trainer.train_step(copy.deepcopy(example))["loss"] for trainer in (first, second)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_resumed_training_keeps_one_copy_of_the_teacher(
    in_process: tiny.NNUNet, tmp_path: Path
) -> None:
    first = started(in_process, "nnUNetTrainerLabelSetTeacher")
    first.current_epoch = 6
    for step in range(2):
        first.train_step(batch(step, ["full_0", "part_0"], values=4))
    first.save_checkpoint(str(tmp_path / "checkpoint.pth"))
    weights = first.teacher.module.state_dict()
    name = next(name for name in weights if name.endswith("conv.weight"))
    saved = weights[name].clone()
    first.train_step(batch(2, ["full_0", "part_0"], values=4))  # its own teacher moves on
    second = make(in_process, TRAINERS["nnUNetTrainerLabelSetTeacher"], fold="all")
    second.load_checkpoint(str(tmp_path / "checkpoint.pth"))
    second.on_train_start()
    assert saved_copies(saved) == 1  # in the state, until the teacher is made
    second.train_step(batch(2, ["full_0", "part_0"], values=4))
    assert second.teacher.module.state_dict()[name].shape == saved.shape
    assert saved_copies(saved) == 0


def saved_copies(saved: torch.Tensor) -> int:
    """Number of other places in memory with the same values; several tensors may share one."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if type(item) is torch.Tensor]
    places = {item.data_ptr() for item in tensors if torch.equal(item, saved)}
    return len(places - {saved.data_ptr()})


def test_state_does_not_reach_prediction(in_process: tiny.NNUNet, tmp_path: Path) -> None:
    trainer = started(in_process, "nnUNetTrainerLabelSetTeacher")
    trainer.train_step(batch(0, ["full_0", "part_0"], values=4))
    trainer.save_checkpoint(str(tmp_path / "checkpoint.pth"))
    checkpoint = torch.load(tmp_path / "checkpoint.pth", weights_only=False)
    assert set(checkpoint["network_weights"]) == set(trainer.network.state_dict())
    assert {"running_dice", "teacher"} <= set(
        checkpoint["optimizer_state"]["param_groups"][0]["label_sets"]
    )
    plain = make(in_process, TRAINERS["nnUNetTrainerLeafDiceCE"], fold="all")
    plain.load_checkpoint(str(tmp_path / "checkpoint.pth"))  # another trainer reads it


def test_the_old_model_teaches_from_the_first_step(
    in_process: tiny.NNUNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a training that `extend` has started, the teacher is the model that knew the old leaves,
    also after `--c`.
    """
    name, start = "nnUNetTrainerLabelSetTeacher", tmp_path / "start.pth"
    old = make(in_process, TRAINERS[name], fold="all")
    old.initialize()
    weights = copy.deepcopy(old.network.state_dict())
    torch.save(
        {"network_weights": weights, OUTPUTS: list(old.outputs.names), NEW_OUTPUTS: ["dot"]}, start
    )
    nothing_sure = {
        "version": 1,
        "protocols": {"open": {"background": ["background", "shell"]}},
        "cases": dict.fromkeys(tiny.CASES, "open"),
    }
    dataset = {**tiny.dataset_json(in_process), "label_sets": nothing_sure}
    with monkeypatch.context() as typed:
        typed.setattr(sys, "argv", ["nnUNetv2_train", "-pretrained_weights", str(start)])
        forgetful = make(in_process, TRAINERS["nnUNetTrainerLabelSet"], dataset, fold="all")
        forgetful.on_train_start()
        log = next(Path(forgetful.output_folder).glob("training_log*.txt")).read_text()
        assert re.search("WARNING: .*'background', 'shell'", log)
        trainer = make(in_process, TRAINERS[name], fold="all")
        trainer.initialize()
        load_pretrained_weights(trainer.network, str(start))  # as nnUNetv2_train
        trainer.on_train_start()
    for step in range(2):
        trainer.train_step(batch(step, ["full_0", "part_0"], values=4))
    example = batch(0, ["part_0", "part_1"], values=5)
    assert trainer.current_epoch == 0
    trainer.old_model_threshold = 0.0
    assert open_voxels(trainer, example) == 0
    trainer.save_checkpoint(str(tmp_path / "checkpoint.pth"))
    second = make(in_process, TRAINERS[name], fold="all")
    second.load_checkpoint(str(tmp_path / "checkpoint.pth"))
    second.train_step(batch(2, ["full_0", "part_0"], values=4))
    for taught in (trainer, second):
        assert any(
            not torch.equal(taught.network.state_dict()[key], weights[key]) for key in weights
        )
        assert all(
            torch.equal(taught.teacher.module.state_dict()[key], weights[key]) for key in weights
        )


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_python_script_gets_the_outputs_of_the_start_file(
    in_process: tiny.NNUNet, tmp_path: Path, is_loaded: bool, capsys: pytest.CaptureFixture
) -> None:
    """nnU-Net's `run_training()` names the file to nobody; the weights of the network tell."""
    cls = TRAINERS["nnUNetTrainerLabelSetTeacher"]
    old = make(in_process, cls, fold="all")
    old.initialize()
    weights = copy.deepcopy(old.network.state_dict())
    start = tmp_path / "start.pth"
    names = list(old.outputs.names)
    torch.save({"network_weights": weights, OUTPUTS: names, NEW_OUTPUTS: ["dot"]}, start)
    trainer = make(in_process, cls, fold="all")
    trainer.initialize()
    assert trainer.start_file.default.name == "start_nnUNetPlans_3d_fullres.pth"
    trainer.start_file.default = start  # the data set is shared by other tests
    if is_loaded:
        load_pretrained_weights(trainer.network, str(start))
    trainer.is_resuming = not is_loaded  # --c, but nothing was saved: a training from the start
    trainer.on_train_start()
    printed = capsys.readouterr().out
    assert (f"-pretrained_weights {start}" in printed) is not is_loaded  # a forgotten start file
    state = trainer.network.state_dict()
    outputs = [key for key in weights if ".seg_layers." in key and key.endswith("weight")]
    assert outputs
    assert all(torch.equal(state[key], weights[key]) == is_loaded for key in outputs)
    assert trainer.state.new_labels == (["dot"] if is_loaded else None)
