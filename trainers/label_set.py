"""The recommended trainer, see `nnunet_labelset.training.recommended`; the same with a teacher."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import (
    nnUNetTrainerNoMirroring,
)
from nnunetv2.training.nnUNetTrainer.variants.training_length.nnUNetTrainer_Xepochs import (
    nnUNetTrainer_5epochs,
    nnUNetTrainer_50epochs,
    nnUNetTrainer_100epochs,
    nnUNetTrainer_250epochs,
)

from nnunet_labelset.training.recommended import RecommendedMixin
from nnunet_labelset.training.teacher import TeacherMixin


class nnUNetTrainerLabelSet(RecommendedMixin, nnUNetTrainer):
    """Recommended, Leaf-Dice of the last batches + marginal cross entropy."""


class nnUNetTrainerLabelSet_5epochs(RecommendedMixin, nnUNetTrainer_5epochs):
    pass


class nnUNetTrainerLabelSet_50epochs(RecommendedMixin, nnUNetTrainer_50epochs):
    pass


class nnUNetTrainerLabelSet_100epochs(RecommendedMixin, nnUNetTrainer_100epochs):
    pass


class nnUNetTrainerLabelSet_250epochs(RecommendedMixin, nnUNetTrainer_250epochs):
    pass


class nnUNetTrainerLabelSet_NoMirroring(RecommendedMixin, nnUNetTrainerNoMirroring):
    pass


class nnUNetTrainerLabelSet_5epochs_NoMirroring(
    RecommendedMixin, nnUNetTrainerNoMirroring, nnUNetTrainer_5epochs
):
    pass


class nnUNetTrainerLabelSet_50epochs_NoMirroring(
    RecommendedMixin, nnUNetTrainerNoMirroring, nnUNetTrainer_50epochs
):
    pass


class nnUNetTrainerLabelSet_100epochs_NoMirroring(
    RecommendedMixin, nnUNetTrainerNoMirroring, nnUNetTrainer_100epochs
):
    pass


class nnUNetTrainerLabelSet_250epochs_NoMirroring(
    RecommendedMixin, nnUNetTrainerNoMirroring, nnUNetTrainer_250epochs
):
    pass


class nnUNetTrainerLabelSetTeacher(RecommendedMixin, TeacherMixin, nnUNetTrainer):
    """nnUNetTrainerLabelSet with a teacher that chooses among the labels that a voxel may have, for
    `extend`.
    """


class nnUNetTrainerLabelSetTeacher_NoMirroring(
    RecommendedMixin, TeacherMixin, nnUNetTrainerNoMirroring
):
    pass
