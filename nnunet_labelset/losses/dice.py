"""Dice-type label-set losses, each a few sums over the soft confusion matrix (arXiv:2107.03846)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from nnunet_labelset.losses.confusion import SoftConfusion


class DiceTerms(NamedTuple):
    """Per sample and leaf `(B, C)`: the Dice is `2 * intersection / (reference + prediction)`."""

    intersection: Tensor
    reference: Tensor
    prediction: Tensor


# Membership is given as float (K, C), rows 0..C-1 the singletons. `alpha` is the power in the denominator, 1 or 2.
DiceFunction = Callable[[SoftConfusion, Tensor, int], DiceTerms]


def leaf_dice(sums: SoftConfusion, membership: Tensor, alpha: int) -> DiceTerms:
    """Leaf-Dice, eq. 4 of the paper, for any label-sets.

    `2 sum_i [g_i = {c}] p_ic / (sum_i [g_i = {c}] + sum_i [g_i = {c} or c not in g_i] p_ic**alpha + epsilon)`.
    Eq. 4 sums `p_ic**alpha` over all voxels, which is the same where it is defined: a leaf of the one larger label-set
    is annotated nowhere, so that its term is 0. Leaving out the voxels whose larger label-set contains c makes the
    axiom hold for overlapping label-sets too, and for batches that mix protocols.
    """
    leaves = membership.shape[1]
    power = _power(sums, alpha)
    prediction = power.diagonal(dim1=1, dim2=2) + (power * (1 - membership)).sum(1)
    return DiceTerms(sums.mass[:, 0, :leaves], sums.voxels[:, :leaves], prediction)


def marginal_dice(sums: SoftConfusion, membership: Tensor, alpha: int) -> DiceTerms:
    """Marginal Dice: the Dice of `Phi(p; g)` against `Psi_0(g)`.

    Inside a label-set both are uniform, so that only its mass `s_i` matters: a leaf of it contributes
    `s_i / |g_i|**2` to the intersection and `(s_i / |g_i|)**alpha` to the prediction.
    """
    size = membership.sum(1)  # (K,)
    prediction = (_power(sums, alpha) * (1 - membership)).sum(1)
    prediction = prediction + _share(sums.mass[:, alpha - 1] / size**alpha, membership)
    return DiceTerms(
        _share(sums.mass[:, 0] / size**2, membership), _share(sums.voxels / size**alpha, membership), prediction
    )


def soft_target_dice(sums: SoftConfusion, membership: Tensor, alpha: int) -> DiceTerms:
    """Soft-target Dice: the Dice of `p` against `Psi_0(g)`; baseline 2 of the paper, not a label-set loss."""
    size = membership.sum(1)  # (K,)
    intersection = (sums.first * (membership / size[:, None])).sum(1)
    return DiceTerms(intersection, _share(sums.voxels / size**alpha, membership), _power(sums, alpha).sum(1))


def mean_dice(sums: SoftConfusion, membership: Tensor, alpha: int) -> DiceTerms:
    """Mean-class Dice on the annotated voxels alone; baseline 1 of the paper. Other voxels are ignored."""
    leaves = membership.shape[1]
    prediction = _power(sums, alpha)[:, :leaves].sum(1)
    return DiceTerms(sums.mass[:, 0, :leaves], sums.voxels[:, :leaves], prediction)


def needed_sums(dice: DiceFunction, alpha: int, mass_is_free: bool) -> dict[str, bool]:
    """What a Dice-type loss needs of the soft confusion matrix.

    The mass of singletons follows from the first moments, which are cheaper unless a cross entropy needs the mass too.
    """
    mass = alpha == 2 and (dice is marginal_dice or (mass_is_free and dice is not soft_target_dice))
    return {"first": not mass, "second": alpha == 2, "mass": mass}


def _power(sums: SoftConfusion, alpha: int) -> Tensor:
    """Sums of `p_ic**alpha`: (B, K, C)."""
    return sums.first if alpha == 1 else sums.second


def _share(values: Tensor, membership: Tensor) -> Tensor:
    """Give the value of every label-set (B, K) to each of its leaves: (B, C). Not a product of matrices, which autocast
    would compute in float16."""
    return (values[:, :, None] * membership).sum(1)
