"""`nnUNetv2_train_pretrained`, which fine-tunes checkpoints of nnssl, with our trainers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.default_trainer import fine_tuning_arguments
from nnunet_labelset.nnunet.discovery import external_trainers, has_pretraining
from nnunet_labelset.nnunet.forward import check_device, forward

OPTION = "--pretrained"


def train_pretrained(arguments: Sequence[str]) -> None:
    """Run nnU-Net's command; without `-tr` with our trainer."""
    if not has_pretraining():
        raise LabelSetError(
            f"{OPTION}: nnU-Net {version('nnunetv2')} has no {names.TRAIN_PRETRAINED}: only its "
            "development version on GitHub has (no release up to 2.8.1)"
        )
    words, trainer = fine_tuning_arguments(arguments)
    check_device(words)
    if trainer is not None:
        _show_to_command(trainer)
    forward(names.TRAIN_PRETRAINED, f"nnunet_labelset train {OPTION}", words)


def _show_to_command(trainer: str) -> None:
    """Let the command find a trainer of ours, or of `nnUNet_extTrainer`, in this process."""
    os.environ[names.EXTERNAL_TRAINERS] = external_trainers()
    from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

    # The command takes the first module of nnunetv2.training.nnUNetTrainer that has an attribute
    # of this name, and looks nowhere else. nnU-Net's own trainers it finds without us.
    trainer_class = recursive_find_trainer_class_by_name(trainer)
    if not trainer_class.__module__.startswith("nnunetv2."):
        module = import_module("nnunetv2.training.nnUNetTrainer.nnUNetTrainer")
        setattr(module, trainer, trainer_class)
