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

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from nnunet_labelset.losses.dice import DiceTerms
from nnunet_labelset.losses.engine.finish import (
    FinishOptions,
    Running,
    remember,
    running_slopes,
)
from nnunet_labelset.losses.modules import LabelSetLoss, LeafDiceCELoss, LeafDiceLoss


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

    Each scale of deep supervision has its own state. `scale` names the scale of the next call, as
    `training.outputs` does; otherwise scales are told apart by their shape.

    >>> issubclass(RunningLeafDiceLoss, LeafDiceLoss)
    True
    """

    def __init__(self, *args: Any, decay: float = 0.9, tail: float = 0.1, **options: Any) -> None:
        """
        decay: what remains of the running sums after each batch.
        tail: Dice below which the logarithm matters; 0 switches it off.
        """
        super().__init__(*args, **{**options, "batch_dice": True})
        self.decay = decay
        self.tail = tail
        self.running: dict[Hashable, Tensor] = {}  # scale -> (4, C): I, R, P and evidence
        self.scale: int | None = None
        self._key: Hashable = ()

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self._key = tuple(logits.shape[2:]) if self.scale is None else self.scale
        return super().forward(logits, target)

    def finish_options(self, logits: Tensor) -> FinishOptions | None:
        options = self._options_unless_overridden(RunningDice.dice_of)
        if options is None:
            return None
        is_training = torch.is_grad_enabled() and logits.requires_grad
        before = None
        if is_training:
            before = self._before(self._tables_for(logits).weights)
        return options._replace(running=Running(before, self.decay, self.tail))

    def keep(self, running: Tensor | None) -> None:
        if running is not None:
            self.running[self._key] = running

    def dice_of(self, terms: DiceTerms) -> Tensor:
        """Return the same as `finish_options` asks for, for sums over several processes."""
        batch_dice = terms.dice().where(terms.reference > 0, 1)
        if not terms.prediction.requires_grad:
            return batch_dice
        with torch.no_grad():
            now = torch.cat([*terms, terms.reference > 0])
            total, after = remember(now, self._before(now), self.decay)
            self.keep(after)
            slopes = running_slopes(total, self.tail)
        return _WithSlopes.apply(batch_dice, terms.intersection, terms.prediction, *slopes)

    def _before(self, like: Tensor) -> Tensor:
        """Return the running sums of the earlier batches, on the device and in the dtype of a
        tensor.
        """
        if self._key not in self.running:
            self.running[self._key] = like.new_zeros(4, self.membership.shape[1])
        return self.running[self._key].to(like)


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
