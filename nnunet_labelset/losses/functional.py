"""The losses as functions of logits `(B, C, *S)`, set indices `(B, 1, *S)` and membership, bool
`(K, C)`.

The examples share three leaves, a fourth label-set that is "leaf 1 or 2", and a fifth that is
anything:

>>> import torch
>>> from nnunet_labelset.losses.label_sets import LabelSets
>>> membership = LabelSets.from_superset_map(3, {3: [1, 2], 4: [0, 1, 2]}).membership
>>> logits = torch.tensor([[[2.0, 0.0, 1.0], [0.0, 3.0, 1.0], [0.0, 1.0, 1.0]]])
>>> target = torch.tensor([[[0, 1, 3]]])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nnunet_labelset.losses.dice import (
    DiceFunction,
    DiceTerms,
    leaf_dice,
    marginal_dice,
    mean_dice,
    soft_target_dice,
)
from nnunet_labelset.losses.engine import (
    FinishOptions,
    Tables,
    make_tables,
    sum_dtype,
    voxel_sums,
    whole_loss,
)
from nnunet_labelset.losses.label_sets import checked_input

__all__ = [
    "label_set_loss",
    "leaf_dice_loss",
    "loss_of_tables",
    "marginal_cross_entropy_loss",
    "marginal_dice_loss",
    "marginal_focal_loss",
    "mean_dice_loss",
    "soft_target_dice_loss",
]


def leaf_dice_loss(
    logits: Tensor, target: Tensor, membership: Tensor, alpha: int = 2, **options: Any
) -> Tensor:
    """Leaf-Dice, the paper's loss for missing labels: see `losses.leaf_dice`, and `label_set_loss`
    for the options.

    >>> leaf_dice_loss(logits, target, membership)
    tensor(0.3707)
    """
    return label_set_loss(logits, target, membership, leaf_dice, alpha=alpha, **options)


def marginal_dice_loss(
    logits: Tensor, target: Tensor, membership: Tensor, alpha: int = 2, **options: Any
) -> Tensor:
    """Marginal Dice: see `losses.marginal_dice`, and `label_set_loss` for the options.

    >>> marginal_dice_loss(logits, target, membership)
    tensor(0.0857)
    """
    return label_set_loss(logits, target, membership, marginal_dice, alpha=alpha, **options)


def soft_target_dice_loss(
    logits: Tensor, target: Tensor, membership: Tensor, alpha: int = 2, **options: Any
) -> Tensor:
    """Soft-target Dice, baseline 2, breaks the axiom: see `losses.soft_target_dice`, options as
    `label_set_loss`.

    >>> soft_target_dice_loss(logits, target, membership)
    tensor(0.0857)
    """
    return label_set_loss(logits, target, membership, soft_target_dice, alpha=alpha, **options)


def mean_dice_loss(
    logits: Tensor, target: Tensor, membership: Tensor, alpha: int = 2, **options: Any
) -> Tensor:
    """Mean-class Dice, the fully supervised baseline 1: see `losses.mean_dice`, options as
    `label_set_loss`.

    >>> mean_dice_loss(logits, target, membership)
    tensor(0.3499)
    """
    return label_set_loss(logits, target, membership, mean_dice, alpha=alpha, **options)


def marginal_cross_entropy_loss(logits: Tensor, target: Tensor, membership: Tensor) -> Tensor:
    """`-log s_i`, `s_i = sum of p_ic over c in g_i`, averaged over the voxels whose label-set
    excludes a leaf.

    On singletons and full ignore it is the cross entropy with nnU-Net's ignore label.

    >>> marginal_cross_entropy_loss(logits, target, membership)
    tensor(0.2716)
    """
    return label_set_loss(logits, target, membership, gamma=0.0)


def marginal_focal_loss(
    logits: Tensor,
    target: Tensor,
    membership: Tensor,
    gamma: float = 2.0,
    *,
    ignore_full_set: bool = False,
) -> Tensor:
    """The paper's conversion of the focal loss: the mean of `(1 - s_i / |g_i|)**gamma * -log(s_i /
    |g_i|)`.

    `ignore_full_set` averages over the voxels whose label-set excludes a leaf; the others add a
    constant.

    >>> marginal_focal_loss(logits, target, membership)
    tensor(0.1678)
    """
    return label_set_loss(logits, target, membership, gamma=gamma, ignore_full_set=ignore_full_set)


def label_set_loss(
    logits: Tensor,
    target: Tensor,
    membership: Tensor,
    dice: DiceFunction | None = None,
    *,
    alpha: int = 2,
    gamma: float | None = None,
    ignore_full_set: bool = False,
    **options: Any,
) -> Tensor:
    """A Dice-type loss, a cross entropy, or the weighted sum of both over one softmax.

    logits: `(B, C, *S)`, one channel per leaf, any floating dtype, 1 to any number of axes.
    target: `(B, 1, *S)`, set indices, as `LabelSets.encode` returns them.
    membership: bool `(K, C)`, which leaves are in which label-set, as `LabelSets.membership`.
    dice: `leaf_dice`, `marginal_dice`, `soft_target_dice`, `mean_dice`, or a function like them.
    alpha: power of the probabilities in the denominator, 1 or 2.
    gamma: None for no cross entropy, 0 for marginal cross entropy, else the marginal focal loss.
    ignore_full_set: leave out the voxels that may be any leaf, as nnU-Net does with its ignore
        label. By the letter of the paper's conversion they add constants to marginal and
        soft-target Dice and to the focal loss.
    options: see `loss_of_tables`.

    # Leaf-Dice + cross entropy
    >>> label_set_loss(logits, target, membership, leaf_dice, gamma=0.0)
    tensor(0.6423)
    """
    tables = make_tables(membership, dice, alpha, gamma, ignore_full_set)
    return loss_of_tables(logits, target, tables.to(logits.device, sum_dtype(logits)), **options)


def loss_of_tables(
    logits: Tensor,
    target: Tensor,
    tables: Tables,
    *,
    batch_dice: bool = False,
    include_background: bool = True,
    weight_dice: float = 1.0,
    weight_ce: float = 1.0,
    ce_share: float = 1.0,
    dice_of: Callable[[DiceTerms], Tensor] | None = None,
) -> Tensor:
    """The loss of tables that were made before: see `label_set_loss`.

    batch_dice: sum over the batch before dividing.
    include_background: count leaf 0 in the mean over leaves.
    weight_dice, weight_ce: weights of the two terms.
    ce_share: part of the entropy's gradient that is used; the value counts it in full.
    dice_of: returns the Dice values from the Dice terms (after the sum over the batch).

    >>> tables = make_tables(membership, leaf_dice).to(logits.device, logits.dtype)
    >>> loss_of_tables(logits, target, tables, include_background=False)
    tensor(0.5104)
    """
    logits, target = checked_input(logits, target, tables.leaves)
    if dice_of is None:
        options = FinishOptions(batch_dice, include_background, weight_dice, weight_ce, ce_share)
        return whole_loss(logits, target, tables, options)[0]
    sums = voxel_sums(logits, target, tables)
    loss: Tensor | float = 0.0
    if tables.dice:
        terms = DiceTerms(sums.intersection, sums.reference, sums.prediction)
        if batch_dice:
            terms = DiceTerms(*(term.sum(0, keepdim=True) for term in terms))
        dice = dice_of(terms)[:, 0 if include_background else 1 :]
        loss = weight_dice - weight_dice * dice.mean()
    if tables.entropy:
        entropy = sums.negative_entropy.sum() / (-sums.voxels.sum()).clamp_max(-1)
        entropy = torch.lerp(entropy.detach(), entropy, ce_share)
        loss = loss + weight_ce * entropy
    assert isinstance(loss, Tensor)
    return loss
