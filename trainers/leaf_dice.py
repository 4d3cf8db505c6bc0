"""Leaf-Dice: the paper's loss for missing labels."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset.losses import LeafDiceCELoss, LeafDiceFocalLoss, LeafDiceLoss
from nnunet_labelset.training.mixin import LabelSetMixin


class nnUNetTrainerLeafDice(LabelSetMixin, nnUNetTrainer):
    loss_class = LeafDiceLoss


class nnUNetTrainerLeafDiceCE(LabelSetMixin, nnUNetTrainer):
    loss_class = LeafDiceCELoss


class nnUNetTrainerLeafDiceFocal(LabelSetMixin, nnUNetTrainer):
    loss_class = LeafDiceFocalLoss
