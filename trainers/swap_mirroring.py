"""The recommended trainer with mirroring that exchanges left and right."""

from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import (
    nnUNetTrainerNoMirroring,
)

from nnunet_labelset.training.mixin import RecommendedMixin
from nnunet_labelset.training.swap_mirroring import SwapMirroringMixin


class nnUNetTrainerLabelSet_SwapMirroring(
    RecommendedMixin, SwapMirroringMixin, nnUNetTrainerNoMirroring
):
    """The recommended trainer, which mirrors left and right together with their labels."""
