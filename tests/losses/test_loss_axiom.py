"""The axiom of label-set losses (eq. 2, equivalently eq. 3 of the paper) and the checker that looks
for violations.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nnunet_labelset import losses
from nnunet_labelset.losses import check_axiom
from nnunet_labelset.losses.label_sets import LabelSets
from tests.helpers import naive_losses
from tests.helpers.problems import (
    ALL,
    BREAKS_THE_AXIOM,
    DICE,
    OVERLAPPING,
    Problem,
    make_problem,
    problems,
)

LABEL_SET_LOSSES = [loss for loss in ALL if loss not in BREAKS_THE_AXIOM]


def test_no_loss_is_left_out():
    """What `tests/helpers/problems.py` lists is tested here and in the other files of this
    folder.
    """
    public = [getattr(losses, name) for name in losses.__all__]
    modules = {
        loss for loss in public if isinstance(loss, type) and issubclass(loss, losses.LabelSetLoss)
    }
    assert modules - {losses.LabelSetLoss, losses.RunningDice} == set(ALL)


@pytest.mark.parametrize("loss", LABEL_SET_LOSSES)
@pytest.mark.parametrize("alpha", [1, 2])
@pytest.mark.parametrize("batch_dice", [False, True])
@pytest.mark.parametrize("shape", [(5, 6), pytest.param((3, 4, 3), marks=pytest.mark.slow)])
def test_holds_for_overlapping_label_sets(loss, alpha, batch_dice, shape):
    label_sets = make_problem(*OVERLAPPING).label_sets
    result = check_axiom(
        loss(label_sets, alpha=alpha, batch_dice=batch_dice),
        label_sets,
        shape=shape,
    )
    assert result, str(result)
    assert "holds" in str(result)


@settings(max_examples=25, derandomize=True)
@given(problems(), st.sampled_from([1, 2]), st.booleans(), st.booleans())
def test_loss_sees_only_phi(problem, alpha, batch_dice, ignore_full_set):
    """Eq. 3, without `check_axiom` and with a Phi of its own: the loss of p is the loss of Phi(p;
    g).
    """
    p = problem.logits.detach().softmax(1)
    flat = [
        naive_losses.phi(one, sets) for one, sets in zip(p.flatten(2), problem.sets, strict=True)
    ]
    q = torch.stack(flat).view_as(p)
    for loss in LABEL_SET_LOSSES:
        chosen = {"alpha": alpha, "batch_dice": batch_dice, "ignore_full_set": ignore_full_set}
        module = loss(problem.label_sets, **chosen)
        torch.testing.assert_close(module(p.log(), problem.target), module(q.log(), problem.target))


def swap_in_sample(problem: Problem, sample: int, first: int, second: int) -> torch.Tensor:
    """Logits with two leaves exchanged in one sample."""
    logits = problem.logits.detach().clone()
    logits[sample, [first, second]] = logits[sample, [second, first]]
    return logits


@pytest.mark.parametrize("loss", LABEL_SET_LOSSES)
@pytest.mark.parametrize("alpha", [1, 2])
def test_batch_dice_with_mixed_protocols(loss, alpha):
    """Sample 0 annotates leaves 2 and 3, sample 1 their union: what is predicted there for 2 or 3
    does not count.
    """
    problem = make_problem(4, [[2, 3]], shape=(6, 6))
    problem.values[0] %= 4
    problem.values[1][problem.values[1] >= 2] = 4
    target = problem.label_sets.encode(problem.values)
    module = loss(problem.label_sets, alpha=alpha, batch_dice=True)
    union = problem.values[1:] == 4
    swapped = torch.where(union, swap_in_sample(problem, 1, 2, 3)[1:], problem.logits[1:])
    logits = torch.cat([problem.logits[:1], swapped])
    assert not torch.equal(logits, problem.logits)
    torch.testing.assert_close(module(logits, target), module(problem.logits, target))
    # The other way round it must matter: in sample 0 both leaves are annotated.
    assert not torch.isclose(
        module(swap_in_sample(problem, 0, 2, 3), target), module(problem.logits, target)
    )


def eq4_to_the_letter(label_sets: LabelSets, batch: bool = False):
    """Eq. 4 with the sum of p**2 over all voxels: a label-set loss only for one larger label-set
    per sample.
    """

    def loss(logits, target):
        p = logits.softmax(1).flatten(2)
        hot = (target.flatten(1)[:, None] == torch.arange(label_sets.num_leaves)[:, None]).double()
        axes = (0, 2) if batch else 2
        return 1 - (2 * (hot * p).sum(axes) / (hot.sum(axes) + (p**2).sum(axes) + 1e-5)).mean()

    return loss


def plus_a_leak(label_sets: LabelSets, sample: int, row: int, leaf: int):
    """Marginal cross entropy plus a little of one leaf, in one sample, in the voxels of one
    label-set.
    """

    def loss(logits, target):
        leak = logits.softmax(1)[sample, leaf][target[sample, 0] == row].sum()
        return losses.MarginalCrossEntropyLoss(label_sets)(logits, target) + 1e-4 * leak

    return loss


BROKEN = {
    "soft-target Dice": losses.SoftTargetDiceLoss,
    "soft-target batch Dice, alpha 1": lambda sets: losses.SoftTargetDiceLoss(
        sets, 1, batch_dice=True
    ),
    "eq. 4 with overlapping label-sets": eq4_to_the_letter,
    "leaks in the second sample": lambda sets: plus_a_leak(sets, 1, 5, 2),
    "leaks the background": lambda sets: plus_a_leak(sets, 0, 4, 0),
    "leaks where everything is ignored": lambda sets: plus_a_leak(sets, 0, 7, 3),
    "NaN": lambda sets: lambda logits, target: logits.sum() * torch.nan,
}


@pytest.mark.parametrize("name", BROKEN)
def test_counter_example(name):
    label_sets = make_problem(*OVERLAPPING).label_sets
    loss = BROKEN[name](label_sets)
    result = check_axiom(loss, label_sets)
    assert not result
    assert "broken" in str(result)
    p, q = result.probabilities
    sets = [
        [frozenset(label_sets.membership[k].nonzero().flatten().tolist()) for k in one.flatten()]
        for one in result.target
    ]
    for sample in range(len(p)):  # equal by the axiom ...
        a, b = (naive_losses.phi(x[sample].flatten(1), sets[sample]) for x in (p, q))
        torch.testing.assert_close(a, b)
    if name != "NaN":  # ... and not for the loss
        assert abs(float(loss(p.log(), result.target) - loss(q.log(), result.target))) > 1e-9
        assert result.losses == (
            float(loss(p.log(), result.target)),
            float(loss(q.log(), result.target)),
        )


def test_eq4_to_the_letter_is_accepted_where_the_paper_defines_it():
    """One larger label-set, and its leaves annotated nowhere."""
    label_sets = LabelSets.from_superset_map(4, {4: [2, 3]})

    def loss(logits, target):
        target = torch.where((target == 2) | (target == 3), 4, target)
        return eq4_to_the_letter(label_sets)(logits, target)

    def leaf_dice(logits, target):
        target = torch.where((target == 2) | (target == 3), 4, target)
        return losses.LeafDiceLoss(label_sets)(logits, target)

    # `check_axiom` shares the mass of the set that the target names: leaf 2 or 3 alone stays, so
    # both see the same.
    assert check_axiom(loss, label_sets)
    assert check_axiom(leaf_dice, label_sets)
    problem = make_problem(4, [[2, 3]])
    torch.testing.assert_close(
        leaf_dice(problem.logits, problem.target), loss(problem.logits, problem.target)
    )


def test_checker_takes_losses_of_probabilities_and_any_converted_loss():
    label_sets = make_problem(*OVERLAPPING).label_sets

    def squared_error(p, q):
        return ((p - q) ** 2).sum()

    assert check_axiom(
        losses.to_label_set_loss(squared_error, label_sets), label_sets, from_logits=False
    )

    def unconverted(p, target):
        return squared_error(p, losses.soft_target(target, label_sets, p.dtype))

    assert not check_axiom(unconverted, label_sets, from_logits=False)


@pytest.mark.parametrize("kind", DICE)
def test_annotated_voxels_are_not_ignored(kind):
    """A loss that is constant would satisfy every axiom."""
    problem = make_problem(*OVERLAPPING)
    module = DICE[kind](problem.label_sets)
    assert not torch.isclose(
        module(problem.logits, problem.target), module(-problem.logits, problem.target)
    )
