"""The losses as modules: `loss(logits, target)` with logits `(B, C, *S)` and set indices `(B, 1,
*S)`.

Each is thin: it keeps the options, makes the tables once per device, and calls
`functional.loss_of_tables`.

>>> from nnunet_labelset.losses.label_sets import LabelSets
>>> label_sets = LabelSets.from_superset_map(3, {3: [1, 2], 4: [0, 1, 2]})
>>> logits = torch.tensor([[[2.0, 0.0, 1.0], [0.0, 3.0, 1.0], [0.0, 1.0, 1.0]]])
>>> target = label_sets.encode(torch.tensor([[[0, 1, 3]]]))
"""

from __future__ import annotations

from inspect import isfunction, signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses.dice import (
    DiceTerms,
    leaf_dice,
    marginal_dice,
    mean_dice,
    soft_target_dice,
)
from nnunet_labelset.losses.engine import Tables, make_tables, sum_dtype
from nnunet_labelset.losses.functional import loss_of_tables
from nnunet_labelset.losses.label_sets import LabelSets


class LabelSetLoss(nn.Module):
    """What the losses share: a Dice-type term, a cross-entropy-type term, or their weighted sum
    over one softmax.

    A loss of your own sets `dice` to a function from membership and `alpha` to `DiceTables`:

    >>> class HalfLeafDice(LeafDiceLoss):
    ...     @staticmethod
    ...     def dice(membership, alpha):
    ...         tables = leaf_dice(membership, alpha)
    ...         return tables._replace(prediction=tables.prediction / 2)
    >>> HalfLeafDice(label_sets)(logits, target)
    tensor(0.2028)
    """

    dice: ClassVar[Any] = None  # a DiceFunction, or None for none
    alpha = 2
    gamma: float | None = None  # None: no cross entropy; 0: cross entropy; else focal
    batch_dice = False
    include_background = True
    ddp = False
    ignore_full_set = False
    weight_dice = 1.0
    weight_ce = 1.0

    def __init_subclass__(cls, **options: Any) -> None:
        """A function of two arguments in the body of a class is no method."""
        super().__init_subclass__(**options)
        dice = vars(cls).get("dice")
        if isfunction(dice) and len(signature(dice).parameters) == 2:
            cls.dice = staticmethod(dice)

    def __init__(self, label_sets: LabelSets) -> None:
        super().__init__()
        if not isinstance(label_sets, LabelSets):
            raise LabelSetError(
                f"Expected `label_sets` to be a LabelSets, but got {type(label_sets).__name__}"
            )
        self.membership: Tensor
        self.register_buffer("membership", label_sets.membership.clone(), persistent=False)
        self._tables: dict[tuple, Tables] = {}

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        changes = (self.ddp and self.batch_dice) or type(self).combine is not LabelSetLoss.combine
        return loss_of_tables(
            logits,
            target,
            self._tables_for(logits),
            batch_dice=self.batch_dice,
            include_background=self.include_background,
            weight_dice=self.weight_dice,
            weight_ce=self.weight_ce,
            combine=self._combined if changes else None,
        )

    def combine(self, terms: DiceTerms) -> DiceTerms:
        """The Dice terms that are divided, from those of the batch: for a subclass to override.

        Terms are `(B, C)`; `(1, C)` with `batch_dice`, summed over the batch and, with `ddp`, over
        the processes.
        """
        return terms

    def _combined(self, terms: DiceTerms) -> DiceTerms:
        return self.combine(_sum_over_ranks(terms) if self.ddp and self.batch_dice else terms)

    def _check_options(self) -> None:
        make_tables(self.membership, self.dice, self.alpha, self.gamma)

    def _tables_for(self, logits: Tensor) -> Tables:
        """The tables on the device of the logits (nnU-Net does not move a loss), without a term of
        weight 0.
        """
        dice = self.dice if self.weight_dice or self.gamma is None else None
        gamma = self.gamma if self.weight_ce or dice is None else None
        options = (dice, self.alpha, gamma, self.ignore_full_set)
        key = (logits.device, sum_dtype(logits), *options)
        if key not in self._tables:
            self._tables = {key: make_tables(self.membership, *options).to(*key[:2])}
        return self._tables[key]

    def __setattr__(self, name: str, value: Any) -> None:
        """torch would keep a module where the Dice function of the class hides it."""
        if name == "dice":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}}

    def extra_repr(self) -> str:
        names = (
            "alpha",
            "gamma",
            "batch_dice",
            "include_background",
            "ddp",
            "weight_dice",
            "weight_ce",
        )
        options = [f"{name}={getattr(self, name)}" for name in names]
        return ", ".join(
            [f"leaves={self.membership.shape[1]}, label_sets={len(self.membership)}", *options]
        )


