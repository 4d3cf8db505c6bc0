"""nnU-Net's own training with `-num_gpus 2`, on a machine without a GPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from nnunetv2.run import run_training
from nnunetv2.training.nnUNetTrainer import nnUNetTrainer as trainer_module  # noqa: N813
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nnunet_labelset.nnunet.names import FINAL_CHECKPOINT, LATEST_CHECKPOINT
from nnunet_labelset.training.checkpoints import plain_network

KEPT = "kept.pth"


class Run(NamedTuple):
    """One training."""

    dataset: str
    trainer: str
    resume: bool = False  # with --c, from the epoch before the last one of the run before
    validate: bool = False  # in the end
    spoil: bool = False  # a value that nobody declared, in the batches of rank 1

    def record(self, rank: int) -> str:
        """The name of the file that says what happened on a rank."""
        return f"{self.dataset}_{self.trainer}_{'c' if self.resume else ''}{rank}.pt"


def train(rank: int, folder: str, runs: Sequence[Run]) -> None:
    """What a process does for `nnUNetv2_train DATASET 3d_fullres 0 -tr TRAINER [--c] -num_gpus 2`,
    for every run.

    nnU-Net's worker `run_ddp` takes CUDA for granted in four places: nccl, the device of the
    process and of the trainer, and the ids of the devices of the network. All else is its code.
    """
    torch.set_num_threads(1)
    os.dup2(os.open(Path(folder, f"stderr_{rank}"), os.O_CREAT | os.O_WRONLY), 2)
    torch.cuda.set_device = lambda device: None
    trainer_module.DDP = lambda network, device_ids: DistributedDataParallel(network)
    make = run_training.get_trainer_from_args
    for number, run in enumerate(runs):
        store = f"file://{folder}/store_{number}"
        record: dict[str, Any] = {}

        def setup(rank: int, size: int, store: str = store) -> None:
            dist.init_process_group("gloo", store, rank=rank, world_size=size)

        def made(*arguments: Any, record: dict = record, run: Run = run) -> Any:
            trainer = make(*arguments)
            trainer.device, trainer.grad_scaler = torch.device("cpu"), None
            watch(trainer, record, run)
            return trainer

        if run.resume and rank == 0:  # the other rank waits for this one in `setup`
            fold = Path(
                folder, "results", run.dataset, f"{run.trainer}__nnUNetPlans__3d_fullres", "fold_0"
            )
            (fold / FINAL_CHECKPOINT).unlink()
            (fold / KEPT).rename(fold / LATEST_CHECKPOINT)
        run_training.setup_ddp, run_training.get_trainer_from_args = setup, made
        what = (run.dataset, "3d_fullres", 0, run.trainer, "nnUNetPlans")
        run_training.run_ddp(rank, *what, False, run.resume, False, None, False, False, 2)
        torch.save(record, Path(folder, run.record(rank)))


def watch(trainer: Any, record: dict[str, Any], run: Run) -> None:
    """Note the batches and losses of a trainer, its weights at the end of every epoch, and what it
    remembers.
    """
    steps = {"train_step": trainer.train_step, "validation_step": trainer.validation_step}
    epoch_end, train_end = trainer.on_epoch_end, trainer.on_train_end
    record.update(train_step=[], validation_step=[], losses=[], epochs=[], weights=[], running=[])
    trainer.save_every = 1

    def noted(name: str) -> Any:
        def step(batch: dict) -> dict:
            record[name].append((trainer.current_epoch, batch))
            if run.spoil and trainer.local_rank == 1:
                batch["target"][0][:] = 77
            if not record["weights"]:
                record["weights"].append(weights(trainer.network))
            result = steps[name](batch)
            record["losses"] += [float(result["loss"])] if name == "train_step" else []
            return result

        return step

    def on_epoch_end() -> None:
        record["epochs"].append(trainer.current_epoch)
        record["weights"].append(weights(trainer.network))
        loss = getattr(trainer.loss, "loss", trainer.loss)
        record["running"].append(
            {scale: state.clone() for scale, state in getattr(loss, "running", {}).items()}
        )
        epoch_end()

    def on_train_end() -> None:
        latest = Path(trainer.output_folder, LATEST_CHECKPOINT)
        if trainer.local_rank == 0 and latest.is_file():
            # of the epoch before the last, as after a kill
            shutil.copy(latest, latest.with_name(KEPT))
        train_end()
        scores = ("dice_per_class_or_region", "mean_fg_dice", "val_losses")
        record["scores"] = [trainer.logger.get_value(key, step=None) for key in scores]
        record["teacher"] = weights(trainer.teacher) if getattr(trainer, "teacher", None) else None

    trainer.train_step, trainer.validation_step = noted("train_step"), noted("validation_step")
    trainer.on_epoch_end, trainer.on_train_end = on_epoch_end, on_train_end
    if not run.validate:
        trainer.perform_actual_validation = lambda save_probabilities: None


def weights(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: value.detach().clone() for name, value in plain_network(network).state_dict().items()
    }
