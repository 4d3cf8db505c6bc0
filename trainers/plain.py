"""Plain nnU-Net for comparison, short: see `nnunet_labelset.training.short`."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import (
    nnUNetTrainerNoMirroring,
)

from nnunet_labelset.training.short import ShortMixin


class nnUNetTrainer_short(ShortMixin, nnUNetTrainer):
    """Plain nnU-Net for comparison, short."""


class nnUNetTrainer_short_NoMirroring(ShortMixin, nnUNetTrainerNoMirroring):
    """Plain nnU-Net for comparison, short, no mirroring."""


class nnUNetTrainerDice_short(ShortMixin, nnUNetTrainer):
    """Plain nnU-Net without its cross entropy for comparison, short."""

    def _build_loss(self):
        loss = super()._build_loss()
        getattr(loss, "loss", loss).weight_ce = 0  # inside of deep supervision
        return loss
