"""Two processes, as nnU-Net starts them for two GPUs, but with gloo on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed as dist

from nnunet_labelset.trainers.leaf_dice import nnUNetTrainerLeafDice
from tests.helpers import tiny

SCORES = ("dice_per_class_or_region", "mean_fg_dice", "val_losses")
# tp, fp, fn of three leaves, and the loss, for every step of each rank: the second leaf is seen on rank 1 alone
STEPS = (
    [([4, 0, 0], [2, 0, 0], [0, 0, 0], 0.2), ([4, 0, 0], [0, 0, 0], [2, 0, 0], 0.4)],
    [([1, 3, 0], [5, 1, 0], [0, 1, 0], 0.9)],
)


def rank_main(rank: int, root: str, folder: str) -> None:
    """The end of an epoch; then rank 1 meets a mistake that rank 0, which waits for it, does not see."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    trainer = tiny.make(tiny.NNUNet(Path(root)), nnUNetTrainerLeafDice)
    trainer.device = torch.device("cpu")  # nnU-Net takes CUDA for granted
    trainer.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # carries the counts of earlier epochs
    keys = ("tp_hard", "fp_hard", "fn_hard", "loss")
    trainer.on_validation_epoch_end([dict(zip(keys, map(np.array, step), strict=True)) for step in STEPS[rank]])
    scores = [np.array(trainer.logger.get_value(key, step=0)).tolist() for key in SCORES]
    Path(folder, f"rank_{rank}.json").write_text(json.dumps(scores))
    value = 77 if rank == 1 else 0
    trainer._encoded({"target": torch.full((1, 1, 4, 4, 4), value, dtype=torch.int16), "keys": ["full_1"]})
    dist.barrier()


def test_two_ranks(in_process: tiny.NNUNet, tmp_path: Path) -> None:
    """The pseudo-Dice counts what all ranks saw, and the message of a rank that fails is seen."""
    script = (
        "from torch import multiprocessing; from tests.training.test_distributed import rank_main\n"
        f"multiprocessing.spawn(rank_main, ({str(in_process.root)!r}, {str(tmp_path)!r}), 2)"
    )
    environment = {**in_process.environment, "nnUNet_results": str(tmp_path)}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, timeout=1800
    )
    for rank in (0, 1):
        assert (tmp_path / f"rank_{rank}.json").is_file(), done.stderr
        scores, mean, loss = json.loads((tmp_path / f"rank_{rank}.json").read_text())
        assert scores[:2] == pytest.approx([18 / (18 + 7 + 2), 6 / (6 + 1 + 1)])
        assert np.isnan(scores[2])  # nobody saw it
        assert mean == pytest.approx((18 / 27 + 6 / 8) / 2)
        assert loss == pytest.approx((0.2 + 0.4 + 0.9) / 3)
    assert done.returncode != 0
    assert "nnunet_labelset: error (rank 1): " in done.stderr
    assert "`target` has values outside 0..4" in done.stderr
