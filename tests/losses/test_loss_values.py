"""Hand-computed values, and equalities with the losses of the paper, PyTorch, nnU-Net and MONAI."""

from __future__ import annotations

import math

import pytest
import torch
from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss, SoftDiceLoss
from nnunetv2.training.loss.robust_ce_loss import RobustCrossEntropyLoss
from nnunetv2.utilities.helpers import softmax_helper_dim1
from torch.nn.functional import cross_entropy

from nnunet_labelset import losses
from nnunet_labelset.losses.label_sets import LabelSets
from tests.helpers.problems import DICE, OVERLAPPING, make_problem

E = 1e-5  # epsilon in the denominator

# The paper's example: three leaves, one voxel that is the first or the second.
THREE = LabelSets.from_superset_map(3, {3: [0, 1], 4: [0, 1, 2]})
EQUIVALENT = [(0.4, 0.4, 0.2), (0.8, 0.0, 0.2), (0.0, 0.8, 0.2)]


def volume(*voxels: tuple[float, ...]) -> torch.Tensor:
    """Logits (1, C, n) of the given probabilities."""
    return torch.tensor(voxels, dtype=torch.float64).T.log()[None]


def target(*indices: int) -> torch.Tensor:
    return torch.tensor(indices).view(1, 1, -1)


@pytest.mark.parametrize("p", EQUIVALENT)
def test_paper_example_has_one_value_for_equivalent_predictions(p):
    phi = losses.marginalize(torch.tensor(p).view(1, 3, 1), target(3), THREE)
    torch.testing.assert_close(phi.flatten(), torch.tensor([0.4, 0.4, 0.2]))
    assert losses.soft_target(target(3), THREE).flatten().tolist() == [1 / 2, 1 / 2, 0]
    cases = [
        (losses.LeafDiceLoss(THREE), 1),
        (losses.MarginalDiceLoss(THREE, alpha=1), 1 - 2 / 3 * (2 * 1 / 5) / (1 / 2 + 2 / 5 + E)),
        (losses.MarginalDiceLoss(THREE, alpha=2), 1 - 2 / 3 * (2 * 1 / 5) / (1 / 4 + 4 / 25 + E)),
        (losses.MarginalCrossEntropyLoss(THREE), math.log(5 / 4)),
        (losses.MarginalFocalLoss(THREE, gamma=2), 9 / 25 * math.log(5 / 2)),
        (losses.MarginalDiceCELoss(THREE, 1), 1 - 2 / 3 * (2 / 5) / (9 / 10 + E) + math.log(5 / 4)),
    ]
    for loss, expected in cases:
        assert float(loss(volume(p), target(3))) == pytest.approx(expected, rel=1e-9), loss


def test_soft_target_dice_tells_them_apart():
    loss = losses.SoftTargetDiceLoss(THREE)
    even, first, _ = (float(loss(volume(p), target(3))) for p in EQUIVALENT)
    assert even == pytest.approx(1 - 2 / 3 * (2 / 5) / (1 / 4 + 4 / 25 + E), rel=1e-9)
    assert first == pytest.approx(1 - 1 / 3 * (4 / 5) / (1 / 4 + 16 / 25 + E), rel=1e-9)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"alpha": 1}, 1 - 1 / 3 * (14 / 10) / (1 + 9 / 10 + E)),
        ({"alpha": 2}, 1 - 1 / 3 * (14 / 10) / (1 + 49 / 100 + 4 / 100 + E)),
        ({"alpha": 2, "include_background": False}, 1 - 1 / 2 * (14 / 10) / (1 + 53 / 100 + E)),
    ],
)
def test_leaf_dice_by_hand(options, expected):
    """Voxel 1 is {l1, l2}, voxel 2 is {l3}: l3 is punished in voxel 1, l1 and l2 nowhere."""
    logits = volume((0.4, 0.4, 0.2), (0.1, 0.2, 0.7))
    assert float(losses.LeafDiceLoss(THREE, **options)(logits, target(3, 2))) == pytest.approx(
        expected, rel=1e-9
    )


