"""Numbers that are hard for floating point: large logits, huge or empty volumes, certain and
unannotated voxels.
"""

from __future__ import annotations

import pytest
import torch

from nnunet_labelset import losses
from nnunet_labelset.losses.engine import chunks, make_tables, voxel_sums
from nnunet_labelset.losses.label_sets import LabelSets
from tests.helpers.problems import (
    ALL,
    BREAKS_THE_AXIOM,
    DICE,
    OVERLAPPING,
    RUNNING,
    SUMS,
    make_problem,
    with_gradient,
)


@pytest.mark.parametrize("loss", [loss for loss in ALL if loss not in RUNNING])
@pytest.mark.parametrize("options", [{"alpha": 1}, {"alpha": 2, "batch_dice": True}])
def test_gradcheck(loss, options):
    problem = make_problem(*OVERLAPPING, shape=(2, 2))
    module = loss(problem.label_sets, **options)
    assert torch.autograd.gradcheck(lambda x: module(x, problem.target), problem.logits)


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [60, 200, 1e4])
def test_large_logits(loss, dtype, size):
    problem = make_problem(*OVERLAPPING, shape=(6, 6, 6))
    logits = (size * problem.logits.detach().sign()).to(dtype)
    value, gradient = with_gradient(loss(problem.label_sets), logits, problem.target)
    assert value.isfinite()
    assert value.dtype == torch.float32
    assert gradient.isfinite().all()
    assert gradient.dtype == dtype


@pytest.mark.parametrize("gap", [60.0, 200.0, 1e4])
@pytest.mark.parametrize("loss", [losses.MarginalCrossEntropyLoss, losses.MarginalFocalLoss])
def test_gradient_survives_a_logit_gap(gap, loss):
    """All certainty on the wrong leaf: the slope is 1, where an epsilon in the logarithm would make
    it vanish.
    """
    label_sets = LabelSets.from_superset_map(3, {3: [0, 1]})
    logits = torch.tensor([-gap, -gap, 0.0]).view(1, 3, 1)
    value, gradient = with_gradient(loss(label_sets), logits, torch.tensor([[[3]]]))
    assert float(value) == pytest.approx(gap, rel=0.02)
    torch.testing.assert_close(gradient.flatten(), torch.tensor([-0.5, -0.5, 1.0]))


def test_second_best_leaf_of_a_set_gets_its_share_at_a_large_gap():
    label_sets = LabelSets.from_superset_map(3, {3: [0, 1]})
    logits = torch.tensor([-150.0, -151.0, 0.0]).view(1, 3, 1)
    _, gradient = with_gradient(
        losses.MarginalCrossEntropyLoss(label_sets), logits, torch.tensor([[[3]]])
    )
    share = torch.softmax(torch.tensor([0.0, -1.0]), 0)
    torch.testing.assert_close(gradient.flatten(), torch.tensor([-share[0], -share[1], 1.0]))


@pytest.mark.parametrize("loss", [loss for loss in ALL if loss not in BREAKS_THE_AXIOM])
@pytest.mark.parametrize("alpha", [1, 2])
@pytest.mark.parametrize("batch_dice", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_only_unannotated_voxels(loss, alpha, batch_dice, scale):
    """Finite, and exactly zero gradient: 2000 rounding errors of the softmax are not allowed to
    train the network.
    """
    problem = make_problem(*OVERLAPPING, shape=(20, 100))
    full = int(problem.label_sets.membership.all(1).nonzero())
    module = loss(problem.label_sets, alpha=alpha, batch_dice=batch_dice)
    logits = scale * problem.logits.detach().float()
    value, gradient = with_gradient(module, logits, torch.full_like(problem.target, full))
    assert value.isfinite()
    assert not gradient.any()
    if loss is losses.MarginalCrossEntropyLoss:
        assert float(value) == 0


def test_unannotated_voxels_have_no_gradient_beside_annotated_ones():
    problem = make_problem(*OVERLAPPING, shape=(20, 20))
    full = int(problem.label_sets.membership.all(1).nonzero())
    ignored = (problem.target == full).expand_as(problem.logits)
    for loss in ALL:
        if loss in BREAKS_THE_AXIOM:
            continue
        _, gradient = with_gradient(
            loss(problem.label_sets), problem.logits.detach().float(), problem.target
        )
        assert not gradient[ignored].any(), loss
        assert gradient[~ignored].any()


@pytest.mark.parametrize("kind", DICE)
def test_ignore_full_set_of_only_unannotated_voxels(kind):
    problem = make_problem(*OVERLAPPING)
    full = int(problem.label_sets.membership.all(1).nonzero())
    module = DICE[kind](problem.label_sets, ignore_full_set=True)
    value, gradient = with_gradient(module, problem.logits, torch.full_like(problem.target, full))
    assert float(value) == 1
    assert not gradient.any()


DICE_OF_LEAVES = (losses.LeafDiceLoss, losses.MeanDiceLoss, losses.RunningLeafDiceLoss)


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("index", [0, 3, 5])
def test_patch_of_one_value_and_absent_leaves(loss, index):
    problem = make_problem(*OVERLAPPING)
    value, gradient = with_gradient(
        loss(problem.label_sets), problem.logits, torch.full_like(problem.target, index)
    )
    assert value.isfinite()
    assert gradient.isfinite().all()
    # Without a single annotated voxel Leaf-Dice and mean-class Dice have nothing to say.
    assert gradient.any() == (index < 4 or loss not in DICE_OF_LEAVES)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 1.5, 2.0])
