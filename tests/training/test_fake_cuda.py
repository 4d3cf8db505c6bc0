"""Training steps on a CUDA device that is not there: PyTorch's fake tensors know devices, and
refuse what mixes them or asks for a value.
"""

from __future__ import annotations

import copy
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import ismethod
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from nnunet_labelset.contract import Protocol
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses import (
    LeafDiceCELoss,
    MarginalDiceFocalLoss,
    RunningLeafDiceCELoss,
    engine,
)
from nnunet_labelset.losses.engine import fused
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.training.outputs import DeepSupervision, encode_target
from nnunet_labelset.training.teacher import resolved
from tests.helpers import tiny
from tests.helpers.fake_cuda import CUDA, fake_cuda, work_on_the_host
from tests.helpers.training import TRAINERS

KERNELS = "nnunet_labelset.losses.engine.kernels"
SETS = [frozenset([0]), frozenset([1]), frozenset([2])]
PROTOCOLS = {
    "full": Protocol((*SETS, frozenset([0, 1, 2])), 3),
    "part": Protocol((*SETS, frozenset([1, 2])), 3),
}
LABEL_SETS = LabelSets(["a", "b", "c"], PROTOCOLS, {"one": "full", "two": "part"})
CASES = ["one", "two"]


@pytest.fixture
def host_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    work_on_the_host(monkeypatch)


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


def test_an_undeclared_value_is_found_on_the_host(host_checks) -> None:
    batch = targets((8, 8))
    batch[0][1, 0, 3, 3] = 77
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(LabelSetError) as error:
        encode_target(batch, CASES, LABEL_SETS, CUDA)
    assert "two" in str(error.value)
    assert "77" in str(error.value)


def regions_of(dataset: dict[str, Any]) -> dict[str, Any]:
    """The tiny data set with regions in place of its labels."""
    cases = dataset["label_sets"]["cases"].items()
    protocols = {case: "full" if protocol == "full" else "merged" for case, protocol in cases}
    block = {**tiny.REGIONS["label_sets"], "cases": protocols}
    return {**dataset, **tiny.REGIONS, "label_sets": block}


def on_cuda(
    nnunet: tiny.NNUNet, name: str, configuration: str, dataset: dict[str, Any] | None = None
) -> Any:
    plans = json.loads((nnunet.preprocessed / tiny.NAME / "nnUNetPlans.json").read_text())
    plans["continue_training"] = False
    dataset = dataset or tiny.dataset_json(nnunet)
    return TRAINERS[name](plans, configuration, "all", dataset, torch.device("cuda"))


def batch(dimensions: int) -> dict[str, Any]:
    shapes = [[2, 1] + [size] * dimensions for size in (16, 8)]
    return {
        "data": torch.randn(shapes[0]),
        "target": [torch.randint(4, shape, dtype=torch.int16) for shape in shapes],
        "keys": ["full_0", "part_0"],
    }


@pytest.mark.filterwarnings("ignore:.*GradScaler")
@pytest.mark.parametrize("configuration", ["2d", "3d_fullres"])
@pytest.mark.parametrize(
    ("name", "has_regions"),
    [
        ("nnUNetTrainerLabelSet", False),
        ("nnUNetTrainerLabelSet", True),
        ("nnUNetTrainerLabelSetTeacher", False),
        ("nnUNetTrainerLabelSetSigmoid", False),
    ],
)
def test_a_whole_step_of_a_trainer(
    name: str,
    has_regions: bool,
    configuration: str,
    in_process: tiny.NNUNet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forward, loss over all scales, backward and the optimizer, by nnU-Net's own `train_step`."""
    dataset = regions_of(tiny.dataset_json(in_process)) if has_regions else None
    trainer = on_cuda(in_process, name, configuration, dataset)
    work_on_the_host(monkeypatch)
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda what, **_: compiled.append(what) or what)
    monkeypatch.setattr(trainer, "_do_i_compile", lambda: True)
    dtypes = set()
    batches = [batch(len(trainer.configuration_manager.patch_size)) for _ in range(3)]
    with fake_cuda(monkeypatch) as copies:
        trainer.initialize()
        trainer.network.register_forward_hook(lambda *to: dtypes.update(x.dtype for x in to[2]))
        trainer.network.train()
        trainer.current_epoch = trainer.num_epochs - 1  # a teacher is asked by now
        trainer.train_step(copy.copy(batches[0]))  # copies tables, and makes the teacher
        for one in batches[1:]:
            copies.to_device.clear()
            copies.to_host.clear()
            trainer.train_step(copy.copy(one))
            sent = [tuple(one["data"].shape), *(tuple(scale.shape) for scale in one["target"])]
            protocols = [(2,)]  # of the two cases
            assert sorted(copies.to_device) == sorted(sent + protocols)
            assert copies.to_host == [()]  # the value of the loss, by nnU-Net
    weights = dict(trainer.network.named_parameters())
    without_gradient = {key for key in weights if weights[key].grad is None}
    assert {key.rpartition(".")[0] for key in without_gradient} == {"decoder.seg_layers.0"}
    assert {weight.device for weight in weights.values()} == {CUDA}
    assert dtypes == {torch.float16}
    assert compiled[0] is trainer.network
    teachers = [what.__self__ for what in compiled if ismethod(what)]  # by `Module.compile`
    if name.endswith("Teacher"):
        assert teachers == [trainer.teacher.module]
        assert {weight.device for weight in trainer.teacher.module.parameters()} == {CUDA}
    else:
        assert not teachers


def test_kernels_run_on_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton takes the current device, which is the first one for users of the losses alone."""
    entered = []

    @contextmanager
    def device(which: torch.device) -> Iterator[None]:
        entered.append(which)
        yield
        entered.append("left")

    monkeypatch.setattr(torch.cuda, "device", device)
    launches = defaultdict(lambda: lambda *_, **__: entered.append("launched"))
    module = ModuleType(KERNELS)
    module.some_kernel = launches
    monkeypatch.setitem(sys.modules, KERNELS, module)
    monkeypatch.setattr(engine, "kernels", module, raising=False)
    with FakeTensorMode():
        tensor = torch.empty(3, device="cuda:1")
    fused._launch("some_kernel", (1,), tensor)
    assert entered == [torch.device("cuda:1"), "launched", "left"]
