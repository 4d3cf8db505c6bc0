"""nnU-Net's own loss, to compare with."""

from __future__ import annotations

from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
from torch import nn


def nnunet_loss(num_labels: int) -> nn.Module:
    """Return Dice + cross entropy as nnU-Net trains with, with an ignore label."""
    dice = {"batch_dice": False, "smooth": 1e-5, "do_bg": False, "ddp": False}
    return DC_and_CE_loss(dice, {}, ignore_label=num_labels, dice_class=MemoryEfficientSoftDiceLoss)
