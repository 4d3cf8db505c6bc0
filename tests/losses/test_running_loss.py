"""Running Dice speaks where a patch lacks a leaf, keeps the axiom, and belongs to training only."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from nnunet_labelset.losses import LeafDiceLoss, RunningLeafDiceCELoss, RunningLeafDiceLoss
from nnunet_labelset.losses.dice import DiceTerms
from nnunet_labelset.losses.label_sets import LabelSets

SECONDS = 600
LABEL_SETS = LabelSets.from_superset_map(3, {3: [1, 2], 4: [0, 1, 2]})


def example(seed: int, values: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 4, 4, 4, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(values, (2, 1, 4, 4, 4), generator=generator)


def slopes_of(loss: RunningLeafDiceLoss, terms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients `(C,)` of the summed Dice by intersection and prediction; terms are
    `(3, C)`, with the prediction last.
    """
    intersection, reference, prediction = (row[None].clone().requires_grad_() for row in terms)
    total = loss.dice_of(DiceTerms(intersection, reference.detach(), prediction)).sum()
    by_intersection, by_prediction = torch.autograd.grad(total, (intersection, prediction))
    return by_intersection[0], by_prediction[0]


def test_the_first_step_is_batch_dice() -> None:
    logits, target = example(0)
    running = RunningLeafDiceLoss(LABEL_SETS, tail=0)
    plain = LeafDiceLoss(LABEL_SETS, batch_dice=True)
    gradients = [torch.autograd.grad(loss(logits, target), logits)[0] for loss in (running, plain)]
    torch.testing.assert_close(*gradients)


def test_the_value_is_that_of_the_batch() -> None:
    """Training and validation log the same function, whatever was seen before."""
    loss = RunningLeafDiceCELoss(LABEL_SETS)
    for step in range(4):
        logits, target = example(step)
        value = loss(logits, target).item()
        with torch.no_grad():
            assert loss(logits, target).item() == value
        expected = RunningLeafDiceCELoss(LABEL_SETS)(logits, target)
        assert value == pytest.approx(expected.item())


def test_a_smaller_share_of_the_cross_entropy_changes_its_gradient_only() -> None:
    logits, target = example(0)
    gradients = []
    for share in (0.0, 0.25, 1.0):
        loss = RunningLeafDiceCELoss(LABEL_SETS)
        loss.ce_share = share
        value = loss(logits, target)
        assert value.item() == pytest.approx(
            RunningLeafDiceCELoss(LABEL_SETS)(logits, target).item()
        )
        gradients.append(torch.autograd.grad(value, logits)[0])
    dice_alone, quarter, full = gradients
    torch.testing.assert_close(quarter, dice_alone + (full - dice_alone) / 4)
    only_dice = RunningLeafDiceLoss(LABEL_SETS)(logits, target)
    torch.testing.assert_close(dice_alone, torch.autograd.grad(only_dice, logits)[0])


@pytest.mark.parametrize("tail", [0.0, 0.1])
def test_the_gradient_is_that_of_the_running_dice(tail: float) -> None:
    """Against autograd through the formula of the docstring, leaf 1 annotated in some steps
    only.
    """
    loss = RunningLeafDiceLoss(LABEL_SETS, tail=tail)
    running = torch.zeros(3, 3, dtype=torch.float64)
    evidence = torch.zeros(3, dtype=torch.float64)
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        terms = 1 + torch.rand(3, 3, generator=generator, dtype=torch.float64)
        if step % 3:
            terms[:2, 1] = 0
        evidence = 0.9 * evidence + (terms[1] > 0)
        running = 0.9 * running + terms
        intersection, prediction = running[0].clone(), running[2].clone()
        intersection.requires_grad_()
        prediction.requires_grad_()
        dice = 2 * intersection / (running[1] + prediction + 1e-5)
        if tail:
            dice = dice + (dice / (dice + tail)).log() / 2
        expected = torch.autograd.grad(dice.sum(), (intersection, prediction))
        for slope, reference in zip(slopes_of(loss, terms), expected, strict=True):
            torch.testing.assert_close(slope, evidence * evidence.clamp(max=1) * reference)


