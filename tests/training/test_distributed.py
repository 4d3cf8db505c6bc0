"""Two processes, as nnU-Net starts them for two GPUs, but with gloo on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import distributed as dist

from nnunet_labelset.trainers.leaf_dice import nnUNetTrainerLeafDice
from tests.helpers import tiny


def fails_on_rank_1(rank: int, root: str, store: str) -> None:
    """Rank 1 meets a mistake that rank 0 does not see; rank 0 waits for it, as a training would."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    nnunet = tiny.NNUNet(Path(root))
    trainer = tiny.make(nnunet, nnUNetTrainerLeafDice)
    trainer.device = torch.device("cpu")  # nnU-Net takes CUDA for granted
    value = 77 if rank == 1 else 0
    trainer._encoded({"target": torch.full((1, 1, 4, 4, 4), value, dtype=torch.int16), "keys": ["full_1"]})
    dist.barrier()


def test_the_message_of_another_rank_is_seen(in_process: tiny.NNUNet, tmp_path: Path) -> None:
    environment = {**in_process.environment, "nnUNet_results": str(tmp_path)}
    script = (
        "from torch import multiprocessing; from tests.training.test_distributed import fails_on_rank_1\n"
        f"multiprocessing.spawn(fails_on_rank_1, ({str(in_process.root)!r}, {str(tmp_path / 'store')!r}), 2)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode != 0
    assert "nnunet_labelset: error (rank 1): " in done.stderr
    assert "`target` has values outside 0..4" in done.stderr
