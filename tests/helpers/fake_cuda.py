"""A CUDA device that is not there: PyTorch's fake tensors know devices and shapes, but no values.

They refuse operators that mix devices, and operators for which the host would have to wait: what
asks for a value (`.item()`, `if tensor`) or for a shape that depends on one (`nonzero`, boolean
indexing). Copies between host and device are listed by `Copies`.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode

from nnunet_labelset.losses import modules
from nnunet_labelset.losses.engine import make_tables
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.training.mixin import LabelSetMixin
from nnunet_labelset.training.teacher import TeacherMixin

CUDA = torch.device("cuda", 0)


class Counter(int):
    """A number that stays a number when it is added to or sent to the device."""

    def __iadd__(self, other: int) -> Counter:
        return Counter(self + other)

    def to(self, device: torch.device) -> Counter:
        return self


def real(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with real values."""

    @functools.wraps(function)
    def without_fakes(*arguments: Any, **options: Any) -> Any:
        with unset_fake_temporarily():
            return function(*arguments, **options)

    return without_fakes


def on_the_device(network: nn.Module) -> nn.Module:
    """Give a network fake weights on the device; `Module.to` cannot, for modules that share some."""
    fakes: dict[Tensor, nn.Parameter] = {}
    for module in network.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight not in fakes:
                fakes[weight] = nn.Parameter(weight.detach().to(CUDA))
            module._parameters[name] = fakes.get(weight)
    network.to = lambda device: network
    return network


def work_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what belongs to the host run with real values, and autocast believe in the device."""
    check = LabelSets.check_values
    new_teacher = TeacherMixin._new_teacher
    build_network = nnUNetTrainer.build_network_architecture

    def checked(self: LabelSets, target: Tensor, cases: list[str]) -> None:
        assert target.device.type == "cpu", "the host would wait"
        real(check)(self, target, cases)

    @functools.wraps(build_network)  # nnU-Net reads its signature
    def built(*arguments: object) -> nn.Module:
        return on_the_device(real(build_network)(*arguments))

    def counted_on_the_host(self: TeacherMixin) -> object:
        teacher = new_teacher(self)
        del teacher.n_averaged  # a tensor on the host, whose value is asked for
        teacher.n_averaged = Counter()
        return teacher

    monkeypatch.setattr(LabelSets, "check_values", checked)
    monkeypatch.setattr(LabelSetMixin, "_build_loss", real(LabelSetMixin._build_loss))
    monkeypatch.setattr(modules, "make_tables", real(make_tables))
    monkeypatch.setattr(nnUNetTrainer, "build_network_architecture", staticmethod(built))
    monkeypatch.setattr(TeacherMixin, "_new_teacher", counted_on_the_host)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(Tensor, "backward", backward)
    monkeypatch.setenv("NNUNET_LABELSET_TRITON", "0")  # kernels cannot be faked


def backward(loss: Tensor) -> None:
    """Do as `Tensor.backward`, node by node: the engine cannot run on a device that is not there."""
    root = loss.grad_fn
    assert root is not None
    waiting = _number_of_users(root)
    gradients: dict[Node, dict[int, Tensor]] = defaultdict(dict)
    gradients[root][0] = torch.ones_like(loss)
    ready = [root]
    while ready:
        node = ready.pop()
        inputs = gradients.pop(node, {})
        outputs = _called(node, inputs) if inputs else ()
        for place, (user, index) in enumerate(node.next_functions):
            if user is None:
                continue
            gradient = outputs[place] if outputs else None
            if gradient is not None:
                total = gradients[user].get(index)
                gradients[user][index] = gradient if total is None else total + gradient
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)


def _number_of_users(root: Node) -> dict[Node, int]:
    number: dict[Node, int] = defaultdict(int)
    pending, seen = [root], {root}
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is not None:
                number[node] += 1
                if node not in seen:
                    seen.add(node)
                    pending.append(node)
    return number


def _called(node: Node, gradients: dict[int, Tensor]) -> tuple[Tensor | None, ...]:
    function = getattr(node, "apply", node)  # of a torch.autograd.Function, which is Python
    places = range(len(node._input_metadata))
    outputs = function(*(gradients.get(place) for place in places))
    return outputs if isinstance(outputs, tuple) else (outputs,)


class Copies(TorchDispatchMode):
    """Lists the shapes of what is copied to the device and to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.to_device: list[tuple[int, ...]] = []
        self.to_host: list[tuple[int, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        pair = ()
        if func is torch.ops.aten._to_copy.default:
            pair = args[0], result
        elif func is torch.ops.aten.copy_.default:
            pair = args[1], args[0]
        if pair and pair[0].device.type != pair[1].device.type:
            is_upload = pair[1].device.type == CUDA.type
            (self.to_device if is_upload else self.to_host).append(tuple(pair[1].shape))
        return result


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Copies]:
    """Make all tensors fake, and list their copies; a value that reaches the host becomes 0."""
    numpy = Tensor.numpy

    def value_of(tensor: Tensor) -> np.ndarray:
        return np.zeros(tuple(tensor.shape)) if isinstance(tensor, FakeTensor) else numpy(tensor)

    with monkeypatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True):
        patch.setattr(Tensor, "numpy", value_of)
        with Copies() as copies:
            yield copies
