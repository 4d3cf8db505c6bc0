"""Two processes, as nnU-Net starts them for two GPUs, but with gloo on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from nnunet_labelset.trainers.leaf_dice import nnUNetTrainerLeafDice
from tests.helpers import tiny


def fails_on_rank_1(rank: int, root: str, moment: str) -> None:
    """Rank 1 meets a mistake that rank 0 does not see; rank 0 waits for it, as a training would."""
    dist.init_process_group("gloo", init_method=f"file://{root}/{moment}", rank=rank, world_size=2)
    nnunet = tiny.NNUNet(Path(root))
    dataset = tiny.dataset_json(nnunet)
    if rank == 1 and moment == "start":
        dataset["label_sets"]["cases"]["full_0"] = "ful"
    trainer = tiny.make(nnunet, nnUNetTrainerLeafDice, dataset)
    trainer.device = torch.device("cpu")  # nnU-Net takes CUDA for granted
    value = 77 if rank == 1 else 0
    trainer._encoded({"target": torch.full((1, 1, 4, 4, 4), value, dtype=torch.int16), "keys": ["full_1"]})
    dist.barrier()


@pytest.mark.parametrize(
    ("moment", "message"),
    [("start", "case 'full_0': unknown protocol 'ful'"), ("batch", "`target` has values outside 0..4")],
)
def test_the_message_of_another_rank_is_seen(
    in_process: tiny.NNUNet, tmp_path: Path, moment: str, message: str
) -> None:
    environment = {**in_process.environment, "nnUNet_results": str(tmp_path)}
    script = (
        "from torch import multiprocessing; from tests.training.test_distributed import fails_on_rank_1\n"
        f"multiprocessing.spawn(fails_on_rank_1, ({str(in_process.root)!r}, {moment!r}), 2)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode != 0
    assert "nnunet_labelset: error (rank 1): " in done.stderr
    assert message in done.stderr
