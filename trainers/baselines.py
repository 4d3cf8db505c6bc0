"""Baselines 1 and 2 of the paper: fully supervised Dice and soft-target Dice."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset.losses import MeanDiceLoss, SoftTargetDiceLoss
from nnunet_labelset.training.fully_supervised import FullySupervisedMixin
from nnunet_labelset.training.mixin import LabelSetMixin
from nnunet_labelset.training.sampling import UNIFORM


class nnUNetTrainerFullySupervisedDice(FullySupervisedMixin, nnUNetTrainer):
    loss_class = MeanDiceLoss


class nnUNetTrainerSoftTargetDice(LabelSetMixin, nnUNetTrainer):
    loss_class = SoftTargetDiceLoss
    sampling = UNIFORM
