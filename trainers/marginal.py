"""Marginal losses: the conversion of Dice, cross entropy and focal loss into label-set losses."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset.losses import (
    MarginalCrossEntropyLoss,
    MarginalDiceCELoss,
    MarginalDiceFocalLoss,
    MarginalDiceLoss,
    MarginalFocalLoss,
)
from nnunet_labelset.training.mixin import LabelSetMixin


class nnUNetTrainerMarginalDice(LabelSetMixin, nnUNetTrainer):
    loss_class = MarginalDiceLoss


class nnUNetTrainerMarginalDiceCE(LabelSetMixin, nnUNetTrainer):
    loss_class = MarginalDiceCELoss


class nnUNetTrainerMarginalDiceFocal(LabelSetMixin, nnUNetTrainer):
    loss_class = MarginalDiceFocalLoss


class nnUNetTrainerMarginalCE(LabelSetMixin, nnUNetTrainer):
    loss_class = MarginalCrossEntropyLoss


class nnUNetTrainerMarginalFocal(LabelSetMixin, nnUNetTrainer):
    loss_class = MarginalFocalLoss
