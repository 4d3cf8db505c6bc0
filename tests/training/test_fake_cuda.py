"""Whole training steps on a CUDA device that is not there: PyTorch's fake tensors know devices and
shapes, and refuse what mixes devices or asks for a value.

The network is a stand-in with the outputs of mixed precision. The autograd engine cannot run on a
fake device: our own backward passes are called by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nnunet_labelset.losses import LabelSetLoss
from nnunet_labelset.losses.label_sets import LabelSets
from tests.helpers import tiny
from tests.helpers.tiny import make
from tests.helpers.training import TRAINERS, batch

CUDA = torch.device("cuda", 0)
SCALES = 2


class Copies(TorchDispatchMode):
    """Copies from and to the host, and questions for a value."""

    def __init__(self) -> None:
        super().__init__()
        self.to_device = 0
        self.to_host = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        before = {leaf.device.type for leaf in tree_leaves(args) if isinstance(leaf, Tensor)}
        if function._schema.name in ("aten::_to_copy", "aten::copy_") and isinstance(
            result, Tensor
        ):
            self.to_device += "cpu" in before and result.device.type == "cuda"
            self.to_host += "cuda" in before and result.device.type == "cpu"
        if function._schema.name == "aten::_local_scalar_dense":
            self.to_host += 1
        return result


class StandIn(nn.Module):
    """Logits of every scale, in half precision, where the images are."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, data: Tensor) -> list[Tensor]:
        logits = []
        for scale in range(SCALES):
            shape = [size // 2**scale for size in data.shape[2:]]
            logits.append(data.new_empty(len(data), self.outputs, *shape, dtype=torch.float16))
        if torch.is_grad_enabled():
            logits = [one.requires_grad_() for one in logits]
        return logits


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors on CUDA, and the check of a batch on the host as it is."""
    check = LabelSets.check_values

    def on_the_host(self: LabelSets, target: Tensor, cases: Any) -> None:
        assert target.device.type == "cpu", "the check would make the host wait"
        with unset_fake_temporarily():
            check(self, target, cases)

    monkeypatch.setattr(LabelSets, "check_values", on_the_host)
    monkeypatch.setattr(Tensor, "numpy", lambda self: 0.0)
    monkeypatch.setattr(Tensor, "backward", lambda self: None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def on_cuda(nnunet: tiny.NNUNet, name: str) -> Any:
    """Return a trainer that believes it is on CUDA."""
    trainer = make(nnunet, TRAINERS[name], fold="all")
    trainer.num_epochs = 10
    trainer.current_epoch = 9  # a teacher is asked by now
    trainer.on_train_start()
    trainer.on_train_epoch_start()
    trainer.device = CUDA
    trainer.network = StandIn(len(trainer.output_names))
    trainer.optimizer = mock.Mock()
    if hasattr(trainer, "teacher"):
        trainer.teacher = StandIn(len(trainer.output_names))
        trainer.teacher.update_parameters = lambda network: None
    return trainer


def example(axes: int, seed: int, cases: list[str]) -> dict[str, Any]:
    """Return a batch that mixes protocols, in two or three dimensions."""
    full = batch(seed, cases, values=4)
    if axes == 3:
        return full
    target = [scale[..., 0].clone() for scale in full["target"]]
    return {**full, "data": full["data"][..., 0].clone(), "target": target}


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize(
    "name",
    [
        "nnUNetTrainerLabelSet",
        "nnUNetTrainerLabelSetTeacher",
        "nnUNetTrainerLabelSetSigmoid",
        "nnUNetTrainerLeafDiceCE",
        "nnUNetTrainerMarginalDiceFocal",
    ],
)
def test_a_step_neither_mixes_devices_nor_waits(
    name: str, axes: int, in_process: tiny.NNUNet, request: pytest.FixtureRequest
) -> None:
    trainer = on_cuda(in_process, name)
    request.getfixturevalue("fake_cuda")
    check_steps(trainer, axes)


@pytest.mark.parametrize("axes", [2, 3])
def test_a_step_with_regions(
    axes: int, regions_in_process: tiny.NNUNet, request: pytest.FixtureRequest
) -> None:
    trainer = on_cuda(regions_in_process, "nnUNetTrainerLeafDiceCE")
    assert trainer.regions
    request.getfixturevalue("fake_cuda")
    check_steps(trainer, axes)


def one_of_each_protocol(trainer: Any) -> list[str]:
    by_protocol = {protocol: case for case, protocol in trainer.contract.cases.items()}
    return list(by_protocol.values())[:2]


def check_steps(trainer: Any, axes: int) -> None:
    values: list[Tensor] = []
    cases = one_of_each_protocol(trainer)
    trainer.inner_loss.register_forward_hook(lambda module, inputs, value: values.append(value))
    for step in range(3):
        values.clear()
        with Copies() as copies:
            trainer.train_step(example(axes, step, cases))
        assert {value.device.type for value in values} == {"cuda"}
        if isinstance(trainer.inner_loss, LabelSetLoss):
            for value in values:
                (gradient, *_) = value.grad_fn.apply(torch.ones_like(value))
                assert gradient.device.type == "cuda"
                assert gradient.dtype == torch.float16
        assert copies.to_host == 1  # the value of the loss, which nnU-Net logs
        if step:  # images, the target of each scale, and which sample has which protocol
            assert copies.to_device == 1 + SCALES + 1


def test_an_undeclared_value_ends_in_one_line(
    in_process: tiny.NNUNet, request: pytest.FixtureRequest
) -> None:
    trainer = on_cuda(in_process, "nnUNetTrainerLabelSet")
    wrong = example(3, 0, ["full_0", "part_0"])
    wrong["target"][0][1, 0, 3, 3, 3] = 77
    request.getfixturevalue("fake_cuda")
    with Copies() as copies, pytest.raises(SystemExit) as stopped:
        trainer.train_step(wrong)
    assert "part_0" in str(stopped.value)
    assert "77" in str(stopped.value)
    assert copies.to_device == 0
