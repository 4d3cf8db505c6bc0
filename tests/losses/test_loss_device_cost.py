"""What the losses cost on a GPU, counted without one by `benchmarks/device_cost.py`: the limits
that we promise.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def cost():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
        import device_cost

        yield device_cost


@cache
def nnunet(cost, title):
    workload = cost.WORKLOADS[title]
    return cost.counted(
        cost.nnunet(workload[1]), workload, torch.float32, None, torch.float32
    ).launches


def ours(cost, name, workload, triton, sets=1):
    return cost.counted(
        cost.ours(name, workload[1], sets), workload, torch.float32, triton, torch.int16
    )


TITLES = ("3D, 2x9x128^3, 5 scales", "2D, 49x9x256^2, 6 scales", "2x117x64^3, 5 scales")


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize(
    ("name", "limit"), [("LeafDiceLoss", 1), ("LeafDiceCELoss", 1.2), ("MarginalDiceCELoss", 1.2)]
)
def test_plain_pytorch(cost, title, name, limit):
    found, base = ours(cost, name, cost.WORKLOADS[title], False).launches, nnunet(cost, title)
    assert len(found) <= limit * len(base)
    assert sum(found) <= limit * sum(base)


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize("name", ["LeafDiceLoss", "MarginalDiceCELoss", "MarginalDiceFocalLoss"])
def test_triton(cost, title, name):
    workload = cost.WORKLOADS[title]
    found = ours(cost, name, workload, True)
    assert len(found.launches) <= 12 * workload[3]
    assert sum(found.launches) <= 1.3 * cost.limit(workload, torch.float32, torch.int16)
    logits = sum(
        logits.nbytes for logits, _ in cost.scales_of(workload, "meta", torch.float32, torch.int16)
    )
    assert found.allocated <= 1.1 * logits  # the gradient, and a tenth


@pytest.mark.parametrize("triton", [False, True])
def test_the_number_of_label_sets_does_not_matter(cost, triton):
    workload = (2, 33, (64, 64, 64), 3)
    one, many = (
        ours(cost, "MarginalDiceCELoss", workload, triton, sets).launches for sets in (1, 100)
    )
    assert len(many) == len(one)
    assert sum(many) <= 1.05 * sum(one)
