"""Two processes, as nnU-Net starts them for two GPUs, but with gloo on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed as dist

from nnunet_labelset.trainers.leaf_dice import nnUNetTrainerLeafDice
from tests.helpers import tiny


def run_ranks(function: str, nnunet: tiny.NNUNet, folder: Path) -> subprocess.CompletedProcess[str]:
    """Two processes that call a function of this file with their rank, nnU-Net's folder and `folder`."""
    script = (
        f"from torch import multiprocessing; from tests.training.test_distributed import {function}\n"
        f"multiprocessing.spawn({function}, ({str(nnunet.root)!r}, {str(folder)!r}), 2)"
    )
    environment = {**nnunet.environment, "nnUNet_results": str(folder)}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)


def make_trainer(rank: int, root: str, folder: str) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    trainer = tiny.make(tiny.NNUNet(Path(root)), nnUNetTrainerLeafDice)
    trainer.device = torch.device("cpu")  # nnU-Net takes CUDA for granted
    return trainer


def fails_on_rank_1(rank: int, root: str, folder: str) -> None:
    """Rank 1 meets a mistake that rank 0 does not see; rank 0 waits for it, as a training would."""
    trainer = make_trainer(rank, root, folder)
    value = 77 if rank == 1 else 0
    trainer._encoded({"target": torch.full((1, 1, 4, 4, 4), value, dtype=torch.int16), "keys": ["full_1"]})
    dist.barrier()


def test_the_message_of_another_rank_is_seen(in_process: tiny.NNUNet, tmp_path: Path) -> None:
    done = run_ranks("fails_on_rank_1", in_process, tmp_path)
    assert done.returncode != 0
    assert "nnunet_labelset: error (rank 1): " in done.stderr
    assert "`target` has values outside 0..4" in done.stderr


# tp, fp, fn of three leaves, and the loss, for every step of each rank: the second leaf is seen on rank 1 alone
STEPS = (
    [([4, 0, 0], [2, 0, 0], [0, 0, 0], 0.2), ([4, 0, 0], [0, 0, 0], [2, 0, 0], 0.4)],
    [([1, 3, 0], [5, 1, 0], [0, 1, 0], 0.9)],
)


def scores_an_epoch(rank: int, root: str, folder: str) -> None:
    trainer = make_trainer(rank, root, folder)
    trainer.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # carries the counts of earlier epochs
    keys = ("tp_hard", "fp_hard", "fn_hard", "loss")
    steps = [dict(zip(keys, map(np.array, step), strict=True)) for step in STEPS[rank]]
    trainer.on_validation_epoch_end(steps)
    logged = [
        trainer.logger.get_value(key, step=0) for key in ("dice_per_class_or_region", "mean_fg_dice", "val_losses")
    ]
    Path(folder, f"rank_{rank}.json").write_text(json.dumps([list(map(float, logged[0])), *map(float, logged[1:])]))
    dist.barrier()


def test_the_pseudo_dice_counts_what_all_ranks_saw(in_process: tiny.NNUNet, tmp_path: Path) -> None:
    done = run_ranks("scores_an_epoch", in_process, tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        scores, mean, loss = json.loads((tmp_path / f"rank_{rank}.json").read_text())
        assert scores[:2] == pytest.approx([18 / (18 + 7 + 2), 6 / (6 + 1 + 1)])
        assert np.isnan(scores[2])  # nobody saw it
        assert mean == pytest.approx((18 / 27 + 6 / 8) / 2)
        assert loss == pytest.approx((0.2 + 0.4 + 0.9) / 3)
