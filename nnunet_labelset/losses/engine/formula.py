"""The formula of a loss around the sums over voxels.

Before the sums: what each of them weighs, small tables with one column per label-set, that all
devices look up. After the sums: the loss, and at once its gradients by the sums, in few operators,
each of which is a launch on a device.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses.dice import EPSILON, DiceFunction, DiceTables

END = 1e-3  # evidence below which a leaf is forgotten: 66 batches after it was last seen
SMALLEST = 1e-12  # Dice whose logarithm still gets steeper
INTERSECTION, REFERENCE, PREDICTION, EVIDENCE = range(4)  # rows of the running sums


@dataclass(frozen=True, eq=False)
class Tables:
    """The weights of a loss for K label-sets and C leaves.

    `x_ic` is `p_ic`, or for a marginal Dice the mass `s_i` of the voxel's label-set where c is in
    it (the size of the label-set is in the weights). A loss has a Dice-type term (`dice`), an
    entropy-type term (`gamma`), or both.
    """

    outside: Tensor  # (C, K) bool, the leaf is not in the label-set
    # (R, K) of x**alpha in P (C rows), x in I (C), log s in the entropy (1), 1 in R (C), in voxels
    # (1)
    weights: Tensor
    slopes: Tensor  # (R', K) what the gradients of P, I and the entropy are multiplied with
    log_size: Tensor  # (1, K) logarithm of the number of leaves, which the focal loss divides s by
    dice: bool
    marginal: bool
    alpha: int
    gamma: float | None  # None: no entropy; 0: cross entropy; else focal
    own_reference: bool  # the weights of R are not those of I
    inside: Tensor  # (C, K) 1 and 0, the leaf is in the label-set
    # (2 C, K + 1) if `grouped`: of P and I in a label-set, and in the last column outside
    grouped_slopes: Tensor
    # the loss depends on what is in the label-set by its mass alone: see `chunks.py`
    grouped: bool
    # (2 C + 1 + C, K) bool if all weights are 0 or 1: in P, in I and R, in the entropy, outside
    bits: Tensor | None
    checks_target: bool = True  # False where the set indices cannot be wrong

    @property
    def leaves(self) -> int:
        return len(self.outside)

    @property
    def entropy(self) -> bool:
        return self.gamma is not None

    @property
    def by_mass(self) -> bool:
        """Whether a device finds the gradient by `mass_gradient`."""
        return self.grouped and self.marginal and self.gamma == 0

    def to(self, device: torch.device, dtype: torch.dtype) -> Tables:
        """The same on another device, the weights in the dtype of the sums."""
        tensors = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        moved = {
            n: t.to(device, dtype if t.is_floating_point() else t.dtype).contiguous()
            for n, t in tensors.items()
        }
        return replace(self, **moved)


def make_tables(
    membership: Tensor,
    dice: DiceFunction | None = None,
    alpha: int = 2,
    gamma: float | None = None,
    ignore_full_set: bool = False,
) -> Tables:
    """Return the tables of a loss from membership, bool `(K, C)`, in float64 on the CPU."""
    _check_options(membership, dice, alpha, gamma)
    member = membership.detach().cpu()
    size = member.sum(1, keepdim=True).double()  # (K, 1)
    informative = (~member.all(1, keepdim=True)).double()
    terms = None
    if dice is not None:
        terms = _dice_weights(member, dice, alpha, ignore_full_set)
        if gamma is None:  # a label-set that counts nowhere may as well be all leaves
            member = member | terms.counts_nowhere
    # Cross entropy leaves out what says nothing; the focal loss, by the letter, counts it as the
    # constant it is.
    counts = informative if ignore_full_set or gamma == 0 else torch.ones_like(informative)
    entropy_weights = [] if gamma is None else [counts]
    entropy_slopes = [] if gamma is None else [informative]
    if terms is None:
        return Tables(
            outside=(~member).T,
            weights=torch.cat(entropy_weights * 2, 1).T,
            slopes=torch.cat(entropy_slopes, 1).T,
            log_size=_log_size(size, gamma),
            dice=False,
            marginal=False,
            alpha=int(alpha),
            gamma=gamma if gamma is None else float(gamma),
            own_reference=False,
            inside=member.double().T,
            grouped_slopes=size.new_zeros(0),
            grouped=True,
            bits=None,
        )
    # The mass of a voxel that may be any leaf is 1 whatever the logits: no slope, not even by
    # rounding.
    sloping = informative if terms.marginal else torch.ones_like(informative)
    slopes = [alpha * terms.prediction * sloping, terms.intersection * sloping]
    beyond, grouped = _grouped(member, terms)
    weights = [terms.prediction, terms.intersection, *entropy_weights]
    return Tables(
        outside=(~member).T,
        weights=torch.cat([*weights, terms.reference, *entropy_weights], 1).T,
        slopes=torch.cat(slopes + entropy_slopes, 1).T,
        log_size=_log_size(size, gamma),
        dice=True,
        marginal=terms.marginal,
        alpha=int(alpha),
        gamma=gamma if gamma is None else float(gamma),
        own_reference=not torch.equal(terms.reference, terms.intersection),
        inside=member.double().T,
        grouped_slopes=_grouped_slopes(member, slopes, alpha * beyond),
        grouped=grouped,
        bits=_bits(member, terms, informative) if not gamma else None,
    )


def _check_options(
    membership: Tensor, dice: DiceFunction | None, alpha: int, gamma: float | None
) -> None:
    if membership.ndim != 2 or membership.dtype != torch.bool:
        got = f"{membership.dtype} {tuple(membership.shape)}"
        raise LabelSetError(
            f"Expected `membership` to be bool (K, C), as LabelSets.membership, but got {got}"
        )
    if alpha not in (1, 2):
        raise LabelSetError(f"Expected `alpha` to be 1 or 2, but got {alpha}")
    if gamma is not None and not 0 <= gamma < float("inf"):
        raise LabelSetError(f"Expected `gamma` to be at least 0, but got {gamma}")
    if dice is None and gamma is None:
        raise LabelSetError("Expected a loss with `dice`, `gamma` or both, but got neither")


class _DiceWeights(NamedTuple):
    """The weights of a Dice-type term, `(K, C)` each, of `x**alpha`, `x` and 1."""

    prediction: Tensor
    intersection: Tensor
    reference: Tensor
    marginal: bool

    @property
    def counts_nowhere(self) -> Tensor:
        """Which label-sets have no weight: bool `(K, 1)`."""
        return ((self.prediction == 0) & (self.intersection == 0)).all(1, keepdim=True)


def _dice_weights(
    member: Tensor, dice: DiceFunction, alpha: int, ignore_full_set: bool
) -> _DiceWeights:
    inside = member.double()
    tables = _checked(dice(inside, alpha), member.shape)
    kept = (~member.all(1, keepdim=True) | (not ignore_full_set)).double()
    shared = torch.ones_like(inside)
    if tables.marginal:  # Phi is s over the size
        shared = torch.where(member, inside.sum(1, keepdim=True), 1.0)
    return _DiceWeights(
        prediction=kept * tables.prediction / shared**alpha,
        intersection=kept * tables.intersection / shared,
        reference=kept * tables.reference,
        marginal=tables.marginal,
    )


def _log_size(size: Tensor, gamma: float | None) -> Tensor:
    return size.log().T if gamma else torch.zeros_like(size.T)


def _grouped_slopes(member: Tensor, slopes: list[Tensor], beyond: Tensor) -> Tensor:
    outer = torch.cat([beyond, torch.zeros_like(beyond)])[:, None]  # (2 C, 1)
    inner = torch.cat([torch.where(member, slope, 0.0).T for slope in slopes])
    return torch.cat([inner, outer], 1)


def _bits(member: Tensor, terms: _DiceWeights, informative: Tensor) -> Tensor | None:
    """Return the weights as bits, one column per label-set; None if some are no bits.

    What counts in I must count in P and R as well: see `plain.py`.
    """
    weights = torch.stack([terms.prediction, terms.intersection])
    is_binary = bool(((weights == 0) | (weights == 1)).all())
    is_nested = bool((terms.intersection <= terms.prediction).all())
    same_reference = torch.equal(terms.reference, terms.intersection)
    if terms.marginal or not (is_binary and is_nested and same_reference):
        return None
    rows = [terms.prediction, terms.intersection, informative, (~member).double()]
    return torch.cat(rows, 1).T != 0


def _checked(tables: Any, shape: torch.Size) -> DiceTables:
    """What a Dice function returned, which may be somebody's own."""
    if not isinstance(tables, DiceTables):
        raise LabelSetError(
            f"Expected `dice` to return DiceTables, but got {type(tables).__name__}"
        )
    for name, table in zip(DiceTables._fields[:3], tables[:3], strict=True):
        if not isinstance(table, Tensor):
            got = type(table).__name__
        elif table.shape != shape:
            got = str(tuple(table.shape))
        elif table.requires_grad:
            got = "one with gradient"
        elif not table.isfinite().all():
            got = "NaN or infinity"
        else:
            continue
        wanted = f"{tuple(shape)}, finite, without gradient"
        raise LabelSetError(f"Expected the table `{name}` of `dice` to be {wanted}, but got {got}")
    return tables


