"""Sums over voxels, with gradient: the only part of a loss that costs anything, with a road for
every device.

CPU: `cpu.py`. CUDA with Triton: `fused.py`. All others, and under a compiler, which fuses by
    itself: `device.py`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor

from nnunet_labelset.losses.engine import fused
from nnunet_labelset.losses.engine.cpu import cpu_gradient, cpu_sums
from nnunet_labelset.losses.engine.device import device_gradient, device_sums
from nnunet_labelset.losses.engine.finish import FinishOptions, finish
from nnunet_labelset.losses.engine.weight_tables import (
    Tables,
    VoxelSums,
    make_tables,
    named_sums,
    parted,
)
from nnunet_labelset.losses.label_sets import require

__all__ = [
    "FinishOptions",
    "Tables",
    "VoxelSums",
    "make_tables",
    "sum_dtype",
    "voxel_sums",
    "whole_loss",
]


def voxel_sums(logits: Tensor, target: Tensor, tables: Tables) -> VoxelSums:
    """The sums of `tables`, per sample.

    logits `(B, C, *S)`, target `(B, 1, *S)` integer set indices, `tables` on the same device in
    `sum_dtype(logits)`. Sums are float32 (float64 for float64 logits), whatever the dtype of the
    logits and the autocast.
    """
    sums, constants, _ = _Loss.apply(logits, target, tables, None)
    return named_sums(sums, constants, tables)


def whole_loss(logits: Tensor, target: Tensor, tables: Tables, options: FinishOptions) -> Tensor:
    """The loss of the sums of `tables`, in as few launches as there can be; arguments as
    `voxel_sums`.
    """
    return _Loss.apply(logits, target, tables, options)[0]


def sum_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


class _Loss(torch.autograd.Function):
    """The loss, its gradients by the sums, and what else the gradient needs; without options, the
    sums as parted.

    Forward, and once backward. Other kinds of differentiation are refused by PyTorch itself.
    """

    @staticmethod
    def forward(
        logits: Tensor, target: Tensor, tables: Tables, options: FinishOptions | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        with _no_autocast(logits):
            found = None if options is None else fused.fused_loss(logits, target, tables, options)
            if found is not None:
                loss, gradients, fine = found
                require(fine, _outside(tables))
                return loss, gradients, None
            sums, mass = _sums(logits.detach(), target, tables)
            loss, gradients = (
                parted(sums, tables) if options is None else finish(sums, tables, options)
            )
            return loss, gradients, mass

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor | None]
    ) -> None:
        *tensors, ctx.tables, ctx.options = inputs
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.mark_non_differentiable(*(kept for kept in output[1:] if kept is not None))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, upstream: Tensor | None, *_: None
    ) -> tuple[Tensor | None, None, None, None]:
        if upstream is None:
            return None, None, None, None
        logits, target, gradients, mass = ctx.saved_tensors
        if ctx.options is None:
            gradients, upstream = upstream, None
        return (
            _Gradient.apply(logits, target, ctx.tables, gradients, upstream, mass),
            None,
            None,
            None,
        )


class _Gradient(torch.autograd.Function):
    """The gradient by the logits; that it cannot be differentiated again must be said, or it would
    be taken for 0.
    """

    @staticmethod
    def forward(
        logits: Tensor,
        target: Tensor,
        tables: Tables,
        gradients: Tensor,
        upstream: Tensor | None,
        mass: Tensor | None,
    ) -> Tensor:
        with _no_autocast(logits):
            found = fused.fused_gradient(logits, target, tables, gradients, upstream)
            if found is not None:
                return found
            gradients = gradients if upstream is None else gradients * upstream
            if _on_cpu(logits):
                return cpu_gradient(logits.detach(), target, tables, gradients)
            return device_gradient(logits.detach(), target, tables, gradients, mass)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> NoReturn:
        raise NotImplementedError("the label-set losses can be differentiated once, not twice")


def _sums(logits: Tensor, target: Tensor, tables: Tables) -> tuple[Tensor, Tensor | None]:
    """The sums, and the masses of the label-sets where `device_gradient` will be glad of them."""
    sums = fused.fused_sums(logits, target, tables)
    if sums is not None:
        require((sums[:, -1] == 0).all(), _outside(tables))
        return sums[:, :-1], None
    last = min(tables.weights.shape[1] - 1, torch.iinfo(target.dtype).max)
    require((target.clamp(0, last) == target).all(), _outside(tables))
    return (
        (cpu_sums(logits, target, tables), None)
        if _on_cpu(logits)
        else device_sums(logits, target, tables)
    )


def _outside(tables: Tables) -> str:
    last = tables.weights.shape[1] - 1
    return f"`target` has set indices outside 0..{last}: encode it with LabelSets.encode"


def _on_cpu(logits: Tensor) -> bool:
    """Whether to share chunks out to threads, which a compiler cannot see through."""
    return logits.device.type == "cpu" and not torch.compiler.is_compiling()


def _no_autocast(logits: Tensor) -> AbstractContextManager:
    """Sums over millions of voxels overflow in float16. (Other devices than these have no autocast
    to switch off.)
    """
    kind = logits.device.type
    return torch.autocast(kind, enabled=False) if kind in ("cpu", "cuda") else nullcontext()
