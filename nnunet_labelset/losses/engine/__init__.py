"""Sums over voxels, with gradient: the only part of a loss that costs anything, with a road for
every device.

CPU: `chunks.py`. CUDA with Triton: `fused.py`, after a check in `first_use.py`. All others, and
under a compiler, which fuses by itself: `plain.py`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor

from nnunet_labelset.losses.engine import fused
from nnunet_labelset.losses.engine.chunks import cpu_gradient, cpu_sums
from nnunet_labelset.losses.engine.first_use import check_kernels
from nnunet_labelset.losses.engine.formula import (
    Finished,
    FinishOptions,
    Running,
    Tables,
    VoxelSums,
    finish,
    make_tables,
    named_sums,
    parted,
    remember,
    running_slopes,
)
from nnunet_labelset.losses.engine.plain import Kept, plain_gradient, plain_sums
from nnunet_labelset.losses.label_sets import require

__all__ = [
    "FinishOptions",
    "Running",
    "Tables",
    "VoxelSums",
    "make_tables",
    "remember",
    "running_slopes",
    "sum_dtype",
    "voxel_sums",
    "whole_loss",
]


def voxel_sums(logits: Tensor, target: Tensor, tables: Tables) -> VoxelSums:
    """Return the sums of `tables`, per sample.

    logits `(B, C, *S)`, target `(B, 1, *S)` integer set indices, `tables` on the same device in
    `sum_dtype(logits)`. Sums are float32 (float64 for float64 logits), whatever the dtype of the
    logits and the autocast.
    """
    sums, _, constants, *_ = _Loss.apply(logits, target, tables, None)
    return named_sums(sums, constants, tables)


def whole_loss(
    logits: Tensor, target: Tensor, tables: Tables, options: FinishOptions
) -> tuple[Tensor, Tensor | None]:
    """Return the loss of the sums of `tables`, and the running sums with this batch; arguments as
    `voxel_sums`.

    It takes as few launches as there can be.
    """
    loss, running, *_ = _Loss.apply(logits, target, tables, options)
    return loss, running


def sum_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


class _Loss(torch.autograd.Function):
    """The loss, the running sums, its gradients by the sums, and what else the gradient needs;
    without options the sums, nothing, and the constants.

    Forward, and once backward. Other kinds of differentiation are refused by PyTorch itself.
    """

    @staticmethod
    def forward(
        logits: Tensor, target: Tensor, tables: Tables, options: FinishOptions | None
    ) -> tuple[Tensor | None, ...]:
        with _no_autocast(logits):
            if _has_kernels(logits):
                check_kernels(logits.detach(), target, tables, options)
            over_batch = options is not None and options.batch_dice
            sums, kept = _sums(logits.detach(), target, tables, over_batch)
            if options is None:
                with_gradient, constants = parted(sums, tables)
                return with_gradient, None, constants, *kept
            finished = _finished(logits, sums, tables, options)
            return finished.loss, finished.running, finished.gradients, *kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor | None, ...]) -> None:
        *tensors, ctx.tables, ctx.options = inputs
        ctx.save_for_backward(*tensors, *output[2:])
        ctx.mark_non_differentiable(*(kept for kept in output[1:] if kept is not None))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, upstream: Tensor | None, *_: None
    ) -> tuple[Tensor | None, None, None, None]:
        if upstream is None:
            return None, None, None, None
        logits, target, gradients, *kept = ctx.saved_tensors
        if ctx.options is None:
            gradients, upstream = upstream, None
        gradient = _Gradient.apply(logits, target, ctx.tables, gradients, upstream, *kept)
        return gradient, None, None, None


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
        *kept: Tensor,
    ) -> Tensor:
        logits = logits.detach()
        with _no_autocast(logits):
            if _has_kernels(logits):
                result = fused.fused_gradient(logits, target, tables, gradients, upstream)
                if result is not None:
                    return result
            gradients = gradients if upstream is None else gradients * upstream
            if _on_cpu(logits):
                return cpu_gradient(logits, target, tables, gradients)
            return plain_gradient(logits, target, tables, gradients, kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> NoReturn:
        raise NotImplementedError("the label-set losses can be differentiated once, not twice")


def _sums(logits: Tensor, target: Tensor, tables: Tables, over_batch: bool) -> tuple[Tensor, Kept]:
    """Return the sums, and what the gradient needs beside logits and target."""
    sums = fused.fused_sums(logits, target, tables) if _has_kernels(logits) else None
    if sums is not None:
        if tables.checks_target:
            require((sums[:, -1] == 0).all(), _outside(tables))
        return sums[:, :-1], ()
    if tables.checks_target:
        last = min(tables.weights.shape[1] - 1, torch.iinfo(target.dtype).max)
        require((target.clamp(0, last) == target).all(), _outside(tables))
    if _on_cpu(logits):
        return cpu_sums(logits, target, tables), ()
    return plain_sums(logits, target, tables, over_batch)


def _finished(logits: Tensor, sums: Tensor, tables: Tables, options: FinishOptions) -> Finished:
    """Return the loss, with what its gradient and the next batch need."""
    finished = None
    if _has_kernels(logits):
        finished = fused.fused_finish(logits, sums, tables, options)
    return finish(sums, tables, options) if finished is None else finished


def _has_kernels(logits: Tensor) -> bool:
    """Tell whether kernels exist for the device; `fused.can_run` knows all other conditions."""
    return logits.device.type == "cuda"


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
