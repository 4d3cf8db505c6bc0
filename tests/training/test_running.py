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

from nnunet_labelset.losses import LeafDiceLoss
from nnunet_labelset.losses.dice import DiceTerms
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.training.running import RunningLeafDiceCELoss, RunningLeafDiceLoss

SECONDS = 600
LABEL_SETS = LabelSets.from_superset_map(3, {3: [1, 2], 4: [0, 1, 2]})


def example(seed: int, values: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 4, 4, 4, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(values, (2, 1, 4, 4, 4), generator=generator)


def test_the_first_step_is_batch_dice() -> None:
    logits, target = example(0)
    running, plain = (
        RunningLeafDiceLoss(LABEL_SETS, tail=0),
        LeafDiceLoss(LABEL_SETS, batch_dice=True),
    )
    gradients = [torch.autograd.grad(loss(logits, target), logits)[0] for loss in (running, plain)]
    torch.testing.assert_close(*gradients)


def test_the_value_is_the_dice_of_the_last_steps() -> None:
    loss = RunningLeafDiceLoss(LABEL_SETS, tail=0)
    terms = torch.zeros(3, 3, dtype=torch.float64)
    for step in range(4):
        logits, target = example(step)
        p, singles = logits.detach().softmax(1), [target[:, 0] == leaf for leaf in range(3)]
        larger = [target[:, 0] == 3, target[:, 0] == 4]
        now = torch.zeros_like(terms)
        for leaf in range(3):
            known = ~larger[1] & ~(larger[0] if leaf else torch.zeros_like(larger[0]))
            now[:, leaf] = torch.stack(
                [
                    p[:, leaf][singles[leaf]].sum(),
                    singles[leaf].sum(),
                    (p[:, leaf] ** 2)[known].sum(),
                ]
            )
        terms = now + loss.decay * terms
        expected = 1 - (2 * terms[0] / (terms[1] + terms[2] + 1e-5)).mean()
        assert loss(logits, target).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_patch_without_a_leaf_has_a_gradient_against_it() -> None:
    """Leaf 2 is predicted in a batch that annotates other leaves; it was annotated in the step
    before.
    """
    loss = RunningLeafDiceLoss(LABEL_SETS)
    loss(*example(2, values=3))
    loss._scale = (4, 4, 4)
    terms = [
        torch.tensor([[7.0, 7.0, number]], dtype=torch.float64, requires_grad=True)
        for number in (0.0, 0.0, 5.0)
    ]
    for combine, sign in ((LeafDiceLoss(LABEL_SETS).combine, 0), (loss.combine, 1)):
        intersection, reference, prediction = combine(DiceTerms(*terms))
        value = 1 - (2 * intersection / (reference + prediction + 1e-5)).mean()
        gradient = torch.autograd.grad(value, terms[2])[0]
        assert torch.sign(gradient[0, 2]) == sign


def test_the_gradient_is_as_large_as_if_all_steps_had_one() -> None:
    """The same batch again and again: value and gradient are those of the batch alone."""
    loss, plain = RunningLeafDiceLoss(LABEL_SETS, tail=0), LeafDiceLoss(LABEL_SETS, batch_dice=True)
    logits, target = example(3)
    for _ in range(20):
        value = loss(logits, target)
    torch.testing.assert_close(value, plain(logits, target), rtol=1e-5, atol=1e-6)
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
        LeafDiceLoss(LABEL_SETS, batch_dice=True)(logits, target).item()
    )
    assert all(torch.equal(before[scale], state) for scale, state in loss.running.items())


def test_a_leaf_that_a_batch_lacks_has_no_logarithm() -> None:
    """A perfect prediction of a batch with one of three leaves: two have a Dice of 0, as in every
    Dice of a batch.
    """
    target = torch.zeros(2, 1, 4, 4, 4, dtype=torch.long)
    logits = torch.nn.functional.one_hot(target[:, 0], 3).movedim(-1, 1).mul(50.0).requires_grad_()
    with torch.no_grad():
        assert RunningLeafDiceLoss(LABEL_SETS)(logits, target).item() == pytest.approx(
            2 / 3, abs=1e-4
        )
    assert (
        2 / 3 <= RunningLeafDiceLoss(LABEL_SETS)(logits, target).item() < 0.7
    )  # in training, the tail of leaf 0


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
    pair = example(5)
    assert (
        loss(*pair).item() == again(*pair).item() != RunningLeafDiceLoss(LABEL_SETS)(*pair).item()
    )


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
        logits += 6 * torch.nn.functional.one_hot(target[:, 0], 3).movedim(
            -1, 1
        )  # nearly all right
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
