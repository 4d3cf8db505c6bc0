"""Running Dice: a Dice loss over the last samples, so that it speaks in every patch.

In a patch without any `{c}` voxel the intersection of leaf c is 0, and a Dice of this patch alone
has no gradient for c, however wrong the prediction is there. Running Dice adds the sums of earlier
steps, decayed and detached, to those of the batch: c is then punished where it is known not to be.

A leaf that is not found has another trouble: the gradient of its Dice is as small as its
probabilities, and it stays dead. `log(D / (D + tail)) / 2` is added to the Dice D: far below `tail`
this is the logarithm of D, whose gradient does not fade, and far above it is hardly anything. Both
are functions of the sums of Leaf-Dice: the axiom holds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnunet_labelset.losses import LabelSetLoss, LeafDiceCELoss, LeafDiceLoss
from nnunet_labelset.losses.dice import DiceTerms

SMALLEST = 1e-30  # of a Dice whose logarithm is taken


class RunningDice(LabelSetLoss):
    """Put it before a Dice loss. There is one state for every scale of deep supervision, told apart
    by its shape.
    """

    def __init__(self, *args: Any, decay: float = 0.9, tail: float = 0.1, **options: Any) -> None:
        super().__init__(
            *args, **{**options, "batch_dice": True}
        )  # what runs is a sum over samples
        self.decay = decay
        self.tail = tail  # 0: none
        self.running: dict[
            tuple[int, ...], Tensor
        ] = {}  # scale -> (4, C): the three Dice terms and their weight
        self._scale: tuple[int, ...] = ()

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self._scale = tuple(logits.shape[2:])
        return super().forward(logits, target)

    def combine(self, terms: DiceTerms) -> DiceTerms:
        """The terms of the batch plus those of earlier steps; in validation the Dice of the batch
        alone counts.
        """
        now = torch.cat([*terms])  # (3, C)
        if not now.requires_grad:
            return terms
        with torch.no_grad():
            total = torch.cat([now, torch.ones_like(now[:1])])
            if self._scale not in self.running:
                self.running[self._scale] = torch.zeros_like(total)
            before = self.running[self._scale].to(now.device)
            total = total + self.decay * before
            # with AMP, a step that overflows is skipped: it must not be remembered either
            self.running[self._scale] = torch.where(total.isfinite().all(), total, before)
            weight = total[3:]  # a batch is one part of so many
        # the value is that of all, and the gradient as large as if all of them had one
        combined = total[:3] + weight * (now - now.detach())
        return self._with_tail(DiceTerms(*combined[:, None]))

    def _with_tail(self, terms: DiceTerms) -> DiceTerms:
        """Terms whose quotient is the Dice with what is added where a leaf is hardly found."""
        if not self.tail:
            return terms
        dice = terms.dice().clamp(min=SMALLEST)
        tail = (dice / (dice + self.tail)).log() / 2
        dice = dice + tail.where(
            terms.reference > 0, 0
        )  # a leaf that nobody annotates has no logarithm
        return DiceTerms(dice / 2, torch.ones_like(dice), torch.zeros_like(dice))


class RunningLeafDiceLoss(RunningDice, LeafDiceLoss):
    """Leaf-Dice of the last samples."""


class RunningLeafDiceCELoss(RunningDice, LeafDiceCELoss):
    """Leaf-Dice of the last samples + marginal cross entropy."""
