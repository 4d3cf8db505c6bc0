"""The recommended trainer for checkpoints of nnssl, where nnU-Net can fine-tune them."""

from nnunet_labelset.nnunet.discovery import has_pretraining
from nnunet_labelset.training.mixin import RecommendedMixin

if has_pretraining():
    from nnunetv2.training.nnUNetTrainer.pretraining.pretrainedTrainer import (
        PretrainedTrainer,
        PretrainedTrainer_Primus,
    )

    class nnUNetTrainerLabelSetPretrained(RecommendedMixin, PretrainedTrainer):
        """Recommended with a checkpoint of nnssl: train --pretrained."""

    class nnUNetTrainerLabelSetPretrainedPrimus(RecommendedMixin, PretrainedTrainer_Primus):
        """The same for a Primus network."""
