"""From the sums to the loss, and at once to its gradients by the sums: few operators, each a launch
on a device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nnunet_labelset.losses.dice import EPSILON
from nnunet_labelset.losses.engine.weight_tables import Tables, named_sums, parted

END = 1e-3  # evidence below which a leaf is forgotten: 66 batches after it was last seen
SMALLEST = 1e-12  # Dice whose logarithm still gets steeper
INTERSECTION, REFERENCE, PREDICTION, EVIDENCE = range(4)  # rows of the running sums


class Running(NamedTuple):
    """What running Dice adds to a batch: see `losses.running.RunningDice`."""

    before: Tensor | None  # (4, C) running sums of earlier batches; None outside of training
    decay: float
    tail: float


class FinishOptions(NamedTuple):
    """How the loss follows from its sums: see `functional.loss_of_tables`."""

    batch_dice: bool
    include_background: bool
    weight_dice: float
    weight_ce: float
    ce_share: float = 1.0
    running: Running | None = None


class Finished(NamedTuple):
    """The loss, its gradients by P, I and the entropy `(B, R')`, and the running sums `(4, C)`."""

    loss: Tensor
    gradients: Tensor
    running: Tensor | None


def finish(sums: Tensor, tables: Tables, options: FinishOptions) -> Finished:
    """Return the loss of sums `(B, R)`, with what its gradient and the next batch need."""
    gradients = sums.new_empty(len(tables.slopes), len(sums))  # rows that operators can write to
    loss: Tensor | None = None
    after = None
    if tables.dice and options.running is not None:
        sums = sums if len(sums) == 1 else sums.sum(0, keepdim=True)
        loss, after = _finish_running(sums, tables, options, options.running, gradients)
    elif tables.dice:
        loss = _finish_dice(sums, tables, options, gradients)
    if tables.entropy:
        loss = _finish_entropy(sums, tables, options, gradients[-1], loss)
    assert loss is not None
    return Finished(loss, gradients.T, after)


def _finish_dice(sums: Tensor, tables: Tables, options: FinishOptions, gradients: Tensor) -> Tensor:
    """Return the Dice loss; write its gradients by P and I."""
    leaves = tables.leaves
    parts = named_sums(*parted(sums, tables), tables)
    terms = [parts.prediction, parts.intersection, parts.reference]
    if options.batch_dice and len(sums) > 1:
        terms = [term.sum(0, keepdim=True) for term in terms]
    prediction, intersection, reference = terms
    # negative, which saves a launch below
    denominator = torch.rsub(reference, -EPSILON).sub_(prediction)
    ratio = intersection / denominator  # half of the Dice, negative
    first = 0 if options.include_background else 1
    share = options.weight_dice / ratio[:, first:].numel()
    loss = torch.rsub(ratio[:, first:].sum(), options.weight_dice, alpha=-2 * share)
    by_intersection = gradients[leaves : 2 * leaves]
    inverse = denominator.reciprocal_().T.expand_as(by_intersection)
    torch.mul(inverse, 2 * share, out=by_intersection)
    torch.mul(ratio.T, by_intersection, out=gradients[:leaves])
    if first:
        gradients[: 2 * leaves : leaves].zero_()
    return loss


def _finish_running(
    sums: Tensor, tables: Tables, options: FinishOptions, running: Running, gradients: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the Dice loss of the batch `(1, R)` and the running sums; write the gradients of the
    latter.

    The formula is that of `running_slopes`. The operators work on the batch and the running sums
    at once, and on negative denominators, which saves launches.
    """
    leaves = tables.leaves
    parts = named_sums(*parted(sums, tables), tables)
    is_annotated = parts.reference > 0
    pair = sums.new_empty(2, 4, leaves)  # the batch, and the running sums
    now, total = pair
    torch.cat([parts.intersection, parts.reference, parts.prediction, is_annotated], out=now)
    if running.before is None:
        pair = pair[:1]
    else:
        torch.add(now, running.before, alpha=running.decay, out=total)
        total.mul_(total[EVIDENCE] >= END)
    denominator = torch.rsub(pair[:, REFERENCE], -EPSILON).sub_(pair[:, PREDICTION])
    dice = pair[:, INTERSECTION] / denominator  # half of it, negative
    first = 0 if options.include_background else 1
    share = options.weight_dice / (leaves - first)
    batch_dice = torch.where(is_annotated[0], dice[0], -0.5)[first:].sum()
    loss = torch.rsub(batch_dice, options.weight_dice, alpha=-2 * share)
    if running.before is None:
        return loss, None
    dice = dice[1].clamp_(max=-SMALLEST / 2)
    slope = dice
    if running.tail:
        curve = torch.rsub(dice, running.tail / 2).reciprocal_()
        slope = torch.sub(dice, curve, alpha=running.tail / 8)
    evidence = total[EVIDENCE]
    weight = (evidence * evidence.clamp(max=1)).div_(denominator[1])
    slope = (slope * weight)[:, None].expand(-1, gradients.shape[1])
    by_prediction = torch.mul(slope, 2 * share, out=gradients[:leaves])
    torch.div(by_prediction, dice[:, None], out=gradients[leaves : 2 * leaves])
    if first:
        gradients[: 2 * leaves : leaves].zero_()
    is_fine = _is_number(sums[0, 2 * leaves] if tables.entropy else total.sum())
    return loss, torch.where(is_fine, total, running.before)


def _is_number(value: Tensor) -> Tensor:
    return value == value


def remember(now: Tensor, before: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """Return the running sums `(4, C)` with this batch, and those to keep for the next one.

    AMP skips a step that overflows, which makes the sums NaN: it is not kept.
    """
    total = torch.add(now, before, alpha=decay)
    total = total * (total[EVIDENCE] >= END)
    return total, torch.where(_is_number(total.sum()), total, before)


def running_slopes(running: Tensor, tail: float) -> tuple[Tensor, Tensor]:
    """Return the slopes `(C,)` of the running Dice by the intersection and the prediction.

    With `D = 2 I / (R + P + epsilon)` they are `2 w / (R + P + epsilon)` and `-D w / (R + P +
    epsilon)`, where `w = e min(1, e) (1 + tail / (2 D (D + tail)))`.
    """
    intersection, reference, prediction, evidence = running
    half = (reference + prediction).add_(EPSILON).div_(2)
    dice = (intersection / half).clamp_(min=SMALLEST)
    slope = dice
    if tail:
        slope = torch.add(dice, (dice + tail).reciprocal_(), alpha=tail / 2)
    slope = slope * (evidence * evidence.clamp(max=1)).div_(half)
    return slope / dice, slope / -2


def _finish_entropy(
    sums: Tensor, tables: Tables, options: FinishOptions, gradient: Tensor, loss: Tensor | None
) -> Tensor:
    """Return the loss with the entropy in it; write the gradient `(B,)` by its sum."""
    place = len(tables.slopes) - 1
    last = len(tables.weights) - 1
    pair = sums[:, place :: last - place]
    entropy, voxels = pair[0] if len(pair) == 1 else pair.sum(0)  # one launch for both
    by_voxels = voxels.clamp_min(1).reciprocal_()
    slope = -options.weight_ce * options.ce_share
    torch.mul(by_voxels.expand(len(gradient)), slope, out=gradient)
    if loss is None:
        return (entropy * by_voxels).mul_(-options.weight_ce)
    return loss.addcmul_(entropy, by_voxels, value=-options.weight_ce)
