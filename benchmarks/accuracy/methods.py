"""What is compared: a trainer, the data set that it reads, and how cases are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.loss.nnUNetTrainerDiceLoss import nnUNetTrainerDiceLoss

from nnunet_labelset.losses import LeafDiceCELoss, LeafDiceLoss, MarginalDiceCELoss, MarginalDiceLoss, MeanDiceLoss
from nnunet_labelset.training.mixin import FullySupervisedMixin, LabelSetMixin


@dataclass(frozen=True)
class Method:
    """Base classes and attributes of the trainer."""

    bases: tuple[type, ...]
    loss_class: Any = None
    sampling: str | None = None
    dataset: str = "label-sets"


LABEL_SETS, COMPLETE = (LabelSetMixin, nnUNetTrainer), (FullySupervisedMixin, nnUNetTrainer)
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
}
