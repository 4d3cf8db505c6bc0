"""The losses as modules: `loss(logits, target)` with logits `(B, C, *S)` and set indices `(B, 1, *S)`."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses.confusion import SoftConfusion, soft_confusion
from nnunet_labelset.losses.dice import (
    DiceTerms,
    leaf_dice,
    marginal_dice,
    mean_dice,
    needed_sums,
    soft_target_dice,
)
from nnunet_labelset.losses.label_sets import LabelSets, as_integers

EPSILON = 1e-5


class LabelSetLoss(nn.Module):
    """What the losses share: a Dice-type term, a cross-entropy-type term, or their weighted sum over one softmax."""

    dice: ClassVar[Any] = None  # a DiceFunction, or None for none
    alpha = 2
    gamma: float | None = None  # None: no cross entropy; 0: cross entropy; else focal
    batch_dice = False
    include_background = True
    ddp = False
    ignore_full_set = False
    weight_dice = 1.0
    weight_ce = 1.0

    def __init__(self, label_sets: LabelSets) -> None:
        super().__init__()
        if not isinstance(label_sets, LabelSets):
            raise LabelSetError(f"Expected `label_sets` to be a LabelSets, but got {type(label_sets).__name__}")
        self.membership: Tensor
        self.register_buffer("membership", label_sets.membership.clone(), persistent=False)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self._check(logits, target)
        if self.membership.device != logits.device:
            self.to(logits.device)  # nnU-Net does not move a loss
        with_dice = self.dice is not None and self.weight_dice != 0
        with_entropy = self.gamma is not None and self.weight_ce != 0
        sums = soft_confusion(
            logits,
            as_integers(target, "target"),
            self.membership,
            **(needed_sums(self.dice, self.alpha, with_entropy) if with_dice else {"first": False}),
            gamma=self.gamma if with_entropy else None,
        )
        loss = sums.cross_entropy.new_zeros(())
        if with_dice:
            loss = loss + self.weight_dice * self._dice_loss(sums)
        if with_entropy:
            loss = loss + self.weight_ce * self._cross_entropy(sums)
        return loss

    def extra_repr(self) -> str:
        names = ("alpha", "gamma", "batch_dice", "include_background", "ddp", "weight_dice", "weight_ce")
        options = [f"{name}={getattr(self, name)}" for name in names]
        return ", ".join([f"leaves={self.membership.shape[1]}, label_sets={len(self.membership)}", *options])

    def _check(self, logits: Tensor, target: Tensor) -> None:
        leaves = self.membership.shape[1]
        if logits.ndim < 3 or logits.shape[1] != leaves or not logits.is_floating_point():
            got = f"{logits.dtype} {tuple(logits.shape)}"
            raise LabelSetError(f"Expected `logits` of shape (B, {leaves}, *S), one channel per leaf, but got {got}")
        expected = (logits.shape[0], 1, *logits.shape[2:])
        if target.shape != expected:
            raise LabelSetError(f"Expected `target` of shape {expected}, but got {tuple(target.shape)}")
        if target.device != logits.device:
            raise LabelSetError(f"Expected `target` on {logits.device}, but got {target.device}")

    def _dice_loss(self, sums: SoftConfusion) -> Tensor:
        """`1 - mean over leaves of 2 intersection / (reference + prediction + epsilon)`."""
        assert self.dice is not None
        if self.ignore_full_set:
            sums = sums.weighted(self._informative())
        terms = self.dice(sums, self.membership.to(sums.first.dtype), self.alpha)
        if self.batch_dice:
            terms = DiceTerms(*(term.sum(0, keepdim=True) for term in terms))
            if self.ddp:
                terms = _sum_over_ranks(terms)
        dice = 2 * terms.intersection / (terms.reference + terms.prediction + EPSILON)  # (B, C)
        return 1 - dice[:, 0 if self.include_background else 1 :].mean()

    def _cross_entropy(self, sums: SoftConfusion) -> Tensor:
        """Mean over the voxels whose label-set excludes a leaf; 0 if there is none."""
        sums = sums.weighted(self._informative())
        return sums.cross_entropy.sum() / sums.voxels.sum().clamp_min(1)

    def _informative(self) -> Tensor:
        """Label-sets that exclude a leaf: bool (K,)."""
        return ~self.membership.all(1)


def _sum_over_ranks(terms: DiceTerms) -> DiceTerms:
    """Sum over all processes of a distributed training, with gradient, as nnU-Net's own batch Dice does."""
    from nnunetv2.utilities.ddp_allgather import AllGatherGrad

    return DiceTerms(*AllGatherGrad.apply(torch.stack(terms)).sum(0))


