"""Two processes of a distributed training against one process with the joined batch."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nnunet_labelset.losses.label_sets import LabelSets
from tests.helpers.problems import DICE, SUMS

BATCHES = (slice(0, 1), slice(1, 3))  # unequal on purpose
SECONDS = 600
LOSSES = {
    f"{kind}, alpha {alpha}": (loss, alpha)
    for kind, loss in {**DICE, **SUMS}.items()
    for alpha in (1, 2)
}


def make_batch() -> tuple[LabelSets, torch.Tensor, torch.Tensor]:
    """Three samples of three protocols: full annotation, one union, another union and ignored
    voxels.
    """
    label_sets = LabelSets.from_superset_map(4, {4: [2, 3], 5: [0, 1], 6: [0, 1, 2, 3]})
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, 2, 5, 4, 3, generator=generator, dtype=torch.float64)
    values = torch.randint(4, (3, 1, 5, 4, 3), generator=generator)
    values[1][values[1] >= 2] = 4
    values[2][values[2] <= 1] = 5
    values[2, 0, 0] = 6
    return label_sets, images, label_sets.encode(values)


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv3d(2, 4, 1).double()


def rank_main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group(
        "gloo", f"file://{folder}/rendezvous", limit, world_size=len(BATCHES), rank=rank
    )
    try:
        label_sets, images, target = make_batch()
        network = DistributedDataParallel(make_network())
        results = {}
        for name, (loss, alpha) in LOSSES.items():
            network.zero_grad()
            module = loss(label_sets, alpha, batch_dice=True, ddp=True)
            value = module(network(images[BATCHES[rank]]), target[BATCHES[rank]])
            value.backward()
            results[name] = (value.detach(), [p.grad.clone() for p in network.parameters()])
        torch.save(results, Path(folder) / f"rank{rank}.pt")
    finally:
        dist.destroy_process_group()


def run_ranks(folder: Path) -> list[dict]:
    """Results of both ranks; processes that hang or outlive a failure are ended."""
    context = mp.spawn(rank_main, (str(folder),), nprocs=len(BATCHES), join=False)
    deadline = time.monotonic() + SECONDS
    try:
        while not context.join(timeout=1):  # raises what a rank raised
            assert time.monotonic() < deadline, "the ranks hang"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
            process.join()
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(len(BATCHES))]


@pytest.mark.slow
def test_two_ranks_equal_the_joined_batch(tmp_path):
    """nnU-Net's convention: Dice over all ranks, cross entropy averaged per rank, then over the
    ranks.
    """
    ranks = run_ranks(tmp_path)
    label_sets, images, target = make_batch()
    network = make_network()
    logits = network(images)
    for name, (loss, alpha) in LOSSES.items():
        dice_only = loss(label_sets, alpha, batch_dice=True)
        is_sum = dice_only.gamma is not None
        dice_only.weight_ce = 0.0
        dice = dice_only(logits, target)
        entropies = [torch.zeros(())] * len(BATCHES)
        if is_sum:
            entropies = [
                loss(label_sets, alpha, weight_dice=0.0)(logits[batch], target[batch])
                for batch in BATCHES
            ]
        total = dice + sum(entropies) / len(BATCHES)
        expected = torch.autograd.grad(total, list(network.parameters()), retain_graph=True)
        for results, entropy in zip(ranks, entropies, strict=True):
            value, gradients = results[name]
            torch.testing.assert_close(
                value, (dice + entropy).detach(), msg=lambda text, name=name: f"{name}: {text}"
            )
            torch.testing.assert_close(
                gradients, list(expected), msg=lambda text, name=name: f"{name}: {text}"
            )


def test_ranks_matter():
    """A rank of its own has another loss, or the test above would prove nothing."""
    label_sets, images, target = make_batch()
    logits = make_network()(images).detach()
    for loss, alpha in LOSSES.values():
        module = loss(label_sets, alpha, batch_dice=True)
        module.weight_ce = 0.0
        joined = module(logits, target)
        for batch in BATCHES:
            assert not torch.isclose(module(logits[batch], target[batch]), joined)
