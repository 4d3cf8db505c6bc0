"""The sums on any device, in plain PyTorch that a compiler can fuse: no loop over samples, no wait for the host."""

from __future__ import annotations

import torch
from torch import Tensor

from nnunet_labelset.losses.engine.chunk import chunk_gradient, chunk_sums, gradient_slopes
from nnunet_labelset.losses.engine.tables import Tables

WHOLE = 2**23  # numbers that are worked on at once: below, memory does not matter and launches do
WORKING_SET = 4  # tensors of the size of the logits, in the dtype of the sums, that a part needs at once
MEMORY = 1.4  # what the working set of a part may take, in sizes of the logits


def device_sums(logits: Tensor, target: Tensor, tables: Tables) -> Tensor:
    parts = _parts(logits, tables)
    sums = [chunk_sums(*_part(logits, target, voxels, tables), tables) for voxels in parts]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


def device_gradient(logits: Tensor, target: Tensor, tables: Tables, gradients: Tensor) -> Tensor:
    slopes = gradient_slopes(tables, gradients)
    parts = _parts(logits, tables)
    if len(parts) == 1:
        gradient = chunk_gradient(*_part(logits, target, parts[0], tables), tables, slopes)
        return gradient.to(logits.dtype).view(logits.shape)
    gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
    flat = gradient.flatten(2)
    for voxels in parts:
        flat[:, :, voxels] = chunk_gradient(*_part(logits, target, voxels, tables), tables, slopes)
    return gradient


def _parts(logits: Tensor, tables: Tables) -> list[slice]:
    """Slices of the voxels of all samples: one, unless the working set would be large. A compiler needs no parts."""
    voxels = logits[0, 0].numel()
    if logits.numel() <= WHOLE or torch.compiler.is_compiling():
        return [slice(None)]
    ratio = tables.weights.element_size() / logits.element_size()
    size = -(-voxels // -(-int(100 * WORKING_SET * ratio) // int(100 * MEMORY)))
    return [slice(start, start + size) for start in range(0, voxels, size)]


def _part(logits: Tensor, target: Tensor, voxels: slice, tables: Tables) -> tuple[Tensor, Tensor]:
    x, k = logits.flatten(2)[:, :, voxels], target.flatten(2)[:, :, voxels]
    return x.to(tables.weights.dtype).contiguous(), k.long()
