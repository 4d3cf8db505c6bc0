"""The old place of `RecommendedMixin`."""

from nnunet_labelset.training.mixin import RecommendedMixin

__all__ = ["RecommendedMixin"]
