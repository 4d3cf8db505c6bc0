"""The Triton kernels in Triton's interpreter against the CPU; run by test_loss_triton.py, in a
process of its own.
"""

from __future__ import annotations

import copy
import logging
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from nnunet_labelset import losses
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses import engine
from nnunet_labelset.losses.engine import first_use, fused, kernels
from nnunet_labelset.losses.label_sets import LabelSets
from tests.helpers.errors import refusal
from tests.helpers.problems import (
    ALL,
    BREAKS_THE_AXIOM,
    OVERLAPPING,
    make_problem,
    problems,
)


def with_gradient(module, logits, target):
    logits = logits.detach().requires_grad_()
    value = module(logits, target)
    return value.detach(), torch.autograd.grad(value, logits)[0]


@pytest.fixture
def on_the_kernels(monkeypatch):
    """Take the road of CUDA, in small blocks; `can_run` may still say no, by its other
    conditions.
    """
    return take_the_kernels(monkeypatch)


def take_the_kernels(monkeypatch):
    used = []
    launch = fused._launch
    monkeypatch.setattr(engine, "_has_kernels", lambda logits: True)
    monkeypatch.setattr(fused, "NUMBERS_OF_A_BLOCK", 64)
    monkeypatch.setattr(fused, "PROGRAMS", 3)
    monkeypatch.setattr(fused, "_broken", False)
    monkeypatch.setattr(engine, "check_kernels", lambda *_: None)  # it has tests of its own
    monkeypatch.setattr(
        fused, "_launch", lambda *args, **kwargs: (used.append(args[0]), launch(*args, **kwargs))
    )
    return used


def compare(module, logits, target, used, tolerance=1e-5):
    """Value and gradient on the kernels against float64 on the CPU."""
    used.clear()
    before = copy.deepcopy(module)  # running Dice remembers
    value, gradient = with_gradient(module, logits, target)
    assert {"sums_kernel", "gradient_kernel"} <= set(used)
    assert gradient.dtype == logits.dtype
    # float64 is not for the kernels
    expected, exact = with_gradient(copy.deepcopy(before), logits.double(), target)
    torch.testing.assert_close(value.double(), expected, rtol=max(tolerance, 1e-5), atol=1e-7)
    torch.testing.assert_close(
        gradient.double(), exact, rtol=0, atol=tolerance * float(exact.abs().max()) + 1e-9
    )


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("batch_dice", [False, True])
def test_equals_the_cpu(loss, batch_dice, on_the_kernels):
    problem = make_problem(*OVERLAPPING, shape=(7, 11))
    options = {"batch_dice": batch_dice, "include_background": batch_dice, "alpha": 1 + batch_dice}
    compare(
        loss(problem.label_sets, **options),
        problem.logits.float(),
        problem.target.to(torch.int16),
        on_the_kernels,
    )
    assert on_the_kernels == ["sums_kernel", "finish_kernel", "gradient_kernel"]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(problem=problems(), loss=st.sampled_from(ALL), ignore_full_set=st.booleans())
def test_any_label_sets(problem, loss, ignore_full_set):
    with pytest.MonkeyPatch.context() as patch:
        used = take_the_kernels(patch)
        module = loss(problem.label_sets)
        module.ignore_full_set = ignore_full_set
        compare(module, problem.logits.float(), problem.target, used)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", [losses.LeafDiceCELoss, losses.MarginalDiceFocalLoss])
def test_half_precision(dtype, loss, on_the_kernels):
    problem = make_problem(*OVERLAPPING, shape=(5, 9))
    compare(
        loss(problem.label_sets), problem.logits.to(dtype), problem.target, on_the_kernels, 1e-2
    )


