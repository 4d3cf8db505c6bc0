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

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed.nn.functional as distributed
from torch import Tensor, nn

from nnunet_labelset.errors import LabelSetError
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
    Running,
    Tables,
    make_tables,
    remember,
    running_slopes,
    sum_dtype,
    whole_loss,
)
from nnunet_labelset.losses.functional import loss_of_tables
from nnunet_labelset.losses.label_sets import LabelSets, checked_input

OPTIONS = ("alpha", "gamma", "batch_dice", "include_background", "ddp", "weight_dice", "weight_ce")


class LabelSetLoss(nn.Module):
    """A Dice-type term, a cross-entropy-type term, or their weighted sum over one softmax.

    `dice` may be a function of your own from membership and `alpha` to `DiceTables`:

    >>> def half_leaf_dice(membership, alpha):
    ...     tables = leaf_dice(membership, alpha)
    ...     return tables._replace(prediction=tables.prediction / 2)
    >>> LabelSetLoss(label_sets, half_leaf_dice)(logits, target)
    tensor(0.2028)
    """

    ce_share = 1.0  # of the entropy's gradient that is used; its value always counts in full
    scale_weight = 1.0  # of the scale of deep supervision that is asked for
    checks_target = True  # False where `target` cannot have wrong set indices: saves launches

    def __init__(
        self,
        label_sets: LabelSets,
        dice: DiceFunction | None = None,
        *,
        alpha: int = 2,
        gamma: float | None = None,
        batch_dice: bool = False,
        include_background: bool = True,
        ddp: bool = False,
        ignore_full_set: bool = False,
        weight_dice: float = 1.0,
        weight_ce: float = 1.0,
    ) -> None:
        """
        label_sets: the label-sets of the data set.
        dice: `leaf_dice`, `marginal_dice`, ..., or a function like them; None for no Dice term.
        alpha: power of the probabilities in the denominator, 1 or 2.
        gamma: None for no entropy, 0 for marginal cross entropy, else the marginal focal loss.
        batch_dice: sum over the batch before dividing.
        include_background: count leaf 0 in the mean over leaves.
        ddp: with `batch_dice`, sum over the processes of a distributed training too.
        ignore_full_set: leave out the voxels that may be any leaf, as nnU-Net does with its ignore
            label. By the letter of the paper's conversion they add constants to marginal and
            soft-target Dice and to the focal loss.
        weight_dice, weight_ce: weights of the two terms.
        """
        super().__init__()
        if not isinstance(label_sets, LabelSets):
            raise LabelSetError(
                f"Expected `label_sets` to be a LabelSets, but got {type(label_sets).__name__}"
            )
        self.membership: Tensor
        self.register_buffer("membership", label_sets.membership.clone(), persistent=False)
        self.dice = dice
        self.alpha = alpha
        self.gamma = gamma
        self.batch_dice = batch_dice
        self.include_background = include_background
        self.ddp = ddp
        self.ignore_full_set = ignore_full_set
        self.weight_dice = weight_dice
        self.weight_ce = weight_ce
        self._tables: dict[tuple, Tables] = {}
        make_tables(self.membership, dice, alpha, gamma)  # checks the options

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        tables = self._tables_for(logits)
        logits, target = checked_input(logits, target, tables.leaves)
        options = self.finish_options(logits)
        if options is not None:
            loss, running = whole_loss(logits, target, tables, options)
            self.keep(running)
            return loss
        return loss_of_tables(
            logits,
            target,
            tables,
            batch_dice=self.batch_dice,
            include_background=self.include_background,
            weight_dice=self.weight_dice * self.scale_weight,
            weight_ce=self.weight_ce * self.scale_weight,
            ce_share=self.ce_share,
            dice_of=self._dice_of_all_ranks,
        )

    def finish_options(self, logits: Tensor) -> FinishOptions | None:
        """Return how the engine finds the loss from its sums; None if `dice_of` has to be asked."""
        return self._options_unless_overridden(LabelSetLoss.dice_of)

    def _options_unless_overridden(self, dice_of: object) -> FinishOptions | None:
        if self._sums_over_ranks or type(self).dice_of is not dice_of:
            return None
        return FinishOptions(
            batch_dice=self.batch_dice,
            include_background=self.include_background,
            weight_dice=self.weight_dice * self.scale_weight,
            weight_ce=self.weight_ce * self.scale_weight,
            ce_share=self.ce_share,
        )

    def keep(self, running: Tensor | None) -> None:
        """Remember what a loss returns beside its value for the next batch; see `RunningDice`."""

    def dice_of(self, terms: DiceTerms) -> Tensor:
        """Return the Dice values from the sums, both `(B, C)`: the step that a subclass overrides.

        With `batch_dice` both are `(1, C)`, summed over the batch and, with `ddp`, the processes.
        """
        return terms.dice()

    @property
    def _sums_over_ranks(self) -> bool:
        return self.ddp and self.batch_dice

    def _dice_of_all_ranks(self, terms: DiceTerms) -> Tensor:
        return self.dice_of(sum_over_ranks(terms) if self._sums_over_ranks else terms)

    def _tables_for(self, logits: Tensor) -> Tables:
        """Return the tables on the device of the logits (nnU-Net does not move a loss), without a
        term of weight 0.
        """
        dice = self.dice if self.weight_dice or self.gamma is None else None
        gamma = self.gamma if self.weight_ce or dice is None else None
        options = (dice, self.alpha, gamma, self.ignore_full_set)
        key = (logits.device, sum_dtype(logits), self.checks_target, *options)
        if key not in self._tables:
            tables = make_tables(self.membership, *options)
            tables = replace(tables, checks_target=self.checks_target)
            self._tables = {key: tables.to(logits.device, sum_dtype(logits))}
        return self._tables[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}}

    def extra_repr(self) -> str:
        sizes = f"leaves={self.membership.shape[1]}, label_sets={len(self.membership)}"
        return ", ".join([sizes, *(f"{name}={getattr(self, name)}" for name in OPTIONS)])


