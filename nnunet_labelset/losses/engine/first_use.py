"""No Triton kernel is believed before its numbers were compared with plain PyTorch.

The comparison takes a small part of the first batch of every kind of input, and waits for the
device. Compilers and drivers have produced wrong numbers without an error before.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nnunet_labelset.losses.engine import fused
from nnunet_labelset.losses.engine.formula import Finished, FinishOptions, Tables, finish
from nnunet_labelset.losses.engine.plain import plain_gradient, plain_sums

NUMBERS = 2**20  # at most, of the logits that are compared
# largest difference, in parts of the largest number: rounding of the gradient's own dtype
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}

_checked: set[tuple] = set()


def check_kernels(
    logits: Tensor, target: Tensor, tables: Tables, options: FinishOptions | None
) -> None:
    """Compare the kernels with plain PyTorch at the first use of a kind of input; switch them off
    where they differ.
    """
    if not fused.can_run(logits, tables):
        return
    kind = _kind(logits, target, tables, options)
    if kind in _checked and not fused.checks_always():
        return
    logits, target = _part(logits, target, tables)
    sums, kept = plain_sums(logits, target, tables)
    if not bool(sums.isfinite().all()):  # AMP's first steps may overflow: nothing to compare
        return
    for name, by_kernel, expected in _pairs(logits, target, tables, options, sums, kept):
        difference = _difference(by_kernel, expected)
        if not difference <= TOLERANCE[by_kernel.dtype]:
            fused.switch_off(f"their {name} differ from plain PyTorch by {difference:.1e}")
            return
    _checked.add(kind)


def _kind(
    logits: Tensor, target: Tensor, tables: Tables, options: FinishOptions | None
) -> tuple[object, ...]:
    finishing = None
    if options is not None:
        running = options.running
        remembers = running is not None and running.before is not None
        finishing = (options.batch_dice, options.include_background, running is None, remembers)
    layout = fused.views(logits, target)[1]
    loss = (tables.leaves, tables.dice, tables.gamma, tables.marginal, tables.alpha)
    return (logits.device, logits.dtype, target.dtype, layout, loss, finishing)


def _part(logits: Tensor, target: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """Return the beginning of the batch, with set indices that exist."""
    slices = max(1, NUMBERS // max(1, logits[:, :, 0].numel()))
    sets = tables.weights.shape[1]
    last = min(sets - 1, torch.iinfo(target.dtype).max)
    return logits[:, :, :slices], target[:, :, :slices].clamp(0, last)


def _pairs(
    logits: Tensor,
    target: Tensor,
    tables: Tables,
    options: FinishOptions | None,
    sums: Tensor,
    kept: tuple[Tensor, ...],
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield a name, what the kernels return, and what plain PyTorch returns.

    A kernel that fails has switched itself off already.
    """
    by_kernel = fused.fused_sums(logits, target, tables)
    if by_kernel is None:
        return
    for column in range(sums.shape[1]):  # each has its own size
        yield "sums", by_kernel[:, column], sums[:, column]
    gradients = sums[:, : len(tables.slopes)] / sums.abs().amax().clamp_min(1)
    if options is not None:
        expected = finish(sums, tables, options)
        finished = fused.fused_finish(logits, sums, tables, options)
        if finished is None:
            return
        yield from _finished_pairs(finished, expected, options)
        if not _is_training(options):
            return
        gradients = expected.gradients
    by_kernel = fused.fused_gradient(logits, target, tables, gradients, None)
    if by_kernel is not None:
        expected_gradient = plain_gradient(logits, target, tables, gradients, kept)
        yield "gradients", by_kernel, expected_gradient


def _finished_pairs(
    finished: Finished, expected: Finished, options: FinishOptions
) -> Iterator[tuple[str, Tensor, Tensor]]:
    yield "losses", finished.loss[None], expected.loss[None]
    if _is_training(options):
        yield "slopes", finished.gradients, expected.gradients
    if expected.running is not None and finished.running is not None:
        yield "running sums", finished.running, expected.running


def _is_training(options: FinishOptions) -> bool:
    return options.running is None or options.running.before is not None


def _difference(result: Tensor, expected: Tensor) -> float:
    largest = expected.abs().amax().double().clamp_min(torch.finfo(torch.float32).tiny)
    return float((result.double() - expected.double()).abs().amax() / largest)