LAYOUTS = {
    "channels last": lambda x: x.to(
        memory_format=torch.channels_last_3d if x.ndim == 5 else torch.channels_last
    ),
    "swapped axes": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "a slice": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "every other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 6), (3, 4, 5)])
def test_layouts_without_a_copy(layout, shape, on_the_kernels, monkeypatch):
    problem = make_problem(*OVERLAPPING, shape=shape)
    logits = LAYOUTS[layout](problem.logits.detach().float())
    assert not logits.is_contiguous()
    copied, contiguous = [], torch.Tensor.contiguous
    monkeypatch.setattr(
        torch.Tensor, "contiguous", lambda self: (copied.append(self.ndim), contiguous(self))[1]
    )
    with_gradient(losses.MarginalDiceCELoss(problem.label_sets), logits, problem.target)
    assert max(copied, default=0) <= 2  # of small tables only
    monkeypatch.undo()
    used = take_the_kernels(monkeypatch)
    compare(losses.MarginalDiceCELoss(problem.label_sets), logits, problem.target, used)
    compare(
        losses.LeafDiceLoss(problem.label_sets),
        problem.logits.float(),
        LAYOUTS[layout](problem.target),
        used,
    )


@pytest.mark.parametrize("leaves", [2, 33, 117, 200])
def test_any_number_of_leaves(leaves, on_the_kernels):
    problem = make_problem(
        leaves, [[0, 1], list(range(leaves)), list(range(1, leaves, 2))], shape=(40,)
    )
    compare(
        losses.LeafDiceCELoss(problem.label_sets),
        problem.logits.float(),
        problem.target,
        on_the_kernels,
    )


@pytest.mark.parametrize("gap", [60.0, 300.0, 1e4])
def test_any_logit_gap(gap, on_the_kernels):
    label_sets = LabelSets.from_superset_map(3, {3: [0, 1]})
    logits = torch.tensor(
        [[[0.0, -gap, -gap, gap], [1.0, -gap - 1, 1 - gap, gap], [2.0, 0, 0, -gap]]]
    )
    target = torch.full((1, 1, 4), 3)
    for loss in (
        losses.MarginalCrossEntropyLoss,
        losses.MarginalFocalLoss,
        losses.MarginalDiceCELoss,
    ):
        compare(loss(label_sets), logits, target, on_the_kernels)


@pytest.mark.parametrize("loss", [loss for loss in ALL if loss not in BREAKS_THE_AXIOM])
def test_only_unannotated_voxels(loss, on_the_kernels):
    problem = make_problem(*OVERLAPPING, shape=(30,))
    full = int(problem.label_sets.membership.all(1).nonzero())
    value, gradient = with_gradient(
        loss(problem.label_sets), problem.logits.float(), torch.full_like(problem.target, full)
    )
    assert value.isfinite()
    assert not gradient.any()


def test_terms_that_a_subclass_combines(on_the_kernels):
    """The end of the loss is then plain PyTorch, the sums and the gradient are not."""

    class Smoothed(losses.LeafDiceCELoss):
        def dice_of(self, terms):
            return losses.DiceTerms(*(term + 1 for term in terms)).dice()

    problem = make_problem(*OVERLAPPING, shape=(30,))
    compare(Smoothed(problem.label_sets), problem.logits.float(), problem.target, on_the_kernels)
    assert "finish_kernel" not in on_the_kernels


def test_bitwise_the_same_again(on_the_kernels):
    problem = make_problem(*OVERLAPPING, shape=(700,))
    module = losses.MarginalDiceCELoss(problem.label_sets)
    first, second = (
        with_gradient(module, problem.logits.float(), problem.target) for _ in range(2)
    )
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64])
@pytest.mark.parametrize("bad", [-1, 8, 300])
@pytest.mark.parametrize("loss", [losses.LeafDiceLoss, losses.MarginalCrossEntropyLoss])
def test_one_bad_voxel_of_many(loss, bad, dtype, on_the_kernels):
    problem = make_problem(*OVERLAPPING, shape=(700,))
    problem.target[1, 0, 501] = bad
    with refusal(LabelSetError, "`target`", "0..7"):
        loss(problem.label_sets)(problem.logits.float(), problem.target.to(dtype))


@pytest.mark.parametrize("kernel", ["sums_kernel", "finish_kernel", "gradient_kernel"])
@pytest.mark.parametrize("combined", [False, True])
def test_plain_pytorch_takes_over(kernel, combined, on_the_kernels, monkeypatch, caplog):
    """One line in the log, the same result, and no second try."""

    class Loss(losses.LeafDiceCELoss):
        pass

    if combined:
        Loss.dice_of = lambda self, terms: terms.dice()
    problem = make_problem(*OVERLAPPING, shape=(30,))
    module = Loss(problem.label_sets)
    expected = with_gradient(module, problem.logits, problem.target)
    monkeypatch.setattr(kernels, kernel, None)
    with caplog.at_level(logging.WARNING, "nnunet_labelset"):
        for _ in range(2):
            value, gradient = with_gradient(module, problem.logits.float(), problem.target)
            torch.testing.assert_close(value.double(), expected[0])
            torch.testing.assert_close(gradient.double(), expected[1], rtol=1e-4, atol=1e-7)
    if combined and kernel == "finish_kernel":
        assert not caplog.records
    else:
        assert len(caplog.records) == 1
        assert "plain PyTorch" in caplog.text
        assert "NNUNET_LABELSET_TRITON=0" in caplog.text


def test_switched_off_or_not_for_it(on_the_kernels, monkeypatch):
    problem = make_problem(*OVERLAPPING)
    tables = losses.LeafDiceLoss(problem.label_sets)._tables_for(problem.logits.float())
    assert fused.can_run(problem.logits.float(), tables)
    assert not fused.can_run(problem.logits.double(), tables)
    monkeypatch.setenv("NNUNET_LABELSET_TRITON", "0")
    assert not fused.can_run(problem.logits.float(), tables)
    with_gradient(losses.LeafDiceLoss(problem.label_sets), problem.logits.float(), problem.target)
    assert not on_the_kernels


