"""The sums on any device, in plain PyTorch that a compiler can fuse: no loop over samples, no wait for the host."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from nnunet_labelset.losses.engine.chunk import chunk_gradient, chunk_sums, gradient_slopes
from nnunet_labelset.losses.engine.tables import Tables

WHOLE = 2**23  # numbers that are worked on at once: below, memory does not matter and launches do
# Tensors of the size of the logits, in the dtype of the sums, that a part needs at once, and how many there may be: the
# forward pass may have what the gradient takes later.
FORWARD, BACKWARD = 3.4 / 2.4, 4.2 / 1.4


def device_sums(logits: Tensor, target: Tensor, tables: Tables) -> Tensor:
    sums = [chunk_sums(*part, tables) for part in _parts(logits, target, tables, FORWARD)]
    return functools.reduce(torch.add, sums)


def device_gradient(logits: Tensor, target: Tensor, tables: Tables, gradients: Tensor) -> Tensor:
    slopes = gradient_slopes(tables, gradients)
    parts = _parts(logits, target, tables, BACKWARD)
    if len(parts) == 1:
        return chunk_gradient(*parts[0], tables, slopes).to(logits.dtype).view(logits.shape)
    gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
    pieces = gradient.flatten(2).split(parts[0][0].shape[2], 2)
    for piece, part in zip(pieces, parts, strict=True):
        chunk_gradient(*part, tables, slopes, piece)
    return gradient


def _parts(logits: Tensor, target: Tensor, tables: Tables, working_set: float) -> list[tuple[Tensor, Tensor]]:
    """Logits and set indices of some voxels of all samples: one part, unless it would need much memory.

    A compiler needs no parts: it keeps nothing.
    """
    x, k = logits.flatten(2), target.flatten(2).long()
    if logits.numel() <= WHOLE or torch.compiler.is_compiling():
        return [(x, k)]
    working_set *= 1.5 if tables.marginal else 1
    number = math.ceil(working_set * tables.weights.element_size() / logits.element_size())
    size = -(-x.shape[2] // number)
    return list(zip(x.split(size, 2), k.split(size, 2), strict=True))
