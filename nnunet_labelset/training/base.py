"""What a mixin stands before: nnU-Net's trainer for the type checker, anything when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer as Trainer
else:
    Trainer = object

__all__ = ["Trainer"]
