"""The recommended combination: running Leaf-Dice from the start, marginal cross entropy after it."""

from __future__ import annotations

from typing import Any, ClassVar

from nnunet_labelset.training.mixin import LabelSetMixin
from nnunet_labelset.training.running import RunningLeafDiceCELoss


class RecommendedMixin(LabelSetMixin):
    """Put it before a trainer as `LabelSetMixin`; it chooses the loss.

    At full weight from the first step, cross entropy can leave a small or merged leaf dead: nearly
    all voxels speak against it before Dice has found it. Its weight therefore grows from 0 to 1 in
    the first half of the training.
    """

    loss_class = RunningLeafDiceCELoss
    cross_entropy_ramp: ClassVar[float] = 0.5  # share of the epochs after which the weight is 1

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        loss: Any = getattr(self.loss, "loss", self.loss)  # inside of deep supervision
        loss.weight_ce = min(1.0, self.current_epoch / (self.cross_entropy_ramp * self.num_epochs))
