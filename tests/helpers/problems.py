"""Random problems for the tests of the losses: label-sets, logits and targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from nnunet_labelset import losses
from nnunet_labelset.losses.label_sets import LabelSets
from tests.helpers import naive_losses

DICE = {
    "leaf": losses.LeafDiceLoss,
    "marginal": losses.MarginalDiceLoss,
    "soft": losses.SoftTargetDiceLoss,
    "mean": losses.MeanDiceLoss,
}
ENTROPY = {"ce": losses.MarginalCrossEntropyLoss, "focal": losses.MarginalFocalLoss}
SUMS = {
    ("leaf", "ce"): losses.LeafDiceCELoss,
    ("leaf", "focal"): losses.LeafDiceFocalLoss,
    ("marginal", "ce"): losses.MarginalDiceCELoss,
    ("marginal", "focal"): losses.MarginalDiceFocalLoss,
}
RUNNING = [losses.RunningLeafDiceLoss, losses.RunningLeafDiceCELoss]
ALL = [*DICE.values(), *ENTROPY.values(), *SUMS.values(), *RUNNING]
BREAKS_THE_AXIOM = (losses.SoftTargetDiceLoss,)


@dataclass
class Problem:
    label_sets: LabelSets
    meaning: dict[int, frozenset[int]]  # value -> label-set
    logits: Tensor  # (B, C, *S) float64
    values: Tensor  # (B, 1, *S)
    target: Tensor  # set indices

    @property
    def sets(self) -> list[list[frozenset[int]]]:
        return naive_losses.sets_of(self.values, self.meaning)


def make_problem(
    leaves: int,
    supersets: list[list[int]],
    batch: int = 2,
    shape: tuple[int, ...] = (3, 4),
    seed: int = 0,
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    label_sets = LabelSets.from_superset_map(leaves, dict(enumerate(supersets, leaves)))
    meaning = {value: frozenset([value]) for value in range(leaves)}
    meaning |= {value: frozenset(labels) for value, labels in enumerate(supersets, leaves)}
    logits = 2 * torch.randn(batch, leaves, *shape, generator=generator, dtype=torch.float64)
    values = torch.randint(len(meaning), (batch, 1, *shape), generator=generator)
    return Problem(label_sets, meaning, logits.requires_grad_(), values, label_sets.encode(values))


def with_gradient(
    module: Callable[..., Tensor], logits: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient by the logits."""
    logits = logits.detach().clone().requires_grad_()
    value = module(logits, target)
    return value.detach(), torch.autograd.grad(value, logits)[0]


# Overlapping label-sets, with background and full ignore.
OVERLAPPING = (4, [[0, 1], [1, 2, 3], [0, 2], [0, 1, 2, 3]])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    leaves = draw(st.integers(2, 5))
    subset = st.lists(st.integers(0, leaves - 1), min_size=1, max_size=leaves, unique=True)
    return make_problem(
        leaves,
        draw(st.lists(subset, max_size=6)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([(5,), (3, 2), (2, 2, 2)])),
        draw(st.integers(0, 2**16)),
    )
