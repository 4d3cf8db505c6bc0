"""The sums and their gradient in plain PyTorch, on any device: no loop over samples, no wait for
the host.

`binary_...` serve the losses in which a voxel counts with weight 1 or not at all: Leaf-Dice and
mean-class Dice, alone or with cross entropy, with which most people train. They take half the
passes of `chunks.py`: the weights are looked up as bits, and the softmax `p` and the softmax within
the label-set `q` are kept for the gradient, as PyTorch itself would. `device_...` serve every loss,
and a compiler, which can fuse them.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from nnunet_labelset.losses.engine.chunks import (
    chunk_gradient,
    chunk_sums,
    gradient_slopes,
    group_slopes,
    loaded,
    look_up,
    within_set,
)
from nnunet_labelset.losses.engine.formula import Tables

WHOLE = 2**23  # numbers that are worked on at once: below, memory does not matter and launches do
# Tensors of the size of the logits, in the dtype of the sums, that a part needs at once, and how
# many there may be: the forward pass may have what the gradient takes later.
FORWARD, BACKWARD = 3.4 / 2.4, 4.2 / 1.4

Place = tuple[slice, slice]  # samples and voxels that are worked on at once
Kept = tuple[Tensor, ...]  # k (B, 1, N), p and, with cross entropy, q: (B, C, N) each


def plain_sums(
    logits: Tensor, target: Tensor, tables: Tables, over_batch: bool = False
) -> tuple[Tensor, Kept]:
    """Return the sums in plain PyTorch, on any device.

    over_batch: the samples may be summed as well.
    """
    if _writes_in_place(tables):
        return binary_sums(logits, target, tables, over_batch)
    sums, mass = device_sums(logits, target, tables)
    return sums, () if mass is None else (mass,)


def plain_gradient(
    logits: Tensor, target: Tensor, tables: Tables, gradients: Tensor, kept: Kept
) -> Tensor:
    """Return the gradient in plain PyTorch; it may have to make what the kernels did not keep."""
    if _writes_in_place(tables):
        kept = kept or binary_sums(logits, target, tables)[1]
        return binary_gradient(logits, tables, gradients, kept)
    if tables.by_mass and not kept:
        kept = plain_sums(logits, target, tables)[1]
    mass = kept[0] if tables.by_mass else None
    return device_gradient(logits, target, tables, gradients, mass)


def _writes_in_place(tables: Tables) -> bool:
    """Tell whether sums are written side by side into one tensor, which a compiler refuses."""
    return tables.bits is not None and not torch.compiler.is_compiling()


def binary_sums(
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


def binary_gradient(logits: Tensor, tables: Tables, gradients: Tensor, kept: Kept) -> Tensor:
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


def device_sums(logits: Tensor, target: Tensor, tables: Tables) -> tuple[Tensor, Tensor | None]:
    """The sums `(B, R)`, and the masses of the label-sets `(B, 1, N)` if the gradient needs them
    again.
    """
    x, k = logits.flatten(2), target.flatten(2)
    places = _places(x, tables, FORWARD)
    found = [chunk_sums(x[b, :, n], k[b, :, n].long(), tables) for b, n in places]
    sums, masses = [one for one, _ in found], [mass for _, mass in found if mass is not None]
    by_sample = places[0][1] == slice(None)
    total = _joined(sums, 0) if by_sample else functools.reduce(torch.add, sums)
    return total, _joined(masses, 0 if by_sample else 2) if tables.by_mass else None


def device_gradient(
    logits: Tensor, target: Tensor, tables: Tables, gradients: Tensor, mass: Tensor | None
) -> Tensor:
    x, k = logits.flatten(2), target.flatten(2).long()
    places = _places(x, tables, BACKWARD)
    gradient = (
        torch.empty_like(logits, memory_format=torch.contiguous_format) if len(places) > 1 else None
    )
    slopes: tuple[Tensor, ...]
    if mass is None:
        slopes = (gradient_slopes(tables, gradients),)
    else:
        slopes = (*group_slopes(tables, gradients), gradients[:, -1:, None])
    for b, n in places:
        part, here = (x[b, :, n], k[b, :, n], tables), tuple(slope[b] for slope in slopes)
        out = None if gradient is None else gradient.flatten(2)[b, :, n]
        found = (
            chunk_gradient(*part, here[0], out)
            if mass is None
            else mass_gradient(*part, here, mass[b, :, n], out)
        )
    return found.to(logits.dtype).view(logits.shape) if gradient is None else gradient


def mass_gradient(
    x: Tensor,
    k: Tensor,
    tables: Tables,
    slopes: tuple[Tensor, ...],
    s: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient of a marginal Dice + cross entropy on any device, at any logit gap, with the
    mass `s` `(B, 1, n)`.

    What depends on s alone pulls the logits along `q - p`, the softmax within the label-set less
    the whole one. `slopes` are those of `group_slopes`, and `(B, 1, 1)` of `log s`: a voxel that
    may be any leaf has no `q - p`.
    """
    by_leaf, by_set, by_log = slopes
    outside, p = look_up(tables.outside, k), loaded(x, tables).softmax(1)
    by_p = (
        torch.where(outside, p, 0.0).mul_(by_leaf)
        if tables.alpha == 2
        else torch.where(outside, by_leaf, 0.0)
    )
    gradient = torch.ops.aten._softmax_backward_data(by_p, p, 1, p.dtype)
    del by_p
    away = within_set(x, outside, p.dtype).sub_(p)
    del outside, p
    by_s = look_up(by_set, k)
    by_s = torch.addcmul(by_s[:, 1:], by_s[:, :1], s) if tables.alpha == 2 else by_s
    return torch.addcmul(gradient, away, torch.addcmul(by_log, by_s, s), out=out)


def _joined(parts: list[Tensor], along: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, along)


def _places(x: Tensor, tables: Tables, working_set: float) -> list[Place]:
    """One, unless it would need much memory; then whole samples, if there are enough, which lie in
    one piece.

    A compiler needs no parts: it keeps nothing.
    """
    everything = slice(None)
    if x.numel() <= WHOLE or torch.compiler.is_compiling():
        return [(everything, everything)]
    working_set *= (1.4 if tables.marginal and not tables.by_mass else 1) * (
        1.5 if tables.gamma else 1
    )
    number = math.ceil(working_set * tables.weights.element_size() / x.element_size())
    whole = len(x) if len(x) >= number else x.shape[2]
    size = -(-whole // number)
    pieces = [slice(start, start + size) for start in range(0, whole, size)]
    return [(piece, everything) if len(x) >= number else (everything, piece) for piece in pieces]
