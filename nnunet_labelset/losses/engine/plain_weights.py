"""The sums and their gradient on any device where voxels count with weight 1 or not at all.

That is Leaf-Dice and mean-class Dice, alone or with cross entropy: the losses that most people
train with. Half the passes of `chunk.py`: the weights are looked up as bits, and the softmax `p`
and the softmax within the label-set `q` are kept for the gradient, as PyTorch itself would.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nnunet_labelset.losses.engine.chunk import look_up
from nnunet_labelset.losses.engine.weight_tables import Tables

Kept = tuple[Tensor, ...]  # k (B, 1, N), p and, with cross entropy, q: (B, C, N) each


def plain_sums(
    logits: Tensor, target: Tensor, tables: Tables, over_batch: bool = False
) -> tuple[Tensor, Kept]:
    """Return the sums `(B, R)` in the order of the weights, and what the gradient needs.

    over_batch: sum over the samples too, to `(1, R)`.
    """
    assert tables.bits is not None
    leaves = tables.leaves
    x = logits.flatten(2)
    k = target.flatten(2).long()
    bits = look_up(tables.bits, k)  # (B, rows, N)
    p = x.softmax(1, dtype=tables.weights.dtype)
    kept = [k.view_as(k), p]  # a view: autograd refuses to keep an input as a result
    sums = p.new_empty(1 if over_batch else len(p), len(tables.weights))
    rows = sums[0] if over_batch else sums
    axes = (0, 2) if over_batch else (2,)
    if tables.entropy:
        inner = torch.where(bits[:, -leaves:], -torch.inf, x)
        q = inner.softmax(1, dtype=p.dtype)
        log_mass = _log_mass(x, inner, p, q)
        torch.sum(log_mass, axes, out=rows[..., 2 * leaves : 2 * leaves + 1])
        kept.append(q)
        del inner
    counted = torch.where(bits[:, :leaves], p, 0.0)
    prediction = rows[..., :leaves]
    if tables.alpha == 2:
        torch.linalg.vector_norm(counted, dim=axes, out=prediction)
        prediction.square_()
    else:
        torch.sum(counted, axes, out=prediction)
    counted.mul_(bits[:, leaves : 2 * leaves])
    torch.sum(counted, axes, out=rows[..., leaves : 2 * leaves])
    constants = bits[:, leaves : 2 * leaves + tables.entropy]  # of R, and voxels of the entropy
    torch.sum(constants, axes, dtype=p.dtype, out=rows[..., 2 * leaves + tables.entropy :])
    return sums, tuple(kept)


def plain_gradient(logits: Tensor, tables: Tables, gradients: Tensor, kept: Kept) -> Tensor:
    """Return the gradient by the logits from those by the sums `(B, R')`."""
    leaves = tables.leaves
    k, p = kept[:2]
    x = logits.flatten(2)
    slopes = tables.slopes[: 2 * leaves] * gradients[:, : 2 * leaves, None]  # (B, 2 C, K)
    by_p = look_up(slopes[:, leaves:], k)
    by_power = look_up(slopes[:, :leaves], k)
    by_p = by_p.addcmul_(by_power, p) if tables.alpha == 2 else by_p.add_(by_power)
    del by_power
    gradient = torch.ops.aten._softmax_backward_data(by_p, p, 1, p.dtype)
    del by_p
    if tables.entropy:
        # A voxel that may be any leaf has q = p: no gradient, not even by rounding.
        result = gradient if gradient.dtype == logits.dtype else torch.empty_like(x)
        torch.addcmul(gradient, torch.sub(kept[2], p), gradients[:, -1:, None], out=result)
        gradient = result
    return gradient.to(logits.dtype).view(logits.shape)


def _log_mass(x: Tensor, inner: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return `log s` `(B, 1, N)`, exact at any logit gap.

    The largest probability is 1 over the sum of `exp(x - max x)`, in and outside of the label-set.
    """
    log_ratio = (p.amax(1, keepdim=True) / q.amax(1, keepdim=True)).log_()
    largest = inner.amax(1, keepdim=True)
    if x.dtype == p.dtype:
        return log_ratio.add_(largest.sub_(x.amax(1, keepdim=True)))
    # A difference of half-precision numbers would be rounded.
    return log_ratio.add_(largest).sub_(x.amax(1, keepdim=True))
