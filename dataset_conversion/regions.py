"""The regions of a data set that is converted or merged: unions of leaves that the network predicts by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nnunet_labelset.contract import Contract, LabelSet
from nnunet_labelset.errors import LabelSetError

if TYPE_CHECKING:
    from nnunet_labelset.dataset_conversion.merge import Part


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


def regions_of_parts(parts: Sequence[Part], leaves: tuple[str, ...]) -> Regions | None:
    """By name. A leaf of a data set without regions that no region holds is a region of its own."""
    members: dict[str, LabelSet] = {}
    order: dict[str, int] = {}
    for part in parts:
        own = part.contract.regions or {}
        for (region, values), value in zip(own.items(), part.contract.regions_class_order, strict=True):
            names = {name for leaf in values for name in part.names[part.contract.leaf_names[leaf]]}
            found = frozenset(map(leaves.index, names))
            if members.setdefault(region, found) != found:
                listed = [", ".join(leaves[leaf] for leaf in sorted(sets)) for sets in (members[region], found)]
                raise LabelSetError(
                    f"region '{region}' is {listed[0]} in one data set, and {listed[1]} in {part.given}: rename it "
                    "in one dataset.json, or unite the leaves with --label"
                )
            order.setdefault(region, leaves.index(part.names[part.contract.leaf_names[value]][0]))
    if not members:
        return None
    for leaf in range(1, len(leaves)):
        if not any(leaf in region for region in members.values()):
            members[leaves[leaf]], order[leaves[leaf]] = frozenset([leaf]), leaf
    return Regions(members, tuple(order[name] for name in members)).checked(leaves, "the data sets together")
