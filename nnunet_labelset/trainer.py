"""The old place of `nnunet_labelset.training.mixin`."""

from nnunet_labelset.training.mixin import FullySupervisedMixin, LabelSetMixin

__all__ = ["FullySupervisedMixin", "LabelSetMixin"]