def test_batch_dice_by_hand():
    """Two samples of one voxel, {l1} and {l1, l2}: the second has no say about l1 or l2 but about
    l3.
    """
    logits = torch.cat([volume((1 / 2, 1 / 4, 1 / 4)), volume((1 / 8, 5 / 8, 1 / 4))])
    loss = losses.LeafDiceLoss(THREE, 1, batch_dice=True)
    indices = torch.cat([target(0), target(3)])
    assert float(loss(logits, indices)) == pytest.approx(1 - 1 / 3 * 1 / (1 + 1 / 2 + E), rel=1e-9)
    per_sample = losses.LeafDiceLoss(THREE, 1)
    assert float(per_sample(logits, indices)) == pytest.approx(
        1 - 1 / 6 * 1 / (1 + 1 / 2 + E), rel=1e-9
    )


@pytest.mark.parametrize("alpha", [1, 2])
@pytest.mark.parametrize("batch_dice", [False, True])
def test_dice_losses_agree_on_full_annotations(alpha, batch_dice):
    problem = make_problem(*OVERLAPPING, shape=(5, 5))
    values = {
        kind: loss(problem.label_sets, alpha, batch_dice=batch_dice)(
            problem.logits, problem.values % 4
        )
        for kind, loss in DICE.items()
    }
    for value in values.values():
        torch.testing.assert_close(value, values["mean"])


@pytest.mark.parametrize(
    "partition", [[[0], [1, 2], [3, 4]], [[0, 1, 2, 3, 4]], [[0, 4], [1, 3], [2]]]
)
def test_marginal_dice_of_a_partition_is_its_sum_over_label_sets(partition):
    """The paper's supplement, where the sum over the leaves becomes one over the label-sets.

    Its second line takes Phi for even within every label-set in every voxel. By its definition Phi
    is so only within the label-set of the voxel, so that the equality needs predictions that are
    even within each part of the partition.
    """
    generator = torch.Generator().manual_seed(3)
    label_sets = LabelSets.from_superset_map(5, dict(enumerate(partition, 5)))
    which = torch.randint(len(partition), (1, 1, 400), generator=generator)
    p = torch.randn(5, 400, generator=generator, dtype=torch.float64).softmax(0)
    for labels in partition:
        p[labels] = p[labels].mean(0)
    total = 0.0
    for j, labels in enumerate(partition):
        s, inside = p[labels].sum(0), which.flatten() == j
        total += float(2 * s[inside].sum() / (inside.sum() + s.sum()))
    loss = losses.MarginalDiceLoss(label_sets, alpha=1)(p.log()[None], label_sets.encode(which + 5))
    assert float(loss) == pytest.approx(1 - total / 5, abs=1e-6)  # the supplement has no epsilon


def soft_dice(alpha, batch, epsilon=E):
    """Mean-class Dice of probabilities and soft targets."""

    def loss(p, q):
        axes = (0, *range(2, p.ndim)) if batch else tuple(range(2, p.ndim))
        return (
            1
            - (
                2 * (p * q).sum(axes) / ((p**alpha).sum(axes) + (q**alpha).sum(axes) + epsilon)
            ).mean()
        )

    return loss


@pytest.mark.parametrize("alpha", [1, 2])
@pytest.mark.parametrize("batch", [False, True])
def test_marginal_and_soft_target_dice_from_plain_dice(alpha, batch):
    problem = make_problem(*OVERLAPPING, shape=(4, 5))
    p, plain = problem.logits.softmax(1), soft_dice(alpha, batch)
    converted = losses.to_label_set_loss(plain, problem.label_sets)(p, problem.target)
    marginal = losses.MarginalDiceLoss(problem.label_sets, alpha, batch_dice=batch)
    torch.testing.assert_close(marginal(problem.logits, problem.target), converted)
    soft = losses.SoftTargetDiceLoss(problem.label_sets, alpha, batch_dice=batch)
    expected = plain(p, losses.soft_target(problem.target, problem.label_sets, p.dtype))
    torch.testing.assert_close(soft(problem.logits, problem.target), expected)


