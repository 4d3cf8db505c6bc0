"""Every loss against the naive one: value and gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nnunet_labelset import losses
from tests.helpers import naive_losses
from tests.helpers.problems import DICE, ENTROPY, OVERLAPPING, SUMS, make_problem, problems

dice_options = st.fixed_dictionaries(
    {
        "alpha": st.sampled_from([1, 2]),
        "batch_dice": st.booleans(),
        "include_background": st.booleans(),
        "ignore_full_set": st.booleans(),
    }
)


def assert_same(module, naive, problem):
    """Equal value and gradient, in float64 and, to its precision, in float32."""
    value = module(problem.logits, problem.target)
    expected = naive(problem.logits.softmax(1))
    torch.testing.assert_close(value, expected)
    gradient, expected_gradient = (
        torch.autograd.grad(x, problem.logits)[0] for x in (value, expected)
    )
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-9, rtol=1e-6)
    single = problem.logits.detach().float().requires_grad_()
    value = module(single, problem.target.to(torch.int16))
    torch.testing.assert_close(value, expected.float())
    torch.testing.assert_close(
        torch.autograd.grad(value, single)[0], gradient.float(), atol=1e-6, rtol=1e-4
    )


@pytest.mark.parametrize("kind", DICE)
@settings(max_examples=20, derandomize=True)
@given(problem=problems(), options=dice_options)
def test_dice(kind, problem, options):
    sets = problem.sets
    assert_same(
        DICE[kind](problem.label_sets, **options),
        lambda p: naive_losses.dice_loss(kind, p, sets, **options) + 0 * p.sum(),
        problem,
    )


@pytest.mark.parametrize("kind", ENTROPY)
@settings(max_examples=15, derandomize=True)
@given(problem=problems(), gamma=st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0]))
def test_entropy(kind, problem, gamma):
    sets = problem.sets
    if kind == "ce":
        module = ENTROPY[kind](problem.label_sets)
        assert_same(module, lambda p: naive_losses.cross_entropy(p, sets), problem)
        return
    for ignore_full_set in (False, True):
        module = ENTROPY[kind](problem.label_sets, gamma, ignore_full_set=ignore_full_set)
        assert_same(
            module,
            lambda p, ignored=ignore_full_set: naive_losses.focal_loss(p, sets, gamma, ignored),
            problem,
        )


@pytest.mark.parametrize("kind", SUMS)
@settings(max_examples=10, derandomize=True)
@given(
    problem=problems(),
    options=dice_options,
    gamma=st.sampled_from([1.0, 2.0]),
    weight=st.sampled_from([0.0, 0.3]),
)
def test_sums(kind, problem, options, gamma, weight):
    dice, entropy = kind
    sets = problem.sets
    focal = {"gamma": gamma} if entropy == "focal" else {}
    module = SUMS[kind](problem.label_sets, **options, **focal, weight_dice=1.7, weight_ce=weight)

    def naive(p):
        summed = 1.7 * naive_losses.dice_loss(dice, p, sets, **options)
        if not focal:
            return summed + weight * naive_losses.cross_entropy(p, sets) + 0 * p.sum()
        entropy = naive_losses.focal_loss(p, sets, gamma, options["ignore_full_set"])
        return summed + weight * entropy + 0 * p.sum()

    assert_same(module, naive, problem)


@pytest.mark.parametrize("kind", SUMS)
def test_sum_without_dice_is_its_entropy(kind):
    problem = make_problem(*OVERLAPPING)
    module = SUMS[kind](problem.label_sets, weight_dice=0.0)
    torch.testing.assert_close(
        module(problem.logits, problem.target),
        ENTROPY[kind[1]](problem.label_sets)(problem.logits, problem.target),
    )


@settings(max_examples=20, derandomize=True)
@given(problems())
def test_phi_and_psi(problem):
    p = problem.logits.detach().softmax(1)
    phi = losses.marginalize(p, problem.target, problem.label_sets)
    psi = losses.soft_target(problem.target, problem.label_sets, torch.float64)
    for sample, sets in enumerate(problem.sets):
        torch.testing.assert_close(
            phi[sample].flatten(1), naive_losses.phi(p[sample].flatten(1), sets)
        )
        torch.testing.assert_close(psi[sample].flatten(1), naive_losses.psi(sets, p.shape[1]))


@pytest.mark.parametrize("kind", DICE)
@pytest.mark.parametrize("alpha", [1, 2])
def test_ignore_full_set_leaves_the_voxels_out(kind, alpha):
    """Equal to cutting the unannotated part away."""
    problem = make_problem(*OVERLAPPING, batch=2, shape=(4, 12))
    full = problem.label_sets.membership.all(1).nonzero().item()
    target = torch.where(problem.target == full, 0, problem.target)
    padded = torch.cat([target, torch.full_like(target, full)], 3)
    logits = torch.cat([problem.logits, torch.randn_like(problem.logits)], 3)
    module = DICE[kind](problem.label_sets, alpha, ignore_full_set=True)
    torch.testing.assert_close(module(logits, padded), module(problem.logits, target))
