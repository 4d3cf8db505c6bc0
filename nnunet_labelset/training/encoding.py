"""From the values of a batch to set indices, by case, on the training device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses.label_sets import LabelSets, as_integers


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
    scales = target if isinstance(target, list) else [target]
    for scale in scales:
        # Where the loader left it, on the host: a device can only assert, with a traceback.
        label_sets.check_values(scale, cases)
    rows = label_sets.rows_of(cases, scales[0], device)
    # as small as nnU-Net's own target: it stays in memory for the whole step
    dtype = torch.int16 if label_sets.num_sets <= 2**15 else torch.int32
    encoded = []
    for scale in scales:
        values = as_integers(scale, "target").to(device, non_blocking=True)
        encoded.append(label_sets.look_up(values, rows, dtype))
    return encoded if isinstance(target, list) else encoded[0]
