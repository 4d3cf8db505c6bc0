"""Data sets with regions: one sigmoid per region instead of one softmax over the labels.

nnU-Net turns the label map into one mask per region before the loss sees it. Here the values stay
and become label-sets as in any other data set. A voxel is then in a region, out of it, or says
nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from nnunet_labelset.contract import Contract
from nnunet_labelset.evaluation.counts import Counts
from nnunet_labelset.losses import LabelSetLoss
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.losses.regions import RegionLoss, Sides, sides


class Regions:
    """The regions of a data set in nnU-Net's order, which is that of the network's outputs."""

    def __init__(self, label_sets: LabelSets, contract: Contract) -> None:
        assert contract.regions is not None
        self.contract = contract
        self.names = tuple(contract.regions)
        self.members = torch.zeros(len(self.names), contract.num_leaves, dtype=torch.bool)  # (R, C)
        for row, leaves in zip(self.members, contract.regions.values(), strict=True):
            row[list(leaves)] = True
        self.sides = sides(label_sets.membership, self.members)

    def loss(self, leaf_loss: LabelSetLoss, has_ignore: bool) -> RegionLoss:
        """Return the loss with the terms that a trainer has chosen for labels."""
        return RegionLoss(leaf_loss, self.members, sum_entropy=has_ignore)

    def counts(self, output: Tensor, target: Tensor) -> Counts:
        """Count voxels per region, `(R,)` each: logits `(B, R, *S)`, set indices `(B, *S)`."""
        if self.sides.inside.device != target.device:  # copied once, not at every step
            self.sides = Sides(*(side.to(target.device) for side in self.sides))
        inside, known = (side[target].movedim(-1, 1) for side in self.sides)  # (B, R, *S)
        predicted = output > 0  # a sigmoid above 1/2
        axes = (0, *range(2, output.ndim))
        masks = (
            predicted & inside,
            predicted & known & ~inside,
            ~predicted & inside,
            ~predicted & known & ~inside,
        )
        return Counts(*(mask.sum(axes).cpu().numpy() for mask in masks))

    def coverage(self, cases: Iterable[str]) -> dict[str, int]:
        """Return in how many cases each region is annotated."""
        counts = self.contract.coverage(cases)
        return {name: counts[name] for name in self.names}


def without_regions(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of nnU-Net's transforms with which the values stay in the target."""
    return {**options, "regions": None}
