"""The loss for regions: hand-computed, against nnU-Net's own, and the axiom of every region."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
from nnunetv2.training.loss.compound_losses import DC_and_BCE_loss
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
from torch import distributed as dist
from torch import multiprocessing

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses import (
    LabelSetLoss,
    LeafDiceCELoss,
    LeafDiceFocalLoss,
    LeafDiceLoss,
    MarginalCrossEntropyLoss,
    MarginalDiceCELoss,
    SoftTargetDiceLoss,
    check_axiom,
    leaf_dice,
)
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.losses.regions import RegionLoss, sides
from tests.helpers.errors import refusal

# background, edema, necrosis, enhancing; the whole tumour, its core, the enhancing part
REGIONS = torch.tensor([[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]], dtype=torch.bool)
WHOLE, EVERY, NOT_CORE = 4, 5, 6
SETS = LabelSets.from_superset_map(4, {WHOLE: [1, 2, 3], EVERY: [0, 1, 2, 3], NOT_CORE: [0, 1]})


def problem(
    sets: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, 3, 6, 5, 4, generator=generator, dtype=dtype)
    return logits.requires_grad_(), torch.randint(sets, (2, 1, 6, 5, 4), generator=generator)


def made(
    dice: bool = True, gamma: float | None = 0.0, sum_entropy: bool = False, **options: Any
) -> RegionLoss:
    """From a loss for leaves with these terms."""
    leaf_loss = LabelSetLoss(SETS, leaf_dice if dice else None, gamma=gamma, **options)
    return RegionLoss(leaf_loss, REGIONS, sum_entropy)


def nnunets(batch_dice: bool, ignore: bool) -> torch.nn.Module:
    options = {"batch_dice": batch_dice, "do_bg": True, "smooth": 1e-5, "ddp": False}
    return DC_and_BCE_loss(
        {}, options, use_ignore_label=ignore, dice_class=MemoryEfficientSoftDiceLoss
    )


def test_in_out_or_either() -> None:
    inside, known = sides(SETS.membership, REGIONS)
    words = [["either" if not k else "in" if i else "out" for i, k in zip(*row, strict=True)]
             for row in zip(inside.tolist(), known.tolist(), strict=True)]  # fmt: skip
    assert words == [
        ["out", "out", "out"],
        ["in", "out", "out"],
        ["in", "in", "out"],
        ["in", "in", "in"],
        ["in", "either", "either"],
        ["either", "either", "either"],
        ["either", "out", "out"],
    ]


def test_values_by_hand() -> None:
    """Three voxels: enhancing, the whole tumour without details, background; every sigmoid is
    3/4.
    """
    logits = torch.full((1, 3, 3), math.log(3), dtype=torch.float64)
    target = torch.tensor([[[3, WHOLE, 0]]])
    p = Fraction(3, 4)
    dice = [2 * 2 * p / (2 + 3 * p), 2 * p / (1 + 2 * p), 2 * p / (1 + 2 * p)]
    loss = made(gamma=None)(logits, target)
    assert float(loss) == pytest.approx(float(1 - sum(dice) / 3), abs=1e-5)
    right, wrong = -math.log(3 / 4), -math.log(1 / 4)
    entropy = (2 * right + wrong + 2 * (right + wrong)) / 7
    assert float(made(dice=False)(logits, target)) == pytest.approx(entropy)
    focal = (2 * right / 16 + wrong * 9 / 16 + 2 * (right / 16 + wrong * 9 / 16)) / 7
    assert float(made(dice=False, gamma=2)(logits, target)) == pytest.approx(focal)


@pytest.mark.parametrize(("batch_dice", "ignore"), [*product([False, True], repeat=2)])
def test_it_is_nnunets_loss_where_nothing_or_everything_is_known(
    batch_dice: bool, ignore: bool
) -> None:
    logits, target = problem(4)
    if ignore:
        target[:, :, :2] = EVERY
    regions = [torch.isin(target, region.nonzero()) for region in REGIONS]
    encoded = torch.cat([*regions, target == EVERY] if ignore else regions, 1)
    ours = made(batch_dice=batch_dice, sum_entropy=ignore)(logits, target)
    theirs = 1 + nnunets(batch_dice, ignore)(logits, encoded)
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    gradients = [torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (ours, theirs)]
    assert torch.allclose(*gradients, atol=1e-6)
    assert gradients[0].abs().max() > 1e-3


@pytest.mark.parametrize(
    "options", [{}, {"batch_dice": True}, {"gamma": 2.0}, {"dice": False}, {"gamma": None}]
)
@pytest.mark.parametrize("region", range(3))
def test_the_axiom_holds_for_every_region(region: int, options: dict[str, Any]) -> None:
    """A region is a problem of two leaves, out and in: `check_axiom` looks at it with the others
    held fixed.
    """
    binary = LabelSets.from_superset_map(2, {2: [0, 1]})
    loss = made(**options)
    inside, known = loss.sides
    column = torch.where(known[:, region], inside[:, region].long(), 2)
    some_set = torch.tensor([int((column == side).nonzero()[0]) for side in range(3)])

    def of_two_leaves(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        channels = torch.zeros(len(logits), 3, *logits.shape[2:], dtype=logits.dtype)
        channels[:, region] = logits[:, 1] - logits[:, 0]
        return loss(channels, some_set[target])

    assert check_axiom(of_two_leaves, binary)
    spoiled = made(**options)
    spoiled.sides = spoiled.sides._replace(known=torch.ones_like(known))
    loss = spoiled
    assert not check_axiom(of_two_leaves, binary)


def test_gradients() -> None:
    logits, target = problem(7)
    for options in ({}, {"batch_dice": True}, {"gamma": 2.0}):
        loss = made(**options)
        assert torch.autograd.gradcheck(lambda x, loss=loss: loss(x, target), logits)


@pytest.mark.parametrize("options", [{}, {"batch_dice": True}, {"gamma": 0.5}])
def test_a_patch_that_says_nothing(options: dict[str, Any]) -> None:
    logits = (60 * torch.randn(2, 3, 8, 8)).half().requires_grad_()
    loss = made(**options)(logits, torch.full((2, 1, 8, 8), EVERY))
    loss.backward()
    assert torch.isfinite(loss)
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0


def test_half_precision_does_not_overflow_and_far_logits_have_gradient() -> None:
    logits = torch.full((1, 3, 64, 64, 64), 60.0, dtype=torch.float16, requires_grad=True)
    loss = made()(logits, torch.zeros(1, 1, 64, 64, 64, dtype=torch.int16))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(61, rel=1e-3)
    assert logits.grad is not None
    assert logits.grad.min() > 0


def test_like_the_loss_for_leaves() -> None:
    loss = RegionLoss(LeafDiceFocalLoss(SETS, gamma=3, batch_dice=True, weight_ce=0.5), REGIONS)
    assert (loss.dice, loss.gamma, loss.batch_dice, loss.weight_dice, loss.weight_ce) == (
        True,
        3,
        True,
        1,
        0.5,
    )
    assert RegionLoss(LeafDiceLoss(SETS), REGIONS).gamma is None
    assert not RegionLoss(MarginalCrossEntropyLoss(SETS), REGIONS).dice
    logits, target = problem(7)
    both = [
        RegionLoss(cls(SETS), REGIONS)(logits, target)
        for cls in (LeafDiceCELoss, MarginalDiceCELoss)
    ]
    assert both[0] == both[1]
    with refusal(LabelSetError, "regions", "nnUNetTrainerLabelSet"):
        RegionLoss(SoftTargetDiceLoss(SETS), REGIONS)


def test_wrong_shapes_and_values() -> None:
    loss = made()
    with refusal(LabelSetError, "`logits`", "(B, 3, *S)", "(1, 4, 2, 2)"):
        loss(torch.zeros(1, 4, 2, 2), torch.zeros(1, 1, 2, 2, dtype=torch.long))
    with refusal(LabelSetError, "0..6"):
        loss(torch.zeros(1, 3, 2, 2), torch.full((1, 1, 2, 2), 7))


def one_rank(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    logits, target = problem(7)
    mine = logits[rank : rank + 1].detach().requires_grad_()
    loss = made(gamma=None, batch_dice=True, ddp=True)(mine, target[rank : rank + 1])
    loss.backward()
    whole = made(gamma=None, batch_dice=True)(logits, target)
    whole.backward()
    assert torch.allclose(loss, whole)
    assert mine.grad is not None
    assert logits.grad is not None
    # every rank has the loss of the whole batch, and DDP averages over ranks: as nnU-Net's own
    # batch Dice
    assert torch.allclose(mine.grad, logits.grad[rank : rank + 1] * 2)
    dist.destroy_process_group()


def test_batch_dice_over_two_processes(tmp_path: Any) -> None:
    multiprocessing.spawn(one_rank, (str(tmp_path / "store"),), 2)
