"""The mixins for trainers of your own."""

from nnunet_labelset.training.fully_supervised import FullySupervisedMixin
from nnunet_labelset.training.mixin import LabelSetMixin, RecommendedMixin

__all__ = ["FullySupervisedMixin", "LabelSetMixin", "RecommendedMixin"]
