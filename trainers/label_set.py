"""The recommended trainer, see `nnunet_labelset.training.mixin`; the same with a teacher."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset.training.mixin import RecommendedMixin
from nnunet_labelset.training.teacher import TeacherMixin


class nnUNetTrainerLabelSet(RecommendedMixin, nnUNetTrainer):
    """Recommended, Leaf-Dice over recent batches + marginal cross entropy."""


class nnUNetTrainerLabelSetTeacher(RecommendedMixin, TeacherMixin, nnUNetTrainer):
    """The same with a teacher that chooses among the labels that a voxel may have."""
