"""From the sums to the loss, and at once to its gradients by the sums: few operators, each a launch on a device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nnunet_labelset.losses.engine.tables import Tables, split_sums


class FinishOptions(NamedTuple):
    """How the loss follows from its sums: see `functional.loss_of_tables`."""

    batch_dice: bool
    include_background: bool
    weight_dice: float
    weight_ce: float
    epsilon: float


def finish(sums: Tensor, tables: Tables, options: FinishOptions) -> tuple[Tensor, Tensor]:
    """The loss, and its gradients by P, I and the entropy `(B, R')`."""
    parts = split_sums(sums, tables)
    gradients: list[Tensor] = []
    loss: Tensor | None = None
    if parts.prediction is not None and parts.intersection is not None and parts.reference is not None:
        terms = [parts.prediction, parts.intersection, parts.reference]
        if options.batch_dice:
            terms = [term.sum(0, keepdim=True) for term in terms]
        prediction, intersection, reference = terms
        denominator = torch.rsub(reference, -options.epsilon).sub_(prediction)  # negative, which saves a launch below
        ratio = intersection / denominator  # half of the Dice, negative
        first = 0 if options.include_background else 1
        share = options.weight_dice / ratio[:, first:].numel()
        loss = torch.rsub(ratio[:, first:].sum(), options.weight_dice, alpha=-2 * share)
        by_intersection = denominator.reciprocal_().mul_(2 * share)
        by_prediction = ratio * by_intersection
        gradients = [by_prediction, by_intersection]
        for gradient in gradients if first else []:
            gradient[:, 0].zero_()
        gradients = [gradient.expand(len(sums), -1) for gradient in gradients]
    if parts.negative_entropy is not None and parts.voxels is not None:
        slope = parts.voxels.sum().clamp_min_(1).reciprocal_().mul_(-options.weight_ce)
        entropy = parts.negative_entropy.sum()
        loss = entropy * slope if loss is None else loss.addcmul_(entropy, slope)
        gradients.append(slope.expand(len(sums), 1))
    assert loss is not None
    return loss, torch.cat(gradients, 1)