class _DiceLoss(LabelSetLoss):
    def __init__(
        self,
        label_sets: LabelSets,
        alpha: int = 2,
        batch_dice: bool = False,
        include_background: bool = True,
        ddp: bool = False,
        ignore_full_set: bool = False,
    ) -> None:
        """
        label_sets: the label-sets of the data set.
        alpha: power of the probabilities in the denominator, 1 or 2.
        batch_dice: sum over the batch before dividing.
        include_background: count leaf 0 in the mean over leaves.
        ddp: with `batch_dice`, sum over the processes of a distributed training too.
        ignore_full_set: leave out the voxels that may be any leaf, as nnU-Net does with its ignore label. By the
            letter of the paper's conversion they add constants to marginal and soft-target Dice.
        """
        super().__init__(label_sets)
        if alpha not in (1, 2):
            raise LabelSetError(f"Expected `alpha` to be 1 or 2, but got {alpha}")
        self.alpha = int(alpha)  # also an index
        self.batch_dice = batch_dice
        self.include_background = include_background
        self.ddp = ddp
        self.ignore_full_set = ignore_full_set


class LeafDiceLoss(_DiceLoss):
    """Leaf-Dice, the paper's loss for missing labels: see `nnunet_labelset.losses.leaf_dice`."""

    dice = staticmethod(leaf_dice)


class MarginalDiceLoss(_DiceLoss):
    """Marginal Dice: see `nnunet_labelset.losses.marginal_dice`."""

    dice = staticmethod(marginal_dice)


class SoftTargetDiceLoss(_DiceLoss):
    """Soft-target Dice, baseline 2, breaks the axiom: see `nnunet_labelset.losses.soft_target_dice`."""

    dice = staticmethod(soft_target_dice)


class MeanDiceLoss(_DiceLoss):
    """Mean-class Dice, the fully supervised baseline 1: see `nnunet_labelset.losses.mean_dice`."""

    dice = staticmethod(mean_dice)


class MarginalCrossEntropyLoss(LabelSetLoss):
    """`-log s_i`, `s_i = sum of p_ic over c in g_i`, averaged over the voxels whose label-set excludes a leaf.

    On singletons and full ignore it is the cross entropy with nnU-Net's ignore label.
    """

    gamma = 0.0


class MarginalFocalLoss(LabelSetLoss):
    """`(1 - s_i)**gamma * -log s_i`, averaged as the marginal cross entropy."""

    def __init__(self, label_sets: LabelSets, gamma: float = 2.0) -> None:
        super().__init__(label_sets)
        self.gamma = _checked_gamma(gamma)


class _DiceCELoss(_DiceLoss):
    gamma = 0.0

    def __init__(
        self,
        label_sets: LabelSets,
        alpha: int = 2,
        *,
        weight_dice: float = 1.0,
        weight_ce: float = 1.0,
        **dice_options: Any,
    ) -> None:
        super().__init__(label_sets, alpha, **dice_options)
        self.weight_dice = weight_dice
        self.weight_ce = weight_ce


class _DiceFocalLoss(_DiceCELoss):
    def __init__(self, label_sets: LabelSets, alpha: int = 2, gamma: float = 2.0, **options: Any) -> None:
        super().__init__(label_sets, alpha, **options)
        self.gamma = _checked_gamma(gamma)


class LeafDiceCELoss(_DiceCELoss):
    """`weight_dice` * Leaf-Dice + `weight_ce` * marginal cross entropy."""

    dice = staticmethod(leaf_dice)


class LeafDiceFocalLoss(_DiceFocalLoss):
    """`weight_dice` * Leaf-Dice + `weight_ce` * marginal focal loss."""

    dice = staticmethod(leaf_dice)


class MarginalDiceCELoss(_DiceCELoss):
    """`weight_dice` * marginal Dice + `weight_ce` * marginal cross entropy."""

    dice = staticmethod(marginal_dice)


class MarginalDiceFocalLoss(_DiceFocalLoss):
    """`weight_dice` * marginal Dice + `weight_ce` * marginal focal loss."""

    dice = staticmethod(marginal_dice)


def _checked_gamma(gamma: float) -> float:
    if not gamma >= 0:
        raise LabelSetError(f"Expected `gamma` to be at least 0, but got {gamma}")
    return float(gamma)