def sum_over_ranks(terms: DiceTerms) -> DiceTerms:
    """Return the sum over all processes of a distributed training, with gradient, as nnU-Net's own
    batch Dice does.
    """
    return DiceTerms(*distributed.all_reduce(torch.stack(terms)))


class LeafDiceLoss(LabelSetLoss):
    """Leaf-Dice, the paper's loss for missing labels: see `losses.leaf_dice`.

    >>> LeafDiceLoss(label_sets, batch_dice=True)(logits, target)
    tensor(0.3707)
    """

    def __init__(self, label_sets: LabelSets, alpha: int = 2, **options: Any) -> None:
        super().__init__(label_sets, leaf_dice, alpha=alpha, **options)


class MarginalDiceLoss(LabelSetLoss):
    """Marginal Dice: see `losses.marginal_dice`.

    >>> MarginalDiceLoss(label_sets)(logits, target)
    tensor(0.0857)
    """

    def __init__(self, label_sets: LabelSets, alpha: int = 2, **options: Any) -> None:
        super().__init__(label_sets, marginal_dice, alpha=alpha, **options)


class SoftTargetDiceLoss(LabelSetLoss):
    """Soft-target Dice, baseline 2, breaks the axiom: see `losses.soft_target_dice`.

    >>> SoftTargetDiceLoss(label_sets)(logits, target)
    tensor(0.0857)
    """

    def __init__(self, label_sets: LabelSets, alpha: int = 2, **options: Any) -> None:
        super().__init__(label_sets, soft_target_dice, alpha=alpha, **options)


class MeanDiceLoss(LabelSetLoss):
    """Mean-class Dice, the fully supervised baseline 1: see `losses.mean_dice`.

    >>> MeanDiceLoss(label_sets)(logits, target)
    tensor(0.3499)
    """

    def __init__(self, label_sets: LabelSets, alpha: int = 2, **options: Any) -> None:
        super().__init__(label_sets, mean_dice, alpha=alpha, **options)


class MarginalCrossEntropyLoss(LabelSetLoss):
    """Marginal cross entropy: see `functional.marginal_cross_entropy_loss`.

    >>> MarginalCrossEntropyLoss(label_sets)(logits, target)
    tensor(0.2716)
    """

    def __init__(self, label_sets: LabelSets, **options: Any) -> None:
        super().__init__(label_sets, gamma=0.0, **options)


class MarginalFocalLoss(LabelSetLoss):
    """Marginal focal loss, the paper's conversion: see `functional.marginal_focal_loss`.

    >>> MarginalFocalLoss(label_sets)(logits, target)
    tensor(0.1678)
    """

    def __init__(self, label_sets: LabelSets, gamma: float = 2.0, **options: Any) -> None:
        super().__init__(label_sets, gamma=gamma, **options)


class LeafDiceCELoss(LabelSetLoss):
    """`weight_dice` * Leaf-Dice + `weight_ce` * marginal cross entropy.

    >>> LeafDiceCELoss(label_sets)(logits, target)
    tensor(0.6423)
    """

    def __init__(self, label_sets: LabelSets, alpha: int = 2, **options: Any) -> None:
        super().__init__(label_sets, leaf_dice, alpha=alpha, gamma=0.0, **options)


class LeafDiceFocalLoss(LabelSetLoss):
    """`weight_dice` * Leaf-Dice + `weight_ce` * marginal focal loss.

    >>> LeafDiceFocalLoss(label_sets)(logits, target)
    tensor(0.5385)
    """

    def __init__(
        self, label_sets: LabelSets, alpha: int = 2, gamma: float = 2.0, **options: Any
    ) -> None:
        super().__init__(label_sets, leaf_dice, alpha=alpha, gamma=gamma, **options)


class MarginalDiceCELoss(LabelSetLoss):
    """`weight_dice` * marginal Dice + `weight_ce` * marginal cross entropy.

    >>> MarginalDiceCELoss(label_sets, weight_ce=0.5)(logits, target)
    tensor(0.2215)
    """

    def __init__(self, label_sets: LabelSets, alpha: int = 2, **options: Any) -> None:
        super().__init__(label_sets, marginal_dice, alpha=alpha, gamma=0.0, **options)


class MarginalDiceFocalLoss(LabelSetLoss):
    """`weight_dice` * marginal Dice + `weight_ce` * marginal focal loss.

    >>> MarginalDiceFocalLoss(label_sets, gamma=1.0)(logits, target)
    tensor(0.3557)
    """

    def __init__(
        self, label_sets: LabelSets, alpha: int = 2, gamma: float = 2.0, **options: Any
    ) -> None:
        super().__init__(label_sets, marginal_dice, alpha=alpha, gamma=gamma, **options)


class RunningDice(LabelSetLoss):
    """Dice over the recent batches: `class RunningLeafDiceLoss(RunningDice, LeafDiceLoss)`.

    In a patch without any `{c}` voxel the intersection of leaf c is 0, and the Dice of this patch
    alone has no gradient for c, however wrong the prediction is. Running Dice adds the decayed sums
    of earlier batches to those of the batch, so that c is punished where it is known to be absent.

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
