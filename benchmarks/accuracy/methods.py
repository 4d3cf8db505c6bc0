"""What is compared: a trainer, the data set that it reads, and how cases are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.loss.nnUNetTrainerDiceLoss import nnUNetTrainerDiceLoss

from nnunet_labelset.losses import LeafDiceCELoss, LeafDiceLoss, MarginalDiceCELoss, MarginalDiceLoss, MeanDiceLoss
from nnunet_labelset.training.mixin import FullySupervisedMixin, LabelSetMixin
from nnunet_labelset.training.recommended import RecommendedMixin
from nnunet_labelset.training.running import RunningLeafDiceCELoss, RunningLeafDiceLoss
from nnunet_labelset.training.teacher import TeacherMixin


@dataclass(frozen=True)
class Method:
    """Base classes and attributes of the trainer."""

    bases: tuple[type, ...]
    loss_class: Any = None
    sampling: str | None = None
    dataset: str = "label-sets"


def variant(loss: type, **options: Any) -> type:
    """The loss with other options than those of the trainer."""

    class Variant(loss):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **given: Any) -> None:
            super().__init__(*args, **{**given, **options})

    return Variant


class Teacher5(TeacherMixin):
    """Asked everywhere: the likeliest leaf counts, sure or not."""

    teacher_threshold = 0.5


LABEL_SETS, COMPLETE = (LabelSetMixin, nnUNetTrainer), (FullySupervisedMixin, nnUNetTrainer)
TEACHER, TEACHER5 = (TeacherMixin, nnUNetTrainer), (Teacher5, nnUNetTrainer)
RAMP = (RecommendedMixin, nnUNetTrainer)
METHODS = {
    "plain, gaps as background": Method((nnUNetTrainer,), dataset="background"),
    "plain, ignore label": Method((nnUNetTrainer,)),
    "plain Dice, ignore label": Method((nnUNetTrainerDiceLoss,)),
    "complete cases only": Method(COMPLETE, MeanDiceLoss, "uniform"),
    "marginal Dice, uniform": Method(LABEL_SETS, MarginalDiceLoss, "uniform"),
    "Leaf-Dice, uniform": Method(LABEL_SETS, LeafDiceLoss, "uniform"),
    "marginal Dice": Method(LABEL_SETS, MarginalDiceLoss, "leaf"),
    "marginal Dice + CE": Method(LABEL_SETS, MarginalDiceCELoss, "leaf"),
    "Leaf-Dice": Method(LABEL_SETS, LeafDiceLoss, "leaf"),
    "Leaf-Dice + CE": Method(LABEL_SETS, LeafDiceCELoss, "leaf"),
    "complete cases only, Dice + CE": Method(COMPLETE, LeafDiceCELoss, "uniform"),
    "running Leaf-Dice + 0.3 CE": Method(LABEL_SETS, variant(RunningLeafDiceCELoss, weight_ce=0.3), "leaf"),
    "running Leaf-Dice + 0.1 CE": Method(LABEL_SETS, variant(RunningLeafDiceCELoss, weight_ce=0.1), "leaf"),
    "nnUNetTrainerLabelSet": Method(RAMP, RunningLeafDiceCELoss, "leaf"),
    "nnUNetTrainerLabelSetTeacher": Method((RecommendedMixin, *TEACHER), RunningLeafDiceCELoss, "leaf"),
    "Leaf-Dice + CE, ramp": Method(RAMP, LeafDiceCELoss, "leaf"),
    "running Leaf-Dice": Method(LABEL_SETS, RunningLeafDiceLoss, "leaf"),
    "running Leaf-Dice + CE": Method(LABEL_SETS, RunningLeafDiceCELoss, "leaf"),
    "running 0.8 Leaf-Dice + CE": Method(LABEL_SETS, variant(RunningLeafDiceCELoss, decay=0.8), "leaf"),
    "running 0.95 Leaf-Dice + CE": Method(LABEL_SETS, variant(RunningLeafDiceCELoss, decay=0.95), "leaf"),
    "batch Leaf-Dice + CE": Method(LABEL_SETS, variant(LeafDiceCELoss, batch_dice=True), "leaf"),
    "Leaf-Dice + CE + teacher": Method(TEACHER, LeafDiceCELoss, "leaf"),
    "Leaf-Dice + CE + teacher 0.5": Method(TEACHER5, LeafDiceCELoss, "leaf"),
    "running Leaf-Dice + CE + teacher": Method(TEACHER, RunningLeafDiceCELoss, "leaf"),
    "running Leaf-Dice + CE + teacher 0.5": Method(TEACHER5, RunningLeafDiceCELoss, "leaf"),
    "running Leaf-Dice + teacher 0.5": Method(TEACHER5, RunningLeafDiceLoss, "leaf"),
    "Leaf-Dice + teacher 0.5": Method(TEACHER5, LeafDiceLoss, "leaf"),
}