def _sum_over_ranks(terms: DiceTerms) -> DiceTerms:
    """Sum over all processes of a distributed training, with gradient, as nnU-Net's own batch Dice
    does.
    """
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
        ignore_full_set: leave out the voxels that may be any leaf, as nnU-Net does with its ignore
            label. By the letter of the paper's conversion they add constants to marginal and
            soft-target Dice and to the focal loss.
        """
        super().__init__(label_sets)
        self.alpha = alpha
        self.batch_dice = batch_dice
        self.include_background = include_background
        self.ddp = ddp
        self.ignore_full_set = ignore_full_set
        self._check_options()


class LeafDiceLoss(_DiceLoss):
    """Leaf-Dice, the paper's loss for missing labels: see `losses.leaf_dice`.

    >>> LeafDiceLoss(label_sets, batch_dice=True)(logits, target)
    tensor(0.3707)
    """

    dice = staticmethod(leaf_dice)


class MarginalDiceLoss(_DiceLoss):
    """Marginal Dice: see `losses.marginal_dice`.

    >>> MarginalDiceLoss(label_sets)(logits, target)
    tensor(0.0857)
    """

    dice = staticmethod(marginal_dice)


class SoftTargetDiceLoss(_DiceLoss):
    """Soft-target Dice, baseline 2, breaks the axiom: see `losses.soft_target_dice`.

    >>> SoftTargetDiceLoss(label_sets)(logits, target)
    tensor(0.0857)
    """

    dice = staticmethod(soft_target_dice)


class MeanDiceLoss(_DiceLoss):
    """Mean-class Dice, the fully supervised baseline 1: see `losses.mean_dice`.

    >>> MeanDiceLoss(label_sets)(logits, target)
    tensor(0.3499)
    """

    dice = staticmethod(mean_dice)


class MarginalCrossEntropyLoss(LabelSetLoss):
    """Marginal cross entropy: see `functional.marginal_cross_entropy_loss`.

    >>> MarginalCrossEntropyLoss(label_sets)(logits, target)
    tensor(0.2716)
    """

    gamma = 0.0


class MarginalFocalLoss(LabelSetLoss):
    """Marginal focal loss, the paper's conversion: see `functional.marginal_focal_loss`.

    >>> MarginalFocalLoss(label_sets)(logits, target)
    tensor(0.1678)
    """

    def __init__(
        self, label_sets: LabelSets, gamma: float = 2.0, ignore_full_set: bool = False
    ) -> None:
        super().__init__(label_sets)
        self.gamma = gamma
        self.ignore_full_set = ignore_full_set
        self._check_options()


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
    def __init__(
        self, label_sets: LabelSets, alpha: int = 2, gamma: float = 2.0, **options: Any
    ) -> None:
        super().__init__(label_sets, alpha, **options)
        self.gamma = gamma
        self._check_options()


class LeafDiceCELoss(_DiceCELoss):
    """`weight_dice` * Leaf-Dice + `weight_ce` * marginal cross entropy.

    >>> LeafDiceCELoss(label_sets)(logits, target)
    tensor(0.6423)
    """

    dice = staticmethod(leaf_dice)


class LeafDiceFocalLoss(_DiceFocalLoss):
    """`weight_dice` * Leaf-Dice + `weight_ce` * marginal focal loss.

    >>> LeafDiceFocalLoss(label_sets)(logits, target)
    tensor(0.5385)
    """

    dice = staticmethod(leaf_dice)


class MarginalDiceCELoss(_DiceCELoss):
    """`weight_dice` * marginal Dice + `weight_ce` * marginal cross entropy.

    >>> MarginalDiceCELoss(label_sets, weight_ce=0.5)(logits, target)
    tensor(0.2215)
    """

    dice = staticmethod(marginal_dice)


class MarginalDiceFocalLoss(_DiceFocalLoss):
    """`weight_dice` * marginal Dice + `weight_ce` * marginal focal loss.

    >>> MarginalDiceFocalLoss(label_sets, gamma=1.0)(logits, target)
    tensor(0.3557)
    """

    dice = staticmethod(marginal_dice)
