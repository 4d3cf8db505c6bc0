"""The sums and their gradient in plain PyTorch, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from nnunet_labelset.losses.engine.device import device_gradient, device_sums
from nnunet_labelset.losses.engine.plain_weights import Kept, plain_gradient, plain_sums
from nnunet_labelset.losses.engine.weight_tables import Tables


def plain_road_sums(
    logits: Tensor, target: Tensor, tables: Tables, over_batch: bool = False
) -> tuple[Tensor, Kept]:
    """Return the sums in plain PyTorch, on any device.

    over_batch: the samples may be summed as well.
    """
    if _writes_in_place(tables):
        return plain_sums(logits, target, tables, over_batch)
    sums, mass = device_sums(logits, target, tables)
    return sums, () if mass is None else (mass,)


def plain_road_gradient(
    logits: Tensor, target: Tensor, tables: Tables, gradients: Tensor, kept: Kept
) -> Tensor:
    """Return the gradient in plain PyTorch; it may have to make what the kernels did not keep."""
    if _writes_in_place(tables):
        kept = kept or plain_sums(logits, target, tables)[1]
        return plain_gradient(logits, tables, gradients, kept)
    if tables.by_mass and not kept:
        kept = plain_road_sums(logits, target, tables)[1]
    mass = kept[0] if tables.by_mass else None
    return device_gradient(logits, target, tables, gradients, mass)


def _writes_in_place(tables: Tables) -> bool:
    """Tell whether sums are written side by side into one tensor, which a compiler refuses."""
    return tables.bits is not None and not torch.compiler.is_compiling()
