"""Losses of the literature that are the marginal cross entropy under another name (docs/losses.md)."""

from __future__ import annotations

import pytest
import torch

from nnunet_labelset.losses import MarginalCrossEntropyLoss
from nnunet_labelset.losses.label_sets import LabelSets

# Four leaves. The data set annotates 2 only: an unlabelled voxel is background, 1 or 3.
LABEL_SETS = LabelSets.from_superset_map(4, {4: [0, 1, 3]})
UNLABELLED = 4


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 5, 6, generator=generator, dtype=torch.float64)
    is_drawn = torch.rand(2, 1, 5, 6, generator=generator) < 0.3
    return logits, torch.where(is_drawn, 2, UNLABELLED)


def test_target_adaptive_cross_entropy(batch) -> None:
    """Merge the unannotated labels into background, then take the cross entropy."""
    logits, target = batch
    p = logits.softmax(1)
    merged = torch.stack([p[:, 0] + p[:, 1] + p[:, 3], p[:, 2]], 1)
    expected = torch.nn.functional.nll_loss(merged.log(), (target[:, 0] == 2).long())
    torch.testing.assert_close(MarginalCrossEntropyLoss(LABEL_SETS)(logits, target), expected)


def test_exclusion_cross_entropy(batch) -> None:
    """Punish the probability of what the annotation excludes."""
    logits, target = batch
    p = logits.softmax(1)
    excluded = torch.where(target[:, 0] == 2, p[:, 0] + p[:, 1] + p[:, 3], p[:, 2])
    expected = -(1 - excluded).log().mean()
    torch.testing.assert_close(MarginalCrossEntropyLoss(LABEL_SETS)(logits, target), expected)
