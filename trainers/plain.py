"""Short trainings of plain nnU-Net, for comparison: see `nnunet_labelset.training.short`."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import (
    nnUNetTrainerNoMirroring,
)

from nnunet_labelset.training.short import ShortMixin


class nnUNetTrainer_short(ShortMixin, nnUNetTrainer):
    """Plain nnU-Net, a short training for comparison."""


class nnUNetTrainer_short_NoMirroring(ShortMixin, nnUNetTrainerNoMirroring):
    """Plain nnU-Net without mirroring, a short training for comparison."""


class nnUNetTrainerDice_short(ShortMixin, nnUNetTrainer):
    """Plain nnU-Net without cross entropy, a short training for comparison."""

    def _build_loss(self):
        loss = super()._build_loss()
        getattr(loss, "loss", loss).weight_ce = 0  # deep supervision wraps it
        return loss
