"""The old place of `nnunet_labelset.training.mixin`."""

from nnunet_labelset.training.fully_supervised import FullySupervisedMixin
from nnunet_labelset.training.mixin import LabelSetMixin

__all__ = ["FullySupervisedMixin", "LabelSetMixin"]
