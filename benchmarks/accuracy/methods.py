"""What is compared: a trainer, the data set that it reads, and how cases are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from benchmarks.accuracy.prepare import Variant
from benchmarks.accuracy.variants import (
    CutMixTeacherMixin,
    ReadyTeacherMixin,
    SoftTargetLoss,
    SoftTeacherMixin,
)
from nnunet_labelset.losses import (
    LeafDiceCELoss,
    LeafDiceLoss,
    MarginalDiceCELoss,
)
from nnunet_labelset.training.mixin import LabelSetMixin, RecommendedMixin
from nnunet_labelset.training.sigmoid import SigmoidMixin
from nnunet_labelset.training.swap_mirroring import SwapMirroringMixin
from nnunet_labelset.training.teacher import TeacherMixin


class Recipe(Enum):
    """Which networks are trained, one after the other."""

    SINGLE = auto()
    UNION = auto()  # one for each protocol; their probabilities are averaged
    PSEUDO_LABELS = auto()  # complete cases first; its predictions fill the gaps for a second one
    PSEUDO_ROUNDS = auto()  # the same twice; cases whose answers change are left out
    COMPLETED = auto()  # folds first, which complete the cases that they have not seen


@dataclass(frozen=True)
class Method:
    """Base classes and attributes of the trainer; `complete_only` leaves out the other cases."""

    title: str
    bases: tuple[type, ...] = (nnUNetTrainer,)
    loss_class: Any = None
    sampling: str | None = None
    variant: Variant = Variant.LABEL_SETS
    complete_only: bool = False
    recipe: Recipe = Recipe.SINGLE
    mirror: tuple[int, ...] | None = None  # axes, if not those of the study


LABEL_SETS = (LabelSetMixin, nnUNetTrainer)
RECOMMENDED = (RecommendedMixin, nnUNetTrainer)
TEACHER = (RecommendedMixin, TeacherMixin, nnUNetTrainer)
METHODS = {
    "all_complete": Method("*all cases complete*: plain nnU-Net", variant=Variant.COMPLETE),
    "complete_only": Method(
        "complete cases only (Dice + CE)", variant=Variant.COMPLETE, complete_only=True
    ),
    "background": Method("plain nnU-Net, gaps as background", variant=Variant.BACKGROUND),
    "ignore": Method("plain nnU-Net, ignore label"),
    "leaf_ce_uniform": Method("Leaf-Dice + CE, uniform", LABEL_SETS, LeafDiceCELoss, "uniform"),
    "leaf_ce": Method("Leaf-Dice + CE, by label", LABEL_SETS, LeafDiceCELoss, "leaf"),
    "leaf_ce_ramp": Method(
        "Leaf-Dice + CE, by label, CE as in `nnUNetTrainerLabelSet`",
        RECOMMENDED,
        LeafDiceCELoss,
        "leaf",
    ),
    "marginal_ce": Method("marginal Dice + CE", LABEL_SETS, MarginalDiceCELoss, "leaf"),
    "sigmoid": Method(
        "`nnUNetTrainerLabelSetSigmoid`", (SigmoidMixin, nnUNetTrainer), sampling="leaf"
    ),
    "pseudo_labels": Method("pseudo-labels, then plain nnU-Net", recipe=Recipe.PSEUDO_LABELS),
    "pseudo_rounds": Method(
        "pseudo-labels, two rounds, unstable cases left out", recipe=Recipe.PSEUDO_ROUNDS
    ),
    "union": Method("union of one network per protocol", recipe=Recipe.UNION),
    "ours": Method("`nnUNetTrainerLabelSet`", RECOMMENDED, sampling="leaf"),
    "teacher": Method("`nnUNetTrainerLabelSetTeacher`", TEACHER, sampling="leaf"),
    "soft_teacher": Method(
        "teacher with soft targets",
        (RecommendedMixin, SoftTeacherMixin, nnUNetTrainer),
        SoftTargetLoss,
        "leaf",
    ),
    "ready_teacher": Method(
        "teacher that starts label by label",
        (RecommendedMixin, ReadyTeacherMixin, nnUNetTrainer),
        sampling="leaf",
    ),
    "cutmix_teacher": Method(
        "teacher with CutMix",
        (RecommendedMixin, CutMixTeacherMixin, nnUNetTrainer),
        sampling="leaf",
    ),
    "completed": Method(
        "`nnUNetTrainerLabelSet` + `complete`",
        RECOMMENDED,
        sampling="leaf",
        recipe=Recipe.COMPLETED,
    ),
    "mirrored": Method(
        "`nnUNetTrainerLabelSet` with nnU-Net's mirroring",
        RECOMMENDED,
        sampling="leaf",
        mirror=(1,),
    ),
    "swapped": Method(
        "`nnUNetTrainerLabelSet_SwapMirroring`",
        (RecommendedMixin, SwapMirroringMixin, nnUNetTrainer),
        sampling="leaf",
    ),
    "leaf": Method("Leaf-Dice, by label", LABEL_SETS, LeafDiceLoss, "leaf"),
}
REFERENCE = "ours"