def test_a_patch_without_a_leaf_has_a_gradient_against_it() -> None:
    """Leaf 2 is predicted in a batch that annotates other leaves; it was annotated before."""
    absent = torch.tensor([[7.0, 7.0, 0.0], [7.0, 7.0, 0.0], [9.0, 9.0, 5.0]])
    loss = RunningLeafDiceLoss(LABEL_SETS)
    assert slopes_of(loss, absent)[1][2] == 0
    slopes_of(loss, torch.full((3, 3), 7.0))
    assert slopes_of(loss, absent)[1][2] < 0


def test_the_gradient_does_not_depend_on_how_often_a_leaf_is_annotated() -> None:
    """Leaf 1 in every batch, leaf 2 in every sixth: per annotated batch their slopes are equal."""
    loss = RunningLeafDiceLoss(LABEL_SETS, tail=0)
    for step in range(61):
        terms = torch.full((3, 3), 7.0, dtype=torch.float64)
        if step % 6:
            terms[:, 2] = 0
        by_intersection, by_prediction = slopes_of(loss, terms)
    torch.testing.assert_close(by_intersection[1], by_intersection[2])
    torch.testing.assert_close(by_prediction[1], by_prediction[2])


def test_a_leaf_that_is_no_longer_seen_is_forgotten() -> None:
    """The push against it fades, and its state ends at exactly 0, at any loss scale."""
    loss = RunningLeafDiceLoss(LABEL_SETS)
    absent = torch.tensor([[7.0, 7.0, 0.0], [7.0, 7.0, 0.0], [9.0, 9.0, 1e-6]])
    slopes_of(loss, torch.full((3, 3), 7.0))
    pushes = [-slopes_of(loss, absent)[1][2].item() for _ in range(1000)]
    assert pushes[0] > 0.01
    assert pushes == sorted(pushes, reverse=True)
    assert pushes[50] < 0.1 * pushes[0]
    assert not any(pushes[70:])
    assert not loss.running[()][:, 2].any()


@pytest.mark.parametrize("steps", [0, 1, 60, 790, 2000])
def test_gradients_are_finite_at_every_loss_scale(steps: int) -> None:
    loss = RunningLeafDiceCELoss(LABEL_SETS)
    logits, target = example(1, values=3)
    loss(logits, target)
    for _ in range(steps):
        value = loss(logits, torch.zeros_like(target))
    with torch.no_grad():
        logits[:, 2] -= 80
    for late_target in (target, torch.zeros_like(target)):
        single = logits.detach().float().requires_grad_()
        value = loss(single, late_target) * 2.0**24
        assert value.isfinite()
        assert torch.autograd.grad(value, single)[0].isfinite().all()


def test_the_same_batch_again_and_again_has_the_gradient_of_batch_dice() -> None:
    loss = RunningLeafDiceLoss(LABEL_SETS, tail=0)
    plain = LeafDiceLoss(LABEL_SETS, batch_dice=True)
    logits, target = example(3)
    for _ in range(20):
        loss(logits, target)
    pair = [torch.autograd.grad(one(logits, target), logits)[0] for one in (loss, plain)]
    torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-9)


def test_the_axiom_holds() -> None:
    """Moving mass inside a label-set changes neither the loss nor what is remembered."""
    first, second = RunningLeafDiceCELoss(LABEL_SETS), RunningLeafDiceCELoss(LABEL_SETS)
    for step in range(3):
        logits, target = example(step)
        inside = (target == 3) | (target == 4)
        swapped = torch.where(inside, logits[:, [0, 2, 1]], logits)  # leaves 1 and 2 change places
        assert first(logits, target).item() == pytest.approx(
            second(swapped, target).item(), rel=1e-6
        )


def test_validation_neither_uses_nor_changes_the_state() -> None:
    loss = RunningLeafDiceLoss(LABEL_SETS, tail=0)
    loss(*example(0))
    before = {scale: state.clone() for scale, state in loss.running.items()}
    logits, target = example(1)
    with torch.no_grad():
        value = loss(logits, target)
    assert value.item() == pytest.approx(
        LeafDiceLoss(LABEL_SETS, batch_dice=True)(logits, target).item(), rel=1e-5
    )
    assert all(torch.equal(before[scale], state) for scale, state in loss.running.items())


def test_a_leaf_that_a_batch_lacks_adds_no_constant() -> None:
    target = torch.zeros(2, 1, 4, 4, 4, dtype=torch.long)
    logits = torch.nn.functional.one_hot(target[:, 0], 3).movedim(-1, 1).mul(50.0).requires_grad_()
    assert RunningLeafDiceLoss(LABEL_SETS)(logits, target).item() == pytest.approx(0, abs=1e-4)


