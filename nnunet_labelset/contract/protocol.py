"""`Protocol`: what the values of a label map may be. Every room of the package builds on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

LabelSet = frozenset[int]


class Relation(NamedTuple):
    """How label-sets lie to regions, bool `(V, R)` each. Where both are false, a voxel may be
    either in the region or out of it.
    """

    inside: np.ndarray
    outside: np.ndarray


def relation(membership: np.ndarray, regions: np.ndarray) -> Relation:
    """Return which label-sets `(V, C)` lie inside and outside of which regions `(R, C)`, all bool.

    A label-set is inside a region if the region holds all of its leaves, outside if it holds none.
    """
    member = membership.astype(np.int64)
    return Relation(inside=member @ ~regions.T == 0, outside=member @ regions.T == 0)


def membership_matrix(sets: tuple[LabelSet, ...], num_leaves: int) -> np.ndarray:
    """Return bool `(V, C)`: which leaves are in which label-set."""
    membership = np.zeros((len(sets), num_leaves), dtype=bool)
    for row, leaves in enumerate(sets):
        membership[row, list(leaves)] = True
    return membership


@dataclass(frozen=True)
class Protocol:
    """How a case was annotated: `sets[value]` holds the leaves that a voxel with `value` may be.

    There are `num_leaves` values, or one more in a data set with nnU-Net's `ignore`, whose value is
    `num_leaves`. `vouched` are leaves that count as annotated although a larger label-set holds
    them too: some voxels are disputed, but the structure itself was drawn. An `ignore` that may be
    every leaf states nothing, unless `states_ignore` says that the leaves were not drawn there.

    >>> liver_only = Protocol((frozenset([0, 2]), frozenset([1]), frozenset([2])), num_leaves=3)
    >>> sorted(liver_only.annotated)
    [1]
    """

    sets: tuple[LabelSet, ...]
    num_leaves: int
    vouched: LabelSet = frozenset()
    states_ignore: bool = False

    @classmethod
    def complete(cls, num_leaves: int, has_ignore: bool) -> Protocol:
        """Return the protocol in which every leaf stands for itself, and `ignore` for all
        leaves.
        """
        sets = tuple(frozenset([leaf]) for leaf in range(num_leaves))
        ignore = (frozenset(range(num_leaves)),) if has_ignore else ()
        return cls(sets + ignore, num_leaves)

    @property
    def full_set(self) -> LabelSet:
        return frozenset(range(self.num_leaves))

    @property
    def has_ignore(self) -> bool:
        return len(self.sets) > self.num_leaves

    @property
    def stated_sets(self) -> dict[int, LabelSet]:
        """The label-sets by value, without an `ignore` that may be every leaf, unless it is stated.

        Another value that may be every leaf, such as background, does state something: none of the
        leaves was drawn completely.
        """
        return {
            value: leaves
            for value, leaves in enumerate(self.sets)
            if value < self.num_leaves or leaves != self.full_set or self.states_ignore
        }

    @cached_property
    def membership(self) -> np.ndarray:
        """Bool `(V, C)`: which leaves each value may be."""
        return membership_matrix(self.sets, self.num_leaves)

    @cached_property
    def uncertain(self) -> LabelSet:
        """Leaves of larger label-sets: a voxel may be one of them without showing it."""
        larger = (leaves for leaves in self.stated_sets.values() if len(leaves) > 1)
        return frozenset().union(*larger)

    @cached_property
    def annotated(self) -> LabelSet:
        """Leaves that were drawn wherever they occur.

        Some value stands for exactly this leaf, and no larger label-set holds it, unless it is
        vouched for.
        """
        single = frozenset().union(*(leaves for leaves in self.sets if len(leaves) == 1))
        return single - (self.uncertain - self.vouched)

    @property
    def is_complete(self) -> bool:
        """Every leaf is annotated and no voxel is disputed; voxels may be ignored altogether."""
        return self.annotated == self.full_set and not self.vouched

    def relation(self, regions: np.ndarray) -> Relation:
        """Return which values lie inside and outside of the regions, bool `(R, C)`."""
        return relation(self.membership, regions)

    def annotates(self, region: LabelSet) -> bool:
        """Tell whether a region is annotated: all of its leaves are, or every value that states
        something lies inside or outside of it.
        """
        if region <= self.annotated:
            return True
        inside, outside = self.relation(membership_matrix((region,), self.num_leaves))
        stated = list(self.stated_sets)
        return bool(inside[stated].any() and (inside | outside)[stated].all())

    def with_ignore(self) -> Protocol:
        """Return the same protocol for a data set that declares `ignore`."""
        if self.has_ignore:
            return self
        return replace(self, sets=(*self.sets, self.full_set))
