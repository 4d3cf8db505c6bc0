"""The loss for regions: a region is a union of leaves that the network predicts with a sigmoid of
its own.

A voxel with label-set g is *in* region r if g lies inside r, *out* if they have no leaf in common,
and *either* otherwise. Each region is then a problem of two leaves in which "either" says nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from nnunet_labelset.contract.protocol import relation
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses.dice import DiceTerms
from nnunet_labelset.losses.label_sets import as_indices
from nnunet_labelset.losses.modules import LabelSetLoss, SoftTargetDiceLoss, sum_over_ranks


class Sides(NamedTuple):
    """Bool `(K, R)` each: the label-sets that are in a region, and those that are in or out."""

    inside: Tensor
    known: Tensor


def sides(membership: Tensor, regions: Tensor) -> Sides:
    """In, out or either, for every label-set `(K, C)` and region `(R, C)`, both bool."""
    inside, outside = relation(membership.cpu().numpy(), regions.cpu().numpy())
    return Sides(torch.from_numpy(inside), torch.from_numpy(inside | outside))


class RegionLoss(nn.Module):
    """Dice and binary cross entropy per region over the voxels that are in or out; logits `(B, R,
    *S)`, target set indices `(B, 1, *S)`.

    `1 - mean over r of 2 sum_i [in] p_ir / (sum_i [in] + sum_i [in or out] p_ir + epsilon)`, plus
    the mean of `-log p` or `-log (1 - p)` over all pairs of region and voxel that are in or out. On
    complete annotations it is nnU-Net's loss for regions but for its smoothing (and the constant
    1).
    """

    def __init__(self, loss: LabelSetLoss, regions: Tensor, sum_entropy: bool = False) -> None:
        """
        loss: for leaves, with the terms and weights to take; Leaf-Dice and marginal Dice are one
            for regions.
        regions: the leaves of every region, bool `(R, C)`.
        sum_entropy: R times the cross entropy, as nnU-Net's loss has it in data sets with an ignore
            label.
        """
        super().__init__()
        if isinstance(loss, SoftTargetDiceLoss):
            raise LabelSetError(
                "soft-target Dice is not defined for regions: train with nnUNetTrainerLabelSet"
            )
        self.sides = sides(loss.membership, regions)
        self.dice, self.gamma = loss.dice is not None, loss.gamma
        self.batch_dice, self.ddp = loss.batch_dice, loss.ddp
        self.weight_dice, self.weight_ce = loss.weight_dice, loss.weight_ce
        self.ce_share = loss.ce_share
        self.checks_target = loss.checks_target
        self.entropies = len(regions) if sum_entropy else 1

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.sides.known.device != logits.device:  # nnU-Net does not move a loss
            self.sides = Sides(*(side.to(logits.device) for side in self.sides))
        count, regions = self.sides.known.shape
        _check_shapes(logits, target, regions)
        indices = (as_indices(target, count) if self.checks_target else target.long())[:, 0]
        inside, known = (side[indices].movedim(-1, 1) for side in self.sides)  # (B, R, *S)
        if logits.dtype != torch.float64:
            logits = logits.float()  # half overflows in sums over voxels
        loss = logits.new_zeros(())
        if self.dice:
            loss = loss + self.weight_dice * self._dice_loss(logits.sigmoid(), inside, known)
        if self.gamma is not None:
            entropy = self._entropy(logits, inside, known)
            entropy = torch.lerp(entropy.detach(), entropy, self.ce_share)
            loss = loss + self.weight_ce * self.entropies * entropy
        return loss

    def _dice_loss(self, p: Tensor, inside: Tensor, known: Tensor) -> Tensor:
        axes = tuple(range(2, p.ndim))
        terms = DiceTerms(
            (p * inside).sum(axes), inside.sum(axes, dtype=p.dtype), (p * known).sum(axes)
        )  # (B, R)
        if self.batch_dice:
            terms = DiceTerms(*(term.sum(0, keepdim=True) for term in terms))
            terms = sum_over_ranks(terms) if self.ddp else terms
        return 1 - terms.dice().mean()

    def _entropy(self, logits: Tensor, inside: Tensor, known: Tensor) -> Tensor:
        entropy = F.binary_cross_entropy_with_logits(
            logits, inside.to(logits.dtype), reduction="none"
        )
        if self.gamma:
            # 1 - p of what is annotated
            entropy = (-torch.expm1(-entropy)).clamp_min(1e-12) ** self.gamma * entropy
        return (entropy * known).sum() / known.sum().clamp_min(1)

    def extra_repr(self) -> str:
        names = ("dice", "gamma", "batch_dice", "ddp", "weight_dice", "weight_ce")
        options = [f"{name}={getattr(self, name)}" for name in names]
        return ", ".join(
            [f"regions={self.sides.known.shape[1]}, label_sets={len(self.sides.known)}", *options]
        )


def _check_shapes(logits: Tensor, target: Tensor, regions: int) -> None:
    has_channels = logits.ndim >= 3 and logits.shape[1] == regions
    if not has_channels or target.shape != (len(logits), 1, *logits.shape[2:]):
        raise LabelSetError(
            f"Expected `logits` of shape (B, {regions}, *S), one channel per region, and `target` "
            f"(B, 1, *S), but got {tuple(logits.shape)} and {tuple(target.shape)}"
        )
