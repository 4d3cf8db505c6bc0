"""From the sums to the loss, and at once to its gradients by the sums: few operators, each a launch
on a device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nnunet_labelset.losses.dice import EPSILON
from nnunet_labelset.losses.engine.weight_tables import Tables, named_sums, parted


class FinishOptions(NamedTuple):
    """How the loss follows from its sums: see `functional.loss_of_tables`."""

    batch_dice: bool
    include_background: bool
    weight_dice: float
    weight_ce: float


def finish(sums: Tensor, tables: Tables, options: FinishOptions) -> tuple[Tensor, Tensor]:
    """The loss, and its gradients by P, I and the entropy `(B, R')`."""
    parts, leaves = named_sums(*parted(sums, tables), tables), tables.leaves
    gradients = sums.new_empty(
        len(tables.slopes), len(sums)
    )  # (R', B): rows that operators can write to
    loss: Tensor | None = None
    if tables.dice:
        terms = [parts.prediction, parts.intersection, parts.reference]
        if options.batch_dice:
            terms = [term.sum(0, keepdim=True) for term in terms]
        prediction, intersection, reference = terms
        denominator = torch.rsub(reference, -EPSILON).sub_(
            prediction
        )  # negative, which saves a launch below
        ratio = intersection / denominator  # half of the Dice, negative
        first = 0 if options.include_background else 1
        share = options.weight_dice / ratio[:, first:].numel()
        loss = torch.rsub(ratio[:, first:].sum(), options.weight_dice, alpha=-2 * share)
        by_intersection = gradients[leaves : 2 * leaves]
        torch.mul(
            denominator.reciprocal_().T.expand_as(by_intersection), 2 * share, out=by_intersection
        )
        torch.mul(ratio.T, by_intersection, out=gradients[:leaves])
        if first:
            gradients[: 2 * leaves : leaves].zero_()
    if tables.entropy:
        place, last = len(tables.slopes) - 1, len(tables.weights) - 1
        entropy, voxels = sums[:, place :: last - place].sum(0)  # one launch for both
        by_voxels = voxels.clamp_min_(1).reciprocal_()
        slope = torch.mul(by_voxels.expand(len(sums)), -options.weight_ce, out=gradients[-1])[0]
        loss = entropy * slope if loss is None else loss.addcmul_(entropy, slope)
    assert loss is not None
    return loss, gradients.T
