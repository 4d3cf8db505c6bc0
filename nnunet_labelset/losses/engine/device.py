"""The sums on any device, in plain PyTorch that a compiler can fuse: no loop over samples, no wait
for the host.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from nnunet_labelset.losses.engine.chunk import (
    chunk_gradient,
    chunk_sums,
    gradient_slopes,
    group_slopes,
    loaded,
    look_up,
    within_set,
)
from nnunet_labelset.losses.engine.weight_tables import Tables

WHOLE = 2**23  # numbers that are worked on at once: below, memory does not matter and launches do
# Tensors of the size of the logits, in the dtype of the sums, that a part needs at once, and how
# many there may be: the forward pass may have what the gradient takes later.
FORWARD, BACKWARD = 3.4 / 2.4, 4.2 / 1.4

Place = tuple[slice, slice]  # samples and voxels that are worked on at once


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
