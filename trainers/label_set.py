"""The recommended trainer: Leaf-Dice of the last samples + marginal cross entropy, sampled by leaf; with a teacher."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import nnUNetTrainerNoMirroring
from nnunetv2.training.nnUNetTrainer.variants.training_length.nnUNetTrainer_Xepochs import (
    nnUNetTrainer_5epochs,
    nnUNetTrainer_50epochs,
    nnUNetTrainer_100epochs,
    nnUNetTrainer_250epochs,
)

from nnunet_labelset.training.mixin import LabelSetMixin
from nnunet_labelset.training.running import RunningLeafDiceCELoss
from nnunet_labelset.training.teacher import TeacherMixin


class nnUNetTrainerLabelSet(LabelSetMixin, nnUNetTrainer):
    loss_class = RunningLeafDiceCELoss


class nnUNetTrainerLabelSet_5epochs(LabelSetMixin, nnUNetTrainer_5epochs):
    loss_class = RunningLeafDiceCELoss


class nnUNetTrainerLabelSet_50epochs(LabelSetMixin, nnUNetTrainer_50epochs):
    loss_class = RunningLeafDiceCELoss


class nnUNetTrainerLabelSet_100epochs(LabelSetMixin, nnUNetTrainer_100epochs):
    loss_class = RunningLeafDiceCELoss


class nnUNetTrainerLabelSet_250epochs(LabelSetMixin, nnUNetTrainer_250epochs):
    loss_class = RunningLeafDiceCELoss


class nnUNetTrainerLabelSet_NoMirroring(LabelSetMixin, nnUNetTrainerNoMirroring):
    loss_class = RunningLeafDiceCELoss


class nnUNetTrainerLabelSet_5epochs_NoMirroring(LabelSetMixin, nnUNetTrainerNoMirroring, nnUNetTrainer_5epochs):
    loss_class = RunningLeafDiceCELoss


class nnUNetTrainerLabelSet_50epochs_NoMirroring(LabelSetMixin, nnUNetTrainerNoMirroring, nnUNetTrainer_50epochs):
    loss_class = RunningLeafDiceCELoss


class nnUNetTrainerLabelSet_100epochs_NoMirroring(LabelSetMixin, nnUNetTrainerNoMirroring, nnUNetTrainer_100epochs):
    loss_class = RunningLeafDiceCELoss


class nnUNetTrainerLabelSet_250epochs_NoMirroring(LabelSetMixin, nnUNetTrainerNoMirroring, nnUNetTrainer_250epochs):
    loss_class = RunningLeafDiceCELoss


class nnUNetTrainerLabelSetTeacher(TeacherMixin, nnUNetTrainer):
    loss_class = RunningLeafDiceCELoss


class nnUNetTrainerLabelSetTeacher_NoMirroring(TeacherMixin, nnUNetTrainerNoMirroring):
    loss_class = RunningLeafDiceCELoss
