"""Leaf-Dice: the paper's loss for missing labels."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.training_length.nnUNetTrainer_Xepochs import (
    nnUNetTrainer_5epochs,
    nnUNetTrainer_50epochs,
    nnUNetTrainer_100epochs,
    nnUNetTrainer_250epochs,
)

from nnunet_labelset.losses import LeafDiceCELoss, LeafDiceFocalLoss, LeafDiceLoss
from nnunet_labelset.training.mixin import LabelSetMixin


class nnUNetTrainerLeafDice(LabelSetMixin, nnUNetTrainer):
    loss_class = LeafDiceLoss


class nnUNetTrainerLeafDice_5epochs(LabelSetMixin, nnUNetTrainer_5epochs):
    loss_class = LeafDiceLoss


class nnUNetTrainerLeafDice_50epochs(LabelSetMixin, nnUNetTrainer_50epochs):
    loss_class = LeafDiceLoss


class nnUNetTrainerLeafDice_100epochs(LabelSetMixin, nnUNetTrainer_100epochs):
    loss_class = LeafDiceLoss


class nnUNetTrainerLeafDice_250epochs(LabelSetMixin, nnUNetTrainer_250epochs):
    loss_class = LeafDiceLoss


class nnUNetTrainerLeafDiceCE(LabelSetMixin, nnUNetTrainer):
    loss_class = LeafDiceCELoss


class nnUNetTrainerLeafDiceCE_5epochs(LabelSetMixin, nnUNetTrainer_5epochs):
    loss_class = LeafDiceCELoss


class nnUNetTrainerLeafDiceCE_50epochs(LabelSetMixin, nnUNetTrainer_50epochs):
    loss_class = LeafDiceCELoss


class nnUNetTrainerLeafDiceCE_100epochs(LabelSetMixin, nnUNetTrainer_100epochs):
    loss_class = LeafDiceCELoss


class nnUNetTrainerLeafDiceCE_250epochs(LabelSetMixin, nnUNetTrainer_250epochs):
    loss_class = LeafDiceCELoss


class nnUNetTrainerLeafDiceFocal(LabelSetMixin, nnUNetTrainer):
    loss_class = LeafDiceFocalLoss