def test_focal_loss_where_rounding_leaves_more_than_all_probability(gamma):
    """Probabilities in float32 may add up to 1.0000001, and a fractional power of -1e-7 is not a
    number.
    """
    label_sets = make_problem(*OVERLAPPING).label_sets
    logits = torch.randn(1, 4, 30000, generator=torch.Generator().manual_seed(0))
    assert (logits.softmax(1).sum(1) > 1).any()
    for index in (7, 5, 0):
        target = torch.full((1, 1, 30000), index)
        value, gradient = with_gradient(losses.MarginalFocalLoss(label_sets, gamma), logits, target)
        assert value >= 0
        assert gradient.isfinite().all()


@pytest.mark.parametrize("constant", [None, 0.3, 2.3])
def test_sums_over_200_cubed_voxels(constant):
    """Float32 sums of 8 million probabilities, also of equal ones, which would all be rounded in
    the same direction.
    """
    label_sets = LabelSets.from_superset_map(2, {2: [0, 1]})
    gap = (
        torch.randn(200**3, generator=torch.Generator().manual_seed(0))
        if constant is None
        else torch.tensor(constant)
    )
    logits = torch.zeros(1, 2, 200**3)
    logits[0, 1] = gap
    target = torch.zeros(1, 1, 200**3, dtype=torch.int64)
    target[..., 1::2] = 1
    tables = make_tables(label_sets.membership, losses.leaf_dice, gamma=0.0).to(
        logits.device, logits.dtype
    )
    sums = voxel_sums(logits, target, tables)
    p = torch.sigmoid(gap.double()).expand(200**3)
    first, second = 1 - p[::2], p[1::2]
    exact = [
        ((1 - p) ** 2).sum(),
        (p**2).sum(),
        first.sum(),
        second.sum(),
        first.log().sum() + second.log().sum(),
    ]
    for value, expected in zip(
        torch.cat([*sums[:2], sums.negative_entropy], 1)[0], exact, strict=True
    ):
        assert float(value) == pytest.approx(float(expected), rel=1e-5)
    assert sums.reference[0].tolist() == [4e6, 4e6]
    assert sums.voxels[0].tolist() == [8e6]


@pytest.mark.parametrize("loss", [losses.LeafDiceCELoss, losses.MarginalDiceCELoss])
def test_float16_sums_do_not_overflow(loss):
    """70 000 voxels of one leaf are more than float16 can count."""
    label_sets = make_problem(*OVERLAPPING).label_sets
    logits = torch.randn(1, 4, 70000, generator=torch.Generator().manual_seed(0))
    target = torch.zeros(1, 1, 70000, dtype=torch.int64)
    value, gradient = with_gradient(loss(label_sets), logits.half(), target)
    expected, exact = with_gradient(loss(label_sets), logits.half().double(), target)
    torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("kind", SUMS)
def test_chunks_do_not_matter(kind, monkeypatch):
    """Volumes larger than a chunk, with a remainder, equal the same in float64 and one chunk."""
    problem = make_problem(*OVERLAPPING, shape=(3 * 2048 + 77,))
    module = SUMS[kind](problem.label_sets)
    value, gradient = with_gradient(module, problem.logits, problem.target)
    monkeypatch.setattr(chunks, "CHUNK", 1)
    chunked, chunked_gradient = with_gradient(module, problem.logits, problem.target)
    torch.testing.assert_close(chunked, value)
    torch.testing.assert_close(chunked_gradient, gradient)
