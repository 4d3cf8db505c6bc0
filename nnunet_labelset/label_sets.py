"""The old place of `nnunet_labelset.losses.label_sets`."""

from nnunet_labelset.losses.label_sets import LabelSets

__all__ = ["LabelSets"]
