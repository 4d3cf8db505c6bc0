"""Seconds per training step and peak memory of our trainers against plain `nnUNetTrainer`.

Same data, network, machine and run: every round takes one batch and lets each trainer make a step
with it, in an order that changes from round to round; a ratio is the median over the rounds, with
its 95 % bootstrap interval. A teacher is asked in every step, as in the later part of a training.
Memory is what torch allocates above its level before the step: the events of the profiler on the
CPU, the statistics of the allocator on a GPU.

    python benchmarks/train_step.py --rounds 15 --json step.json
    python benchmarks/train_step.py --cpu-seconds --trainers LabelSet LabelSetTeacher  # busy machine
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from memory import peak_bytes
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

from nnunet_labelset.study.demo import DEMO_DATASET, Demo, Size
from nnunet_labelset.study.phantom.data import write_demo_data

PLAIN = "nnUNetTrainer"
OURS = (
    *("LabelSet", "LabelSetTeacher"),
    *(
        "LeafDice",
        "LeafDiceCE",
        "LeafDiceFocal",
        "MarginalDice",
        "MarginalDiceCE",
        "MarginalDiceFocal",
    ),
    *("MarginalCE", "MarginalFocal", "SoftTargetDice", "FullySupervisedDice"),
)


def make_trainer(name: str, preprocessed: Path, device: str) -> Any:
    plans = json.loads((preprocessed / "nnUNetPlans.json").read_text())
    dataset = json.loads((preprocessed / "dataset.json").read_text())
    cls = recursive_find_trainer_class_by_name(name)
    trainer = cls(
        {**plans, "continue_training": False}, "3d_fullres", 0, dataset, torch.device(device)
    )
    trainer.initialize()
    trainer.network.train()
    trainer.current_epoch = trainer.num_epochs - 1  # a teacher is asked by now
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trainers", nargs="+", default=list(OURS), help="without the prefix nnUNetTrainer"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--patch", type=int, nargs=3, default=[40, 48, 40])
    parser.add_argument("--features", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--cpu-seconds",
        action="store_true",
        help="of the processor, on a machine that has other work; of all threads together",
    )
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    clock = time.process_time if args.cpu_seconds else time.perf_counter

    with tempfile.TemporaryDirectory() as scratch:
        size = Size("small", 1, 1, ("0",), tuple(args.patch), tuple(args.features))
        demo = Demo(Path(scratch), size, full=False, device=args.device, seed=0)
        write_demo_data(demo.folder / "data")
        demo.prepare()
        os.environ.update(demo.commands.environment, nnUNet_n_proc_DA="0")
        preprocessed = demo.folder / "nnUNet_preprocessed" / DEMO_DATASET[1]
        names = [PLAIN, *(f"nnUNetTrainer{name}" for name in args.trainers)]
        trainers = {name: make_trainer(name, preprocessed, args.device) for name in names}
        loader, _ = trainers[PLAIN].get_dataloaders()

        def step(name: str, batch: dict) -> float:
            batch = copy.deepcopy(batch)  # nnU-Net's validation changes targets in place
            begin = clock()
            trainers[name].train_step(batch)  # ends with a copy of the loss to the host
            return clock() - begin

        seconds: dict[str, list[float]] = {name: [] for name in names}
        for round_ in range(-2, args.rounds):  # two rounds to warm up
            batch = next(loader)
            for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
                duration = step(name, batch)
                if round_ >= 0:
                    seconds[name].append(duration)
        batch = next(loader)
        memory = {
            name: peak_bytes(lambda name=name: step(name, batch), args.device == "cuda")
            for name in names
        }

    rows = []
    print(
        f"\n{'trainer':32} {'s/step':>8} {'spread':>8} {'ratio':>7} {'[95 %]':>14} "
        f"{'memory MB':>10} {'ratio':>7}"
    )
    for name in names:
        # Each step against plain nnU-Net's with the same batch: what disturbs the machine disturbs
        # both.
        ratios = np.divide(seconds[name], seconds[PLAIN])
        resampled = np.median(np.random.default_rng(0).choice(ratios, (10000, len(ratios))), 1)
        ratio, (low, high) = (
            float(np.median(ratios)),
            np.quantile(resampled, [0.025, 0.975]).tolist(),
        )
        quartiles = statistics.quantiles(seconds[name], n=4)
        row = {
            "trainer": name,
            "seconds": statistics.median(seconds[name]),
            "spread": quartiles[2] - quartiles[0],
            "ratio": ratio,
            "ratio_interval": [low, high],
            "memory": memory[name],
            "memory_ratio": memory[name] / memory[PLAIN],
        }
        rows.append(row)
        print(
            f"{name:32} {row['seconds']:8.3f} {row['spread']:8.3f} {ratio:7.3f} "
            f"{f'{low:.3f}-{high:.3f}':>14} {memory[name] / 2**20:10.1f} "
            f"{row['memory_ratio']:7.3f}"
        )
    if args.json:
        about = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
        }
        Path(args.json).write_text(json.dumps({**about, **vars(args), "results": rows}, indent=2))


if __name__ == "__main__":
    main()
