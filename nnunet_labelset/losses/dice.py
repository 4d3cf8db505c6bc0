"""Dice-type label-set losses, each written down as three tables of weights (arXiv:2107.03846)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

EPSILON = 1e-5  # so that the Dice of nothing is 0


class DiceTables(NamedTuple):
    """What a Dice-type loss counts: the weight of a voxel with set index k in the sums of leaf c,
    each table `(K, C)`.

    The loss is `1 - mean over c of 2 I_c / (R_c + P_c + epsilon)` with
    `I_c = sum_i intersection[k_i, c] x_ic`, `R_c = sum_i reference[k_i, c]` and
    `P_c = sum_i prediction[k_i, c] x_ic**alpha`, where `x` is the softmax `p`, or the paper's
    `Phi(p; g)` if `marginal` is set. Nothing else is computed, so that a new loss need not say what
    it needs: its tables do.

    >>> leaf = torch.eye(2)
    >>> DiceTables(intersection=leaf, reference=leaf, prediction=torch.ones(2, 2)).marginal
    False
    """

    intersection: Tensor
    reference: Tensor
    prediction: Tensor
    marginal: bool = False


class DiceTerms(NamedTuple):
    """The sums of the tables, per sample and leaf `(B, C)`; `(1, C)` once they are summed over the
    batch.

    >>> DiceTerms(torch.zeros(2, 9), torch.zeros(2, 9), torch.zeros(2, 9)).prediction.shape
    torch.Size([2, 9])
    """

    intersection: Tensor
    reference: Tensor
    prediction: Tensor

    def dice(self) -> Tensor:
        """Of every sample and leaf.

        >>> DiceTerms(torch.tensor([[1.0]]), torch.tensor([[1.0]]), torch.tensor([[3.0]])).dice()
        tensor([[0.5000]])
        """
        return 2 * (self.intersection / (self.reference + EPSILON + self.prediction))


# From membership, float (K, C) with the singletons in rows 0..C-1, and `alpha`, the power in the
# denominator.
DiceFunction = Callable[[Tensor, int], DiceTables]


def leaf_dice(membership: Tensor, alpha: int) -> DiceTables:
    """Leaf-Dice, eq. 4 of the paper, for any label-sets.

    `2 sum_i [g_i = {c}] p_ic / (sum_i [g_i = {c}] + sum_i [g_i = {c} or c not in g_i] p_ic**alpha +
    epsilon)`. Eq. 4 sums `p_ic**alpha` over all voxels, which is the same where it is defined: a
    leaf of the one larger label-set is annotated nowhere, so that its term is 0. Leaving out the
    voxels whose larger label-set contains c makes the axiom hold for overlapping label-sets too,
    and for batches that mix protocols.

    # {0}, {1}, {0, 1}
    >>> leaf_dice(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), 2).prediction
    tensor([[1., 1.],
            [1., 1.],
            [0., 0.]])
    """
    annotated = _annotated(membership)
    return DiceTables(annotated, annotated, annotated + (1 - membership))


def marginal_dice(membership: Tensor, alpha: int) -> DiceTables:
    """Marginal Dice: the Dice of `Phi(p; g)` against `Psi_0(g)`.

    >>> marginal_dice(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), 2).intersection
    tensor([[1.0000, 0.0000],
            [0.0000, 1.0000],
            [0.5000, 0.5000]])
    """
    soft = _soft_target(membership)
    return DiceTables(soft, soft**alpha, torch.ones_like(soft), marginal=True)


def soft_target_dice(membership: Tensor, alpha: int) -> DiceTables:
    """Soft-target Dice: the Dice of `p` against `Psi_0(g)`; baseline 2 of the paper, not a
    label-set loss.

    >>> soft_target_dice(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), 2).reference[2]
    tensor([0.2500, 0.2500])
    """
    return marginal_dice(membership, alpha)._replace(marginal=False)


def mean_dice(membership: Tensor, alpha: int) -> DiceTables:
    """Mean-class Dice on the annotated voxels alone; baseline 1 of the paper. Other voxels are
    ignored.

    >>> mean_dice(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), 2).prediction[2]
    tensor([0., 0.])
    """
    annotated = _annotated(membership)
    return DiceTables(annotated, annotated, annotated.sum(1, keepdim=True).expand_as(annotated))


def _annotated(membership: Tensor) -> Tensor:
    """1 where the label-set is the leaf alone."""
    return membership * (membership.sum(1, keepdim=True) == 1)


def _soft_target(membership: Tensor) -> Tensor:
    """The paper's Psi_0: uniform over the label-set."""
    return membership / membership.sum(1, keepdim=True)
