"""Label-set loss functions (Fidon et al., MICCAI 2021, arXiv:2107.03846)."""

from nnunet_labelset.losses import functional
from nnunet_labelset.losses.conversion import (
    AxiomCheck,
    check_axiom,
    marginalize,
    soft_target,
    to_label_set_loss,
)
from nnunet_labelset.losses.dice import (
    DiceTables,
    DiceTerms,
    leaf_dice,
    marginal_dice,
    mean_dice,
    soft_target_dice,
)
from nnunet_labelset.losses.modules import (
    LabelSetLoss,
    LeafDiceCELoss,
    LeafDiceFocalLoss,
    LeafDiceLoss,
    MarginalCrossEntropyLoss,
    MarginalDiceCELoss,
    MarginalDiceFocalLoss,
    MarginalDiceLoss,
    MarginalFocalLoss,
    MeanDiceLoss,
    RunningDice,
    RunningLeafDiceCELoss,
    RunningLeafDiceLoss,
    SoftTargetDiceLoss,
)

__all__ = [
    "AxiomCheck",
    "DiceTables",
    "DiceTerms",
    "LabelSetLoss",
    "LeafDiceCELoss",
    "LeafDiceFocalLoss",
    "LeafDiceLoss",
    "MarginalCrossEntropyLoss",
    "MarginalDiceCELoss",
    "MarginalDiceFocalLoss",
    "MarginalDiceLoss",
    "MarginalFocalLoss",
    "MeanDiceLoss",
    "RunningDice",
    "RunningLeafDiceCELoss",
    "RunningLeafDiceLoss",
    "SoftTargetDiceLoss",
    "check_axiom",
    "functional",
    "leaf_dice",
    "marginal_dice",
    "marginalize",
    "mean_dice",
    "soft_target",
    "soft_target_dice",
    "to_label_set_loss",
]
