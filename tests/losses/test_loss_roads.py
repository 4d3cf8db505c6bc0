"""What only devices do, tried on the CPU: the exact road within a label-set, and the product for adding in place."""

from __future__ import annotations

import pytest
import torch

from nnunet_labelset.losses import confusion
from nnunet_labelset.losses.label_sets import LabelSets
from tests.helpers.problems import ALL, OVERLAPPING, make_problem


def with_gradient(module, logits, target):
    logits = logits.detach().clone().requires_grad_()
    value = module(logits, target)
    return value.detach(), torch.autograd.grad(value, logits)[0]


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Take the roads of a device: no mass is safe, no adding in place, other chunks."""
    monkeypatch.setattr(confusion, "SAFE_MASS", float("inf"))
    monkeypatch.setattr(confusion, "_sum_by_set", confusion._sum_by_product)
    monkeypatch.setattr(confusion, "CPU_CHUNK", confusion.DEVICE_CHUNK)


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
    value, gradient = with_gradient(loss(problem.label_sets), problem.logits.to(dtype), problem.target)
    expected, expected_gradient = EXPECTED[loss]
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2}[dtype]
    torch.testing.assert_close(value.double(), expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=10 * tolerance, atol=1e-3 * tolerance)


@pytest.mark.parametrize("loss", ALL)
def test_exact_road_with_only_unannotated_voxels(loss, problem, as_on_a_device):
    full = int(problem.label_sets.membership.all(1).nonzero())
    value, gradient = with_gradient(
        loss(problem.label_sets), 50 * problem.logits.float(), torch.full_like(problem.target, full)
    )
    assert value.isfinite()
    assert gradient.isfinite().all()
    if "SoftTarget" not in loss.__name__:
        assert not gradient.any()


def test_within_set_is_exact_at_any_gap(as_on_a_device):
    """Both answers of `_within_set` against float64, where nothing underflows."""
    label_sets = LabelSets.from_superset_map(3, {3: [0, 1]})
    inside = label_sets.membership.T.float()
    x = torch.tensor([[0.0, -60, -300], [1.0, -61, -299], [2.0, 0, 0]])
    k = torch.tensor([3, 3, 3])
    log_s, q, total = confusion._within_set(x, x.softmax(0), inside, k)
    exact = x.double()
    torch.testing.assert_close(log_s.double(), exact[:2].logsumexp(0) - exact.logsumexp(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close((q / total)[:2].double(), exact[:2].softmax(0), rtol=1e-5, atol=1e-6)
    assert not q[2].any()


def test_cpu_takes_the_exact_road_when_it_must():
    """One voxel of the chunk with a mass below SAFE_MASS."""
    label_sets = LabelSets.from_superset_map(3, {3: [0, 1]})
    x = torch.tensor([[0.0, -300], [1.0, -299], [2.0, 0]])
    log_s, q, total = confusion._within_set(x, x.softmax(0), label_sets.membership.T.float(), torch.tensor([3, 3]))
    assert float(log_s[1]) == pytest.approx(-299 + 0.3132617, rel=1e-6)
    assert (q / total)[:2, 1].sum() == 1


@pytest.mark.parametrize("voxels", [1, 2047, 2048, 2049, 5000])
@pytest.mark.parametrize("rows", [1, 4])
def test_sum_by_set(voxels, rows):
    generator = torch.Generator().manual_seed(voxels)
    values = torch.rand(rows, voxels, generator=generator)
    k = torch.randint(6, (voxels,), generator=generator)
    expected = torch.stack([values[:, k == one].double().sum(1) for one in range(7)]).float()
    torch.testing.assert_close(confusion._sum_by_set(values, k, 7), expected)
    torch.testing.assert_close(confusion._sum_by_product(values, k, 7), expected)


def test_device_sums_can_be_differentiated_through_every_output(as_on_a_device):
    """All sums at once, as no loss asks for them."""
    problem = make_problem(*OVERLAPPING, shape=(3,), batch=1)

    def sums(x):
        out = confusion.soft_confusion(
            x, problem.target, problem.label_sets.membership, second=True, mass=True, gamma=1.5
        )
        return out.first, out.second, out.mass, out.cross_entropy

    assert torch.autograd.gradcheck(sums, problem.logits)
