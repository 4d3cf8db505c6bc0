"""The regions of a data set that is converted or merged: unions of leaves that the network predicts by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nnunet_labelset.contract import Contract, LabelSet
from nnunet_labelset.errors import LabelSetError


class Regions(NamedTuple):
    """The leaves of every region, and the leaf that each writes into a segmentation (nnU-Net's regions_class_order)."""

    members: Mapping[str, LabelSet]
    order: tuple[int, ...]

    def checked(self, leaves: tuple[str, ...], where: str) -> Regions:
        """By the rules of the contract, before any case is read."""
        try:
            Contract.of_labels(Contract(leaves, {}, {}, False, {}, *self).to_dataset_json())
        except LabelSetError as error:
            raise LabelSetError(f"{where}: {error}") from None
        return self