def test_a_step_that_overflows_is_not_remembered() -> None:
    """With AMP its update is skipped; the next steps must be as if it had not been."""
    loss, without = RunningLeafDiceCELoss(LABEL_SETS), RunningLeafDiceCELoss(LABEL_SETS)
    for step in range(3):
        logits, target = example(step)
        with torch.no_grad():
            broken = logits.clone()
            broken[0, 1, 0, 0, 0] = torch.inf
        if step != 1:
            assert torch.isfinite(without(logits, target))
        assert not torch.isfinite(loss(broken.requires_grad_(), target))
        if step != 1:
            assert torch.isfinite(loss(logits, target))
    assert loss.running.keys() == without.running.keys()
    assert all(torch.equal(state, without.running[scale]) for scale, state in loss.running.items())


def test_scales_have_a_state_each_and_it_travels() -> None:
    loss, again = RunningLeafDiceLoss(LABEL_SETS), RunningLeafDiceLoss(LABEL_SETS)
    for step in range(2):
        logits, target = example(step)
        loss(logits, target)
        loss(logits[..., :2], target[..., :2])
    assert set(loss.running) == {(4, 4, 4), (4, 4, 2)}
    again.running = dict(loss.running)
    logits, target = example(5)
    gradients = [
        torch.autograd.grad(one(logits, target), logits)[0]
        for one in (loss, again, RunningLeafDiceLoss(LABEL_SETS))
    ]
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])


def test_an_unannotated_batch_is_finite() -> None:
    logits, _ = example(0)
    for loss in (RunningLeafDiceLoss(LABEL_SETS), RunningLeafDiceCELoss(LABEL_SETS)):
        value = loss(logits, torch.full((2, 1, 4, 4, 4), 4))
        assert torch.isfinite(value)
        assert torch.autograd.grad(value, logits)[0].abs().max() == 0


def test_a_leaf_that_is_not_found_keeps_a_gradient() -> None:
    """However small its probabilities, a dead leaf is pulled up about as much; without the tail,
    hardly at all.
    """
    pull = {}
    for tail in (0.0, 0.1):
        for gap in (10.0, 20.0):
            logits, target = example(1, values=3)
            with torch.no_grad():
                logits[:, 2] -= gap
            gradient = torch.autograd.grad(
                RunningLeafDiceLoss(LABEL_SETS, tail=tail)(logits, target), logits
            )[0]
            pull[tail, gap] = -gradient[:, 2].sum().item()
    assert pull[0.0, 20.0] < 1e-3 * pull[0.0, 10.0]
    assert pull[0.1, 20.0] > 0.02 * pull[0.1, 10.0] > 1e-4


def test_a_leaf_that_is_found_hardly_sees_the_tail() -> None:
    """The slope of what is added to a Dice of D is tail / (2 D (D + tail)): 5 % at 0.95."""
    logits, target = example(4, values=3)
    with torch.no_grad():
        # nearly all right
        logits += 6 * torch.nn.functional.one_hot(target[:, 0], 3).movedim(-1, 1)
    gradients = []
    for tail in (0.0, 0.1):
        loss = RunningLeafDiceLoss(LABEL_SETS, tail=tail)
        gradients.append(torch.autograd.grad(loss(logits, target), logits)[0])
    ratio = gradients[1].norm() / gradients[0].norm()
    assert 1.04 < ratio.item() < 1.06


def rank_main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", limit, world_size=2, rank=rank)
    try:
        loss = RunningLeafDiceLoss(LABEL_SETS, ddp=True)
        for step in range(3):
            logits, target = example(step)
            loss(logits[rank : rank + 1], target[rank : rank + 1])
        torch.save(loss.running, Path(folder) / f"rank{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_the_state_is_summed_over_ranks(tmp_path: Path) -> None:
    context = mp.spawn(rank_main, (str(tmp_path),), nprocs=2, join=False)
    deadline = time.monotonic() + SECONDS
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, "the ranks hang"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
            process.join()
    joined = RunningLeafDiceLoss(LABEL_SETS)
    for step in range(3):
        joined(*example(step))
    for rank in range(2):
        found = torch.load(tmp_path / f"rank{rank}.pt")
        torch.testing.assert_close(found[4, 4, 4], joined.running[4, 4, 4])
