"""Running Dice: a Dice loss over the recent batches, with a gradient in every patch.

In a patch without any `{c}` voxel the intersection of leaf c is 0, and the Dice of this patch alone
has no gradient for c, however wrong the prediction is. Running Dice adds the decayed sums of
earlier batches to those of the batch, so that c is punished where it is known to be absent.

>>> from nnunet_labelset.losses.label_sets import LabelSets
>>> label_sets = LabelSets.from_superset_map(3, {3: [1, 2], 4: [0, 1, 2]})
>>> logits = torch.tensor([[[2.0, 0.0, 1.0], [0.0, 3.0, 1.0], [0.0, 1.0, 1.0]]])
>>> target = label_sets.encode(torch.tensor([[[0, 1, 3]]]))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnunet_labelset.losses.dice import EPSILON, DiceTerms
from nnunet_labelset.losses.modules import LabelSetLoss, LeafDiceCELoss, LeafDiceLoss

END = 1e-3  # evidence below which a leaf is forgotten: 66 batches after it was last seen
SMALLEST = 1e-12  # Dice whose logarithm still gets steeper
INTERSECTION, REFERENCE, PREDICTION, EVIDENCE = range(4)  # rows of the state


class RunningDice(LabelSetLoss):
    """Mixin for a Dice loss: `class RunningLeafDiceLoss(RunningDice, LeafDiceLoss)`.

    The gradient is that of `D + log(D / (D + tail)) / 2`, where D is the Dice of the running sums,
    times `e min(1, e)`. The evidence `e` is the decayed number of batches in which the leaf was
    annotated. A leaf in every batch and a leaf in every sixth batch thus get the same gradient per
    annotated batch, that of an ordinary batch Dice, and a leaf that is no longer seen gets none.
    The logarithm keeps the gradient alive for a leaf whose probabilities have nearly vanished; it
    hardly changes a Dice far above `tail`.

    The value is the Dice of the batch alone over the leaves that are annotated in it (the others
    count as 1), so that training and validation log the same function.

    Each scale of deep supervision has its own state, told apart by its shape.

    >>> [base.__name__ for base in RunningLeafDiceLoss.__bases__]
    ['RunningDice', 'LeafDiceLoss']
    """

    def __init__(self, *args: Any, decay: float = 0.9, tail: float = 0.1, **options: Any) -> None:
        """
        decay: what remains of the running sums after each batch.
        tail: Dice below which the logarithm matters; 0 switches it off.
        """
        super().__init__(*args, **{**options, "batch_dice": True})
        self.decay = decay
        self.tail = tail
        self.running: dict[tuple[int, ...], Tensor] = {}  # scale -> (4, C), rows as above
        self._scale: tuple[int, ...] = ()

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self._scale = tuple(logits.shape[2:])
        return super().forward(logits, target)

    def dice_of(self, terms: DiceTerms) -> Tensor:
        batch_dice = terms.dice().where(terms.reference > 0, 1)
        if not terms.prediction.requires_grad:
            return batch_dice
        with torch.no_grad():
            running = self._remember(terms)
            slopes = running_slopes(running, self.tail)
        return _WithSlopes.apply(batch_dice, terms.intersection, terms.prediction, *slopes)

    def _remember(self, terms: DiceTerms) -> Tensor:
        """Return the running sums `(4, C)` with this batch, and keep them for the next one."""
        now = torch.cat([*terms, terms.reference > 0])
        before = self.running.get(self._scale)
        if before is None:
            before = torch.zeros_like(now)
        total = torch.add(now, before.to(now), alpha=self.decay)
        total = total * (total[EVIDENCE] >= END)
        # AMP skips a step that overflows: it must not be remembered either
        is_finite = total.sum().isfinite()
        self.running[self._scale] = torch.where(is_finite, total, before)
        return total


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
        slope = dice + (tail / 2) / (dice + tail)
    slope = slope * (evidence * evidence.clamp(max=1) / half)
    return slope / dice, slope / -2


class _WithSlopes(torch.autograd.Function):
    """The given Dice values, with the given slopes as their gradient."""

    @staticmethod
    def forward(
        dice: Tensor,
        intersection: Tensor,
        prediction: Tensor,
        by_intersection: Tensor,
        by_prediction: Tensor,
    ) -> Tensor:
        return dice.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        by_intersection, by_prediction = ctx.saved_tensors
        return None, gradient * by_intersection, gradient * by_prediction, None, None


class RunningLeafDiceLoss(RunningDice, LeafDiceLoss):
    """Leaf-Dice of the recent batches.

    >>> RunningLeafDiceLoss(label_sets)(logits, target)
    tensor(0.0374)
    """


class RunningLeafDiceCELoss(RunningDice, LeafDiceCELoss):
    """Leaf-Dice of the recent batches + marginal cross entropy: the recommended loss.

    >>> RunningLeafDiceCELoss(label_sets)(logits, target)
    tensor(0.3090)
    """
