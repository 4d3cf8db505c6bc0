"""What the sums over the voxels of a loss weigh: small tables, one column per label-set, that all
devices look up.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses.dice import DiceFunction, DiceTables


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
    # the loss depends on what is in the label-set by its mass alone: see `chunk.py`
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

    What counts in I must count in P and R as well: see `plain_weights.py`.
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
