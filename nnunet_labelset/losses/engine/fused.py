"""The road of CUDA: the kernels of `kernels.py`, where Triton is there and can compile them."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from nnunet_labelset.losses.dice import EPSILON
from nnunet_labelset.losses.engine.formula import (
    END,
    SMALLEST,
    Finished,
    FinishOptions,
    Running,
    Tables,
)

Found = TypeVar("Found")
SWITCH = "NNUNET_LABELSET_TRITON"  # 0 takes plain PyTorch
CHECK = "check"  # value of the switch that compares every call with plain PyTorch
MOST_LEAVES = 1024  # a program holds all leaves of some voxels in registers
NUMBERS_OF_A_BLOCK = 4096  # numbers of a block
PROGRAMS = 1024  # per sample, that write partial sums: more than a GPU runs at once, and few to add
WARPS = 4
MOST_TO_FINISH = 2**14  # samples times leaves, which one program holds

_logger = logging.getLogger("nnunet_labelset")
_broken = False  # a kernel did not compile or run


def can_run(logits: Tensor, tables: Tables) -> bool:
    """Whether the kernels are to be tried."""
    return (
        not _broken
        and os.environ.get(SWITCH, "1") != "0"
        and logits.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and tables.leaves <= MOST_LEAVES
        and logits.ndim <= 5
        and len(logits) < 2**16  # programs of a launch
        and not torch.compiler.is_compiling()  # which does it its own way
    )


def checks_always() -> bool:
    """Tell whether every call is to be compared with plain PyTorch."""
    return os.environ.get(SWITCH) == CHECK


def switch_off(reason: str) -> None:
    """Take plain PyTorch from now on, and say so once."""
    global _broken
    _broken = True
    _logger.warning(
        "The loss continues in plain PyTorch, slower, with the same result. Its Triton kernels were "
        "switched off: %s (%s=0 does without them from the start)",
        reason,
        SWITCH,
    )


class KernelError(Exception):
    """A kernel could not be compiled or launched."""


def _tried(function: Callable[..., Found]) -> Callable[..., Found | None]:
    """None where kernels cannot run. One that fails says once that plain PyTorch takes over, for
    good.
    """

    @functools.wraps(function)
    def attempt(logits: Tensor, target: Tensor, tables: Tables, *more: Any) -> Found | None:
        if not can_run(logits, tables):
            return None
        try:
            return function(logits.detach(), target, tables, *more)
        except KernelError as error:
            switch_off(f"failed: {str(error).splitlines()[0][:200]}")
            return None

    return attempt


def _launch(kernel: str, grid: tuple[int, ...], *arguments: object, **options: object) -> None:
    try:
        from nnunet_labelset.losses.engine import kernels

        with _current_device(arguments[0]):
            getattr(kernels, kernel)[grid](*arguments, **options, num_warps=WARPS)
    except Exception as error:  # whatever Triton, its compiler or the driver say
        raise KernelError(f"{type(error).__name__}: {error}") from error


def _current_device(tensor: object) -> AbstractContextManager[object]:
    """Return a context in which kernels run where the tensor is: Triton takes the current device."""
    if isinstance(tensor, Tensor) and tensor.is_cuda:
        return torch.cuda.device(tensor.device)
    return nullcontext()


@_tried
def fused_sums(logits: Tensor, target: Tensor, tables: Tables) -> Tensor:
    """Sums `(B, R + 1)` in the order of the weights; in the last column, the number of bad set
    indices.
    """
    (x, k), axes = views(logits, target)
    rows, sets = tables.weights.shape
    block_c, block_n = _blocks(tables)
    voxels = x[0, 0].numel()
    blocks = -(-voxels // (block_n * PROGRAMS))  # per program
    programs = -(-voxels // (block_n * blocks))
    partial = x.new_empty((len(x), programs, rows + 1), dtype=torch.float32)
    _launch(
        "sums_kernel", (programs, len(x)), x, k, tables.weights, tables.outside, tables.log_size, partial,
        voxels, sets, x.shape[3], x.shape[4], blocks, *x.stride(), k.stride(0), *k.stride()[2:], tables.gamma or 0.0,
        LEAVES=tables.leaves, ROWS=rows, BLOCK_C=block_c, BLOCK_N=block_n, AXES=axes,
        **_options(tables), OWN_REFERENCE=tables.own_reference,
    )  # fmt: skip
    return partial.sum(1)


@_tried
def fused_finish(
    logits: Tensor, sums: Tensor, tables: Tables, options: FinishOptions
) -> Finished | None:
    """Return the loss with what its gradient and the next batch need, from sums `(B, R)`, columns of
    those that `fused_sums` made.
    """
    if len(sums) * tables.leaves > MOST_TO_FINISH or sums.dtype != torch.float32:
        return None
    loss = sums.new_empty(())
    gradients = sums.new_empty(len(sums), len(tables.slopes))
    running = options.running or Running(None, 0.0, 0.0)
    after = None if running.before is None else torch.empty_like(running.before)
    before = sums if running.before is None else running.before.contiguous()
    _launch(
        "finish_kernel", (1,),
        sums, loss, gradients, before, before if after is None else after,
        len(sums), sums.stride(0), EPSILON, float(options.weight_dice), float(options.weight_ce),
        float(options.weight_ce * options.ce_share), float(running.decay), float(running.tail), END, SMALLEST,
        LEAVES=tables.leaves, ROWS=len(tables.weights), BLOCK_B=_power_of_two(len(sums)),
        BLOCK_C=_power_of_two(tables.leaves), DICE=tables.dice, ENTROPY=tables.entropy,
        BATCH_DICE=options.batch_dice, FIRST=0 if options.include_background else 1,
        ANNOTATED_ONLY=options.running is not None, REMEMBERS=after is not None, TAIL=running.tail > 0,
    )  # fmt: skip
    return Finished(loss, gradients, after)


@_tried
def fused_gradient(
    logits: Tensor, target: Tensor, tables: Tables, gradients: Tensor, upstream: Tensor | None
) -> Tensor:
    """Gradient by the logits, from those by the sums `(B, R')` and the one of the loss."""
    result = torch.empty_like(logits)
    (x, k, g), axes = views(logits, target, result)
    block_c, block_n = _blocks(tables)
    voxels, sets = x[0, 0].numel(), tables.weights.shape[1]
    one = gradients.new_ones(()) if upstream is None else upstream
    _launch(
        "gradient_kernel", (-(-voxels // block_n), len(x)),
        x, k, tables.slopes, tables.outside, tables.log_size, gradients.contiguous(), one, g,
        voxels, sets, x.shape[3], x.shape[4], *x.stride(), k.stride(0), *k.stride()[2:], *g.stride(),
        tables.gamma or 0.0,
        LEAVES=tables.leaves, BLOCK_C=block_c, BLOCK_N=block_n, AXES=axes, **_options(tables),
    )  # fmt: skip
    return result


def views(*tensors: Tensor) -> tuple[list[Tensor], int]:
    """The tensors as `(B, C, s0, s1, s2)`, and whether one axis of voxels or all three matter;
    without a copy.
    """
    try:
        return [tensor.view(*tensor.shape[:2], 1, 1, -1) for tensor in tensors], 1
    except RuntimeError:  # strides that do not fit one axis
        return [tensor[(slice(None),) * 2 + (None,) * (5 - tensor.ndim)] for tensor in tensors], 3


def _options(tables: Tables) -> dict[str, Any]:
    return {
        "DICE": tables.dice,
        "ENTROPY": tables.entropy,
        "MARGINAL": tables.marginal,
        "ALPHA": tables.alpha,
        "FOCAL": bool(tables.gamma),
    }


def _blocks(tables: Tables) -> tuple[int, int]:
    """Leaves and voxels of a block, powers of two."""
    block_c = _power_of_two(tables.leaves)
    return block_c, max(16, NUMBERS_OF_A_BLOCK // block_c)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
