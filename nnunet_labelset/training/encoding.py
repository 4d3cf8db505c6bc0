"""From the values of a batch to set indices, by case, on the training device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses.label_sets import LabelSets


def encode_target(
    target: Tensor | list[Tensor],
    cases: Sequence[str] | None,
    label_sets: LabelSets,
    device: torch.device,
) -> Tensor | list[Tensor]:
    """Return set indices for a target `(B, 1, *S)`, or for a list of scales of deep supervision.

    cases: the case of every sample of the batch, which decides what a value means.
    """
    if cases is None:
        raise LabelSetError(
            "a batch does not name its cases: this loader of nnU-Net cannot be combined with "
            "label-sets"
        )
    if isinstance(target, list):
        return [_encode(scale, cases, label_sets, device) for scale in target]
    return _encode(target, cases, label_sets, device)


def _encode(
    target: Tensor, cases: Sequence[str], label_sets: LabelSets, device: torch.device
) -> Tensor:
    indices = label_sets.encode(target.to(device, non_blocking=True), cases)
    # as small as nnU-Net's own target: it stays in memory for the whole step
    return indices.to(torch.int16 if label_sets.num_sets <= 2**15 else torch.int32)