def test_nothing_waits_and_few_launches(on_the_kernels, monkeypatch):
    """Four: sums, their addition, the end, the gradient. (All but the kernels are counted.)"""

    class Launches(TorchDispatchMode):
        names: ClassVar[list[str]] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function._schema.name.removeprefix("aten::")
            if not function.is_view and name not in (
                "detach",
                "empty",
                "empty_like",
                "new_empty",
                "empty_strided",
            ):
                self.names.append(name)
            return function(*args, **(kwargs or {}))

    problem = make_problem(*OVERLAPPING, shape=(30,))
    for loss in ALL:
        module = loss(problem.label_sets)
        module.checks_target = False
        logits = problem.logits.detach().float().requires_grad_()
        module(logits, problem.target)
        one = torch.ones(())
        with monkeypatch.context() as patch:
            patch.setattr(fused, "_launch", lambda *args, **kwargs: None)
            Launches.names.clear()
            with Launches():
                torch.autograd.grad(module(logits, problem.target), logits, one)
        assert Launches.names == ["sum"]


@pytest.fixture
def with_check(on_the_kernels, monkeypatch):
    """The kernels with the check at first use."""
    monkeypatch.setattr(engine, "check_kernels", first_use.check_kernels)
    monkeypatch.setattr(first_use, "_checked", set())
    return on_the_kernels


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_right_kernels_pass_the_check_once(loss, dtype, with_check, caplog):
    problem = make_problem(*OVERLAPPING, shape=(5, 9))
    module = loss(problem.label_sets, batch_dice=True)
    logits = problem.logits.to(dtype)
    with_gradient(module, logits, problem.target)
    first = len(with_check)
    assert first == 6  # three for the check, three for the loss
    with_gradient(module, logits, problem.target)
    assert len(with_check) == first + 3
    assert not caplog.records


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("kernel", ["sums_kernel", "finish_kernel", "gradient_kernel"])
def test_a_kernel_with_wrong_numbers_is_switched_off(
    kernel, running, with_check, monkeypatch, caplog
):
    """As if a compiler had gone wrong: the kernel runs, and one of its results is doubled."""
    problem = make_problem(*OVERLAPPING, shape=(5, 9))
    loss = losses.RunningLeafDiceCELoss if running else losses.LeafDiceCELoss
    module = loss(problem.label_sets)
    expected = with_gradient(copy.deepcopy(module), problem.logits, problem.target)
    launch = fused._launch
    result = {"sums_kernel": 5, "finish_kernel": 2, "gradient_kernel": 7}[kernel]

    def wrong(name, grid, *arguments, **options):
        launch(name, grid, *arguments, **options)
        if name == kernel:
            arguments[result].mul_(2)

    monkeypatch.setattr(fused, "_launch", wrong)
    value, gradient = with_gradient(module, problem.logits.float(), problem.target)
    torch.testing.assert_close(value.double(), expected[0])
    torch.testing.assert_close(gradient.double(), expected[1], rtol=1e-4, atol=1e-6)
    assert len(caplog.records) == 1
    assert "NNUNET_LABELSET_TRITON=0" in caplog.text
    used = len(with_check)
    with_gradient(module, problem.logits.float(), problem.target)
    assert len(with_check) == used


def test_the_check_can_be_forced(with_check, monkeypatch):
    problem = make_problem(*OVERLAPPING, shape=(5, 9))
    module = losses.LeafDiceCELoss(problem.label_sets)
    monkeypatch.setenv("NNUNET_LABELSET_TRITON", "check")
    for step in (1, 2):
        with_gradient(module, problem.logits.float(), problem.target)
        assert len(with_check) == 6 * step


def test_an_overflow_is_no_difference(with_check, caplog):
    problem = make_problem(*OVERLAPPING, shape=(5, 9))
    module = losses.LeafDiceCELoss(problem.label_sets)
    logits = problem.logits.float()
    with_gradient(module, torch.full_like(logits, torch.inf), problem.target)
    assert not caplog.records
    with_gradient(module, logits, problem.target)
    assert with_check.count("gradient_kernel") == 3  # the check comes with the next batch


@pytest.mark.parametrize("tail", [0.0, 0.1])
def test_running_dice_over_many_batches(tail, on_the_kernels):
    """Leaf 2 comes and goes; value, gradient and state follow those of the CPU."""
    problem = make_problem(*OVERLAPPING, shape=(5, 9))
    module = losses.RunningLeafDiceCELoss(problem.label_sets, tail=tail, include_background=False)
    exact = copy.deepcopy(module)
    for step in range(80):
        module.ce_share = exact.ce_share = step / 80
        target = problem.target if step < 3 else problem.target.where(problem.target != 2, 0)
        logits = problem.logits * (1 + step / 10)
        value, gradient = with_gradient(module, logits.float(), target)
        expected, expected_gradient = with_gradient(exact, logits, target)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-7)
    (state,), (exact_state,) = module.running.values(), exact.running.values()
    torch.testing.assert_close(state.double(), exact_state, rtol=1e-4, atol=1e-6)
    assert not state[:, 2].any()
    with_gradient(module, torch.full_like(problem.logits.float(), torch.inf), problem.target)
    assert torch.equal(*module.running.values(), state)
