"""What is compared: a trainer, the data set that it reads, and how cases are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.loss.nnUNetTrainerDiceLoss import (
    nnUNetTrainerDiceLoss,
)

from nnunet_labelset.losses import (
    LeafDiceCELoss,
    LeafDiceLoss,
    MarginalDiceCELoss,
    MarginalDiceLoss,
    MeanDiceLoss,
)
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
    completed: bool = False  # trained again on what its folds have completed


def variant(loss: type, **options: Any) -> type:
    """The loss with other options than those of the trainer."""

    class Variant(loss):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **given: Any) -> None:
            super().__init__(*args, **{**given, **options})

    return Variant


LABEL_SETS, COMPLETE = (LabelSetMixin, nnUNetTrainer), (FullySupervisedMixin, nnUNetTrainer)
RECOMMENDED = (RecommendedMixin, nnUNetTrainer)
METHODS = {
    "plain, gaps as background": Method((nnUNetTrainer,), dataset="background"),
    "plain, ignore label": Method((nnUNetTrainer,)),
    "plain Dice, ignore label": Method((nnUNetTrainerDiceLoss,)),
    "complete cases only": Method(COMPLETE, MeanDiceLoss, "uniform"),
    "marginal Dice, uniform": Method(LABEL_SETS, MarginalDiceLoss, "uniform"),
    "Leaf-Dice, uniform": Method(LABEL_SETS, LeafDiceLoss, "uniform"),
    "Leaf-Dice": Method(LABEL_SETS, LeafDiceLoss, "leaf"),
    "nnUNetTrainerLabelSet": Method(RECOMMENDED, RunningLeafDiceCELoss, "leaf"),
    "nnUNetTrainerLabelSetTeacher": Method(
        (RecommendedMixin, TeacherMixin, nnUNetTrainer), RunningLeafDiceCELoss, "leaf"
    ),
}
# what the parts of the recommended trainer are worth, what comes on top of it, and their rivals
PARTS = {
    "nnUNetTrainerLabelSet, completed": Method(
        RECOMMENDED, RunningLeafDiceCELoss, "leaf", completed=True
    ),
    "LabelSet without tail": Method(RECOMMENDED, variant(RunningLeafDiceCELoss, tail=0), "leaf"),
    "LabelSet, tail 0.03": Method(RECOMMENDED, variant(RunningLeafDiceCELoss, tail=0.03), "leaf"),
    "LabelSet, tail 0.01": Method(RECOMMENDED, variant(RunningLeafDiceCELoss, tail=0.01), "leaf"),
    "LabelSet, uniform": Method(RECOMMENDED, RunningLeafDiceCELoss, "uniform"),
    "LabelSet, CE from the start": Method(LABEL_SETS, RunningLeafDiceCELoss, "leaf"),
    "LabelSet without CE": Method(LABEL_SETS, RunningLeafDiceLoss, "leaf"),
    "Leaf-Dice + CE": Method(LABEL_SETS, LeafDiceCELoss, "leaf"),
    "Leaf-Dice + CE, batch Dice": Method(
        LABEL_SETS, variant(LeafDiceCELoss, batch_dice=True), "leaf"
    ),
    "marginal Dice + CE": Method(LABEL_SETS, MarginalDiceCELoss, "leaf"),
    "complete cases only, Dice + CE": Method(COMPLETE, LeafDiceCELoss, "uniform"),
}
ALL = METHODS | PARTS