def test_marginal_cross_entropy_from_plain_cross_entropy():
    """The conversion of the cross entropy is -log(s / |g|): the marginal cross entropy plus log
    |g|.
    """
    problem = make_problem(4, [[0, 1], [1, 2, 3]])

    def soft_cross_entropy(p, q):
        return -(q * p.log()).sum(1).mean()

    converted = losses.to_label_set_loss(soft_cross_entropy, problem.label_sets)(
        problem.logits.softmax(1), problem.target
    )
    sizes = problem.label_sets.membership.sum(1)[problem.target].double()
    marginal = losses.MarginalCrossEntropyLoss(problem.label_sets)
    torch.testing.assert_close(
        converted - sizes.log().mean(), marginal(problem.logits, problem.target)
    )


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_marginal_focal_from_plain_focal(gamma):
    """The paper's conversion, to the letter: voxels that may be any leaf count too, as the constant
    that they are.
    """
    problem = make_problem(*OVERLAPPING)

    def soft_focal(p, q):
        return -(q * (1 - p) ** gamma * p.log()).sum(1).mean()

    converted = losses.to_label_set_loss(soft_focal, problem.label_sets)(
        problem.logits.softmax(1), problem.target
    )
    focal = losses.MarginalFocalLoss(problem.label_sets, gamma)
    torch.testing.assert_close(focal(problem.logits, problem.target), converted)
    summed = losses.LeafDiceFocalLoss(problem.label_sets, gamma=gamma, weight_dice=0.0)
    torch.testing.assert_close(summed(problem.logits, problem.target), converted)


def test_monai_dice_converts_to_marginal_dice():
    monai = pytest.importorskip("monai.losses")
    problem = make_problem(*OVERLAPPING, shape=(4, 3, 2))
    for batch in (False, True):
        plain = monai.DiceLoss(squared_pred=True, smooth_nr=0, smooth_dr=E, batch=batch)
        converted = losses.to_label_set_loss(plain, problem.label_sets)(
            problem.logits.softmax(1), problem.target
        )
        marginal = losses.MarginalDiceLoss(problem.label_sets, batch_dice=batch)
        torch.testing.assert_close(marginal(problem.logits, problem.target), converted)


def test_cross_entropy_of_pytorch_on_singletons():
    problem = make_problem(*OVERLAPPING, shape=(4, 4, 4))
    values = problem.values % 4
    loss = losses.MarginalCrossEntropyLoss(problem.label_sets)
    expected = cross_entropy(problem.logits, values[:, 0])
    torch.testing.assert_close(loss(problem.logits, values), expected)
    gradients = [
        torch.autograd.grad(x, problem.logits)[0] for x in (loss(problem.logits, values), expected)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("batch_dice", [False, True])
@pytest.mark.parametrize("do_bg", [False, True])
@pytest.mark.parametrize("dice_class", [MemoryEfficientSoftDiceLoss, SoftDiceLoss])
def test_nnunet_dice_and_cross_entropy_with_ignore_label(batch_dice, do_bg, dice_class):
    """Singletons and full ignore: with alpha 1 and no smoothing nnU-Net's loss is ours, but for
    -Dice and 1 - Dice.
    """
    label_sets = LabelSets.from_superset_map(4, {4: range(4)})
    generator = torch.Generator().manual_seed(1)
    logits = (2 * torch.randn(2, 4, 8, 8, 8, generator=generator)).requires_grad_()
    values = torch.randint(5, (2, 1, 8, 8, 8), generator=generator)
    dice = {"batch_dice": batch_dice, "smooth": 0.0, "do_bg": do_bg, "ddp": False}
    peers = [
        DC_and_CE_loss(dice, {}, ignore_label=4, dice_class=dice_class)(logits, values) + 1,
        RobustCrossEntropyLoss(ignore_index=4)(logits, values),
    ]
    ours = [
        losses.LeafDiceCELoss(label_sets, 1, batch_dice=batch_dice, include_background=do_bg),
        losses.MarginalCrossEntropyLoss(label_sets),
    ]
    for module, expected in zip(ours, peers, strict=True):
        value = module(logits, label_sets.encode(values))
        torch.testing.assert_close(value, expected)
        gradients = [
            torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (value, expected)
        ]
        torch.testing.assert_close(*gradients, atol=1e-8, rtol=1e-4)


def test_nnunet_dice_without_ignore_label():
    problem = make_problem(3, [], shape=(8, 8))
    peer = MemoryEfficientSoftDiceLoss(
        softmax_helper_dim1, batch_dice=True, do_bg=True, smooth=0.0, ddp=False
    )
    for loss in (losses.LeafDiceLoss, losses.MarginalDiceLoss, losses.MeanDiceLoss):
        value = loss(problem.label_sets, 1, batch_dice=True)(problem.logits, problem.target)
        torch.testing.assert_close(value.float(), 1 + peer(problem.logits, problem.target).float())