def _grouped(member: Tensor, terms: _DiceWeights) -> tuple[Tensor, bool]:
    """Return what a leaf weighs in P outside of the label-set, and whether that and the mass are
    all that matters.
    """
    beyond = torch.where(member, -torch.inf, terms.prediction).amax(0).clamp_min(0)
    as_one = (terms.intersection == 0) & (terms.prediction == beyond) | member
    alone = (
        terms.marginal
        | (member.sum(1, keepdim=True) == 1)
        | (terms.prediction == 0) & (terms.intersection == 0)
        | ~member
    )
    return beyond, bool(as_one.all() and alone.all())


class VoxelSums(NamedTuple):
    """Sums over the voxels of each sample; what the loss has no use for is `(B, 0)`."""

    prediction: Tensor  # (B, C) P
    intersection: Tensor  # (B, C) I
    negative_entropy: Tensor  # (B, 1) of log s_i, or its likes for the focal loss
    reference: Tensor  # (B, C) R, without gradient
    voxels: Tensor  # (B, 1) that the entropy is over, without gradient


def parted(sums: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """Sums `(B, R)` in the order of the weights: the R' that have a gradient, and the constants."""
    return sums[:, : len(tables.slopes)], sums[:, len(tables.slopes) :]


def named_sums(sums: Tensor, constants: Tensor, tables: Tables) -> VoxelSums:
    """Their columns by name."""
    by_leaf, by_set = tables.leaves * tables.dice, int(tables.entropy)
    return VoxelSums(
        *sums.split([by_leaf, by_leaf, by_set], 1), *constants.split([by_leaf, by_set], 1)
    )


class Running(NamedTuple):
    """What running Dice adds to a batch: see `losses.modules.RunningDice`."""

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
