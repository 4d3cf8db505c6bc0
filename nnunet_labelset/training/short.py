"""Short, seeded trainings for demos and tests.

nnU-Net's SGD schedule needs tens of thousands of steps; AdamW at the paper's learning rate shows
after a few hundred what a loss can learn. All methods are shortened alike, and the full-length
trainers keep nnU-Net's optimiser.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from nnunetv2.training.lr_scheduler.polylr import PolyLRScheduler

from nnunet_labelset.training.checks import global_rank, stop
from nnunet_labelset.training.mixin import Trainer


def setting(name: str, default: int) -> int:
    """Return an integer from the environment: nnU-Net's trainers have no other options."""
    variable, least = f"nnunet_labelset_{name}", min(1, default)
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) < least:
        stop(f"expected {variable} to be a whole number of at least {least}, but got '{text}'")
    return int(text)


def seed_everything(*numbers: int) -> None:
    """Seed all generators that nnU-Net draws from."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    for seed_one in (random.seed, np.random.seed, torch.manual_seed):
        seed_one(seed)


class ShortMixin(Trainer):
    """Put it before a trainer. Set `nnunet_labelset_epochs`, `_iterations` and `_seed` to change
    the length.

    With `nnUNet_n_proc_DA=0` a run with the same seed sees the same patches, also after it is
    resumed with `--c`.
    """

    def __init__(
        self,
        plans: dict,
        configuration: str,
        fold: int,
        dataset_json: dict,
        device: torch.device = torch.device("cuda"),  # noqa: B008  (nnU-Net's own signature)
    ) -> None:
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs = setting("epochs", 10)
        self.num_iterations_per_epoch = setting("iterations", 50)
        self.num_val_iterations_per_epoch = max(1, self.num_iterations_per_epoch // 10)
        self.initial_lr = 1e-3
        seed_everything(setting("seed", 0))  # the network too
        # On a CPU nnU-Net uses all cores whatever OMP_NUM_THREADS says: parallel trainings would
        # compete for them.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))

    def configure_rotation_dummyDA_mirroring_and_inital_patch_size(self) -> tuple[Any, ...]:  # noqa: N802
        """Right/left flips only, as in the paper: brains are not upside down, and prediction flips
        less often.
        """
        *others, mirror_axes = super().configure_rotation_dummyDA_mirroring_and_inital_patch_size()
        if mirror_axes is not None:
            mirror_axes = mirror_axes[-1:]
        self.inference_allowed_mirroring_axes = mirror_axes
        return *others, mirror_axes

    def on_epoch_start(self) -> None:
        """Seed every epoch and rank differently: a resumed training must see new patches."""
        super().on_epoch_start()
        seed_everything(setting("seed", 0), self.current_epoch, global_rank())

    def configure_optimizers(self, *stage: str) -> tuple[Any, Any]:
        """Return the optimizer and its schedule; the stages of a fine-tuning share them."""
        if stage and self.optimizer is not None:
            return self.optimizer, self.lr_scheduler
        optimizer = torch.optim.AdamW(
            self.network.parameters(), self.initial_lr, weight_decay=self.weight_decay
        )
        return optimizer, PolyLRScheduler(optimizer, self.initial_lr, self.num_epochs)
