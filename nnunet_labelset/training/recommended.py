"""The recommended combination: running Leaf-Dice, and marginal cross entropy that grows."""

from __future__ import annotations

from typing import ClassVar

from nnunet_labelset.losses import RunningLeafDiceCELoss
from nnunet_labelset.training.mixin import LabelSetMixin


class RecommendedMixin(LabelSetMixin):
    """Put it before a trainer as `LabelSetMixin`; it chooses the loss.

    At full weight from the first step, cross entropy can suppress a small or merged label for good:
    nearly all voxels are evidence against it before Dice has found it. Its gradient therefore grows
    from 0 to full size in the first half of the training. The logged losses include cross entropy
    in full from the start, so that training and validation show the same function in every epoch.
    """

    loss_class = RunningLeafDiceCELoss
    cross_entropy_ramp: ClassVar[float] = 0.5  # share of the epochs after which it counts in full

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.inner_loss.ce_share = min(
            1.0, self.current_epoch / (self.cross_entropy_ramp * self.num_epochs)
        )
