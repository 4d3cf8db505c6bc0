"""Short, seeded versions for demos and tests: see `nnunet_labelset.training.short`."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset.losses import (
    LeafDiceCELoss,
    LeafDiceLoss,
    MarginalDiceLoss,
    MeanDiceLoss,
    SoftTargetDiceLoss,
)
from nnunet_labelset.training.mixin import FullySupervisedMixin, LabelSetMixin
from nnunet_labelset.training.recommended import RecommendedMixin
from nnunet_labelset.training.sampling import UNIFORM
from nnunet_labelset.training.short import ShortMixin
from nnunet_labelset.training.sigmoid import SigmoidMixin
from nnunet_labelset.training.teacher import TeacherMixin


class nnUNetTrainer_short(ShortMixin, nnUNetTrainer):
    """Plain nnU-Net for comparison, short."""


class nnUNetTrainerDice_short(ShortMixin, nnUNetTrainer):
    """Plain nnU-Net without its cross entropy for comparison, short."""

    def _build_loss(self):
        loss = super()._build_loss()
        getattr(loss, "loss", loss).weight_ce = 0  # inside of deep supervision
        return loss


class nnUNetTrainerLabelSet_short(ShortMixin, RecommendedMixin, nnUNetTrainer):
    pass


class nnUNetTrainerLabelSetTeacher_short(ShortMixin, RecommendedMixin, TeacherMixin, nnUNetTrainer):
    pass


class nnUNetTrainerLabelSetSigmoid_short(ShortMixin, SigmoidMixin, nnUNetTrainer):
    pass


class nnUNetTrainerLeafDice_short(ShortMixin, LabelSetMixin, nnUNetTrainer):
    loss_class = LeafDiceLoss


class nnUNetTrainerLeafDiceCE_short(ShortMixin, LabelSetMixin, nnUNetTrainer):
    loss_class = LeafDiceCELoss


class nnUNetTrainerMarginalDice_short(ShortMixin, LabelSetMixin, nnUNetTrainer):
    loss_class = MarginalDiceLoss


class nnUNetTrainerSoftTargetDice_short(ShortMixin, LabelSetMixin, nnUNetTrainer):
    loss_class = SoftTargetDiceLoss
    sampling = UNIFORM


class nnUNetTrainerFullySupervisedDice_short(ShortMixin, FullySupervisedMixin, nnUNetTrainer):
    loss_class = MeanDiceLoss
