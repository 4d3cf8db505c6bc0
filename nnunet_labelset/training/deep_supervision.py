"""nnU-Net's deep supervision, with a loss that knows the scale it is asked for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from torch import Tensor

from nnunet_labelset.losses import LabelSetLoss


class DeepSupervision(DeepSupervisionWrapper):
    """The weighted sum over scales; tells the loss which scale comes next.

    Running Dice has a state for every scale, and two scales may have the same shape: where plans
    do not pool along any axis.
    """

    def forward(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        values = []
        triples = zip(self.weight_factors, outputs, targets, strict=False)
        for scale, (weight, output, target) in enumerate(triples):
            if weight == 0:
                continue
            self.loss.scale = scale
            values.append(self._weighted(float(weight), output, target))
        return torch.stack(values).sum()

    def _weighted(self, weight: float, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a scale times its weight; a loss of ours multiplies for nothing."""
        if not isinstance(self.loss, LabelSetLoss):
            return weight * self.loss(output, target)
        self.loss.scale_weight = weight
        value = self.loss(output, target)
        self.loss.scale_weight = 1.0
        return value


def by_scale(states: Mapping[Hashable, Tensor], loss: Any) -> dict[Hashable, Tensor]:
    """Return states of a checkpoint, which may be older and name scales by their shape."""
    if not isinstance(loss, DeepSupervision):
        return dict(states)
    return dict(enumerate(states.values()))
