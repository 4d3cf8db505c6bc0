"""The parts of a training step on a CUDA device that is not there: PyTorch's fake tensors know
devices, and refuse what mixes them or asks for a value.

The autograd engine cannot run on a fake device: our backward passes are called by hand.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from nnunet_labelset.contract import Protocol
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses import (
    LeafDiceCELoss,
    MarginalDiceFocalLoss,
    RunningLeafDiceCELoss,
    modules,
)
from nnunet_labelset.losses.engine import make_tables
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.losses.regions import RegionLoss
from nnunet_labelset.training.outputs import DeepSupervision, encode_target
from nnunet_labelset.training.teacher import resolved

CUDA = torch.device("cuda", 0)
SETS = [frozenset([0]), frozenset([1]), frozenset([2])]
PROTOCOLS = {
    "full": Protocol((*SETS, frozenset([0, 1, 2])), 3),
    "part": Protocol((*SETS, frozenset([1, 2])), 3),
}
LABEL_SETS = LabelSets(["a", "b", "c"], PROTOCOLS, {"one": "full", "two": "part"})
CASES = ["one", "two"]


@pytest.fixture
def host_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are checked on the host, as they are."""
    check = LabelSets.check_values

    def on_the_host(self: LabelSets, target: Tensor, cases: list[str]) -> None:
        assert target.device.type == "cpu", "the host would wait"
        with unset_fake_temporarily():
            check(self, target, cases)

    def made_on_the_host(*arguments: object) -> object:
        with unset_fake_temporarily():
            return make_tables(*arguments)

    monkeypatch.setattr(LabelSets, "check_values", on_the_host)
    monkeypatch.setattr(modules, "make_tables", made_on_the_host)
    monkeypatch.setenv("NNUNET_LABELSET_TRITON", "0")  # kernels cannot be faked


def targets(shape: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = [[size // 2**scale for size in shape] for scale in range(2)]
    return [
        torch.randint(4, (2, 1, *size), generator=generator, dtype=torch.int16) for size in sizes
    ]


def logits_like(encoded: list[Tensor], channels: int) -> list[Tensor]:
    return [
        torch.empty(2, channels, *one.shape[2:], device=CUDA, dtype=torch.float16).requires_grad_()
        for one in encoded
    ]


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 8)])
@pytest.mark.parametrize(
    "loss_class", [RunningLeafDiceCELoss, LeafDiceCELoss, MarginalDiceFocalLoss]
)
def test_a_step_neither_mixes_devices_nor_waits(loss_class, shape, host_checks) -> None:
    loss = loss_class(LABEL_SETS, batch_dice=True)
    loss.checks_target = False
    values: list[Tensor] = []
    loss.register_forward_hook(lambda module, inputs, value: values.append(value))
    batch = targets(shape)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for _ in range(2):
            encoded = encode_target(batch, CASES, LABEL_SETS, CUDA)
            encoded = [
                resolved(logits, scale, LABEL_SETS.membership.to(CUDA), 0.9)
                for logits, scale in zip(logits_like(encoded, 3), encoded, strict=True)
            ]
            total = DeepSupervision(loss, (0.7, 0.3))(logits_like(encoded, 3), encoded)
            assert total.device == CUDA
        for value in values:
            gradient, *_ = value.grad_fn.apply(torch.ones_like(value))
            assert gradient.device == CUDA
            assert gradient.dtype == torch.float16


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 8)])
def test_regions_and_one_sigmoid_per_label(shape, host_checks) -> None:
    regions = torch.tensor([[False, True, True], [False, False, True]])
    loss = RegionLoss(LeafDiceCELoss(LABEL_SETS, batch_dice=True), regions)
    loss.checks_target = False
    batch = targets(shape)
    with FakeTensorMode(allow_non_fake_inputs=True):
        encoded = encode_target(batch, CASES, LABEL_SETS, CUDA)
        total = DeepSupervision(loss, (0.7, 0.3))(logits_like(encoded, 2), encoded)
        assert total.device == CUDA
        tables = loss.sides
        DeepSupervision(loss, (0.7, 0.3))(logits_like(encoded, 2), encoded)
        assert loss.sides is tables  # copied once


def test_an_undeclared_value_is_found_on_the_host(host_checks) -> None:
    batch = targets((8, 8))
    batch[0][1, 0, 3, 3] = 77
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(LabelSetError) as error:
        encode_target(batch, CASES, LABEL_SETS, CUDA)
    assert "two" in str(error.value)
    assert "77" in str(error.value)
