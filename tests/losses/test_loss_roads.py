"""The roads of the engine give one answer: chunks on threads, plain PyTorch for devices, with and
without parts.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nnunet_labelset import losses
from nnunet_labelset.losses import engine
from nnunet_labelset.losses.engine import chunks, plain
from nnunet_labelset.losses.label_sets import LabelSets
from tests.helpers.problems import ALL, BREAKS_THE_AXIOM, OVERLAPPING, make_problem, with_gradient


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Take the road of a device, in parts."""
    monkeypatch.setattr(engine, "_on_cpu", lambda logits: False)
    monkeypatch.setattr(plain, "WHOLE", 2000)


EXPECTED: dict[type, tuple] = {}


@pytest.fixture(scope="module")
def problem():
    made = make_problem(*OVERLAPPING, shape=(13, 200))
    for loss in ALL:
        EXPECTED[loss] = with_gradient(loss(made.label_sets), made.logits, made.target)
    return made


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_roads_agree(loss, dtype, problem, as_on_a_device):
    value, gradient = with_gradient(
        loss(problem.label_sets), problem.logits.to(dtype), problem.target
    )
    expected, expected_gradient = EXPECTED[loss]
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2}[dtype]
    torch.testing.assert_close(value.double(), expected, rtol=tolerance, atol=0)
    largest = float(expected_gradient.abs().max())
    torch.testing.assert_close(
        gradient.double(), expected_gradient, rtol=0, atol=tolerance * largest
    )


@pytest.mark.parametrize("loss", [loss for loss in ALL if loss not in BREAKS_THE_AXIOM])
def test_device_road_with_only_unannotated_voxels(loss, problem, as_on_a_device):
    full = int(problem.label_sets.membership.all(1).nonzero())
    value, gradient = with_gradient(
        loss(problem.label_sets), 50 * problem.logits.float(), torch.full_like(problem.target, full)
    )
    assert value.isfinite()
    assert not gradient.any()


@pytest.mark.parametrize("on_a_device", [False, True])
def test_mass_of_a_label_set_is_exact_at_any_gap(on_a_device, request):
    if on_a_device:
        request.getfixturevalue("as_on_a_device")
    label_sets = LabelSets.from_superset_map(3, {3: [0, 1]})
    logits = torch.tensor([[[0.0, -60, -300, 1e4], [1.0, -61, -299, 1e4], [2.0, 0, 0, -1e4]]])
    target = torch.full((1, 1, 4), 3)
    value, gradient = with_gradient(losses.MarginalCrossEntropyLoss(label_sets), logits, target)
    exact, exact_gradient = with_gradient(
        losses.MarginalCrossEntropyLoss(label_sets), logits.double(), target
    )
    torch.testing.assert_close(value.double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=1e-5, atol=1e-7)


class NoWaiting(TorchDispatchMode):
    """Refuse what makes the host wait for a device, or copies between them."""

    WAITS = (
        "_local_scalar_dense",
        "nonzero",
        "unique",
        "bincount",
        "masked_select",
        "equal",
        "is_nonzero",
    )

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.removeprefix("aten::")
        assert not any(name == wait or name.startswith(f"_{wait}") for wait in self.WAITS), (
            f"{name} makes the host wait"
        )
        if "index" in name:
            indices = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
            assert all(index is None or index.dtype != torch.bool for index in indices), (
                "a mask makes the host wait"
            )
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("loss", ALL)
def test_host_does_not_wait_for_a_device(loss, problem, as_on_a_device, monkeypatch):
    # on CUDA, an assertion of the device
    monkeypatch.setattr(engine, "require", lambda condition, message: None)
    module = loss(problem.label_sets, batch_dice=True)
    target = problem.target.to(torch.int16)
    with_gradient(module, problem.logits, target)  # the tables are moved in the first call
    with NoWaiting():
        with_gradient(module, problem.logits, target)
    with pytest.raises(AssertionError, match="makes the host wait"), NoWaiting():
        problem.logits.sum().item()


@pytest.mark.parametrize("loss", ALL)
def test_number_of_threads_does_not_matter(loss, monkeypatch):
    """Bit for bit."""
    monkeypatch.setattr(chunks, "CHUNK", 2048)
    problem = make_problem(*OVERLAPPING, shape=(11, 401))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            module = loss(problem.label_sets)
            results.append(with_gradient(module, problem.logits.float(), problem.target))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for value, gradient in results[1:]:
        assert torch.equal(value, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_which_losses_see_a_label_set_as_a_group():
    """All but those to which the probability of a single leaf of a larger label-set matters."""
    problem = make_problem(*OVERLAPPING)
    for loss in ALL:
        tables = loss(problem.label_sets)._tables_for(problem.logits)
        assert tables.grouped == (loss is not losses.SoftTargetDiceLoss)
    soft_target = losses.LeafDiceCELoss(problem.label_sets)
    # with the entropy, a label-set is what it is
    for dice in (losses.soft_target_dice, losses.mean_dice):
        soft_target.dice = dice
        assert not soft_target._tables_for(problem.logits).grouped


@pytest.mark.parametrize("alpha", [1, 2])
@pytest.mark.parametrize("ignore_full_set", [False, True])
@pytest.mark.parametrize("loss", [loss for loss in ALL if loss is not losses.SoftTargetDiceLoss])
def test_groups_give_what_single_leaves_give(loss, ignore_full_set, alpha, monkeypatch):
    """Random label-sets and float32; some chunks have masses that vanish, and are left to the exact
    mathematics.
    """
    monkeypatch.setattr(chunks, "CHUNK", 2048)
    asked: list[bool] = []
    too_small = chunks._too_small
    monkeypatch.setattr(
        chunks, "_too_small", lambda s, t: (asked.append(too_small(s, t)), asked[-1])[1]
    )
    generator = torch.Generator().manual_seed(3)
    members = torch.rand(20, 6, generator=generator) < 0.4
    supersets = [row.nonzero().flatten().tolist() for row in members if row.any()]
    problem = make_problem(6, [*supersets, list(range(6))], shape=(3, 400))
    module = loss(problem.label_sets, alpha=alpha)
    module.ignore_full_set = ignore_full_set
    logits = problem.logits.detach().float()
    logits[0, :, 0] *= 200
    value, gradient = with_gradient(module, logits, problem.target)
    assert set(asked) == ({True, False} if module.gamma is not None else {False})
    monkeypatch.setattr(chunks, "group_sums", lambda *_: None)
    monkeypatch.setattr(chunks, "group_gradient", lambda *_: False)
    expected, exact = with_gradient(module, logits.double(), problem.target)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        gradient.double(), exact, rtol=0, atol=1e-5 * float(exact.abs().max())
    )


def test_error_in_a_thread_is_an_error_of_the_loss(monkeypatch):
    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(chunks, "CHUNK", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    problem = make_problem(*OVERLAPPING, shape=(3000,))
    module = losses.LeafDiceLoss(problem.label_sets)
    value = module(problem.logits, problem.target)
    monkeypatch.setattr(chunks, "group_gradient", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.autograd.grad(value, problem.logits)
