"""Which value stores which label-set, and the remap of a label map to those values. Pure arrays and
sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from nnunet_labelset.contract import LabelSet


@dataclass(frozen=True)
class Storage:
    """The value of every label-set of a case; `merged` maps a set to the larger one that it had to
    be stored as.
    """

    num_leaves: int
    value: Mapping[LabelSet, int]
    merged: Mapping[LabelSet, LabelSet]

    def value_of(self, labels: LabelSet) -> int:
        return self.value[self.merged.get(labels, labels)]

    @property
    def uses_ignore(self) -> bool:
        return self.num_leaves in self.value.values()

    def sets(self, singletons_are_annotated: bool = False) -> tuple[LabelSet, ...]:
        """What each of the values 0..C stands for; a value that stores no label-set stands for
        itself.

        If only leaves with a value of their own are annotated, the value of another one must not
        claim that it is, where nothing but "any leaf" holds it.
        """
        full = frozenset(range(self.num_leaves))
        sets = [frozenset([leaf]) for leaf in range(self.num_leaves)] + [full]
        if singletons_are_annotated and full in self.value:
            hidden = frozenset(
                leaf for leaf in range(self.num_leaves) if sets[leaf] not in self.value
            )
            for leaf in hidden:
                sets[leaf] = hidden | {0}
        for labels, value in self.value.items():
            sets[value] = labels
        return tuple(sets)


def allocate(
    sets: Iterable[LabelSet], num_leaves: int, unannotated: LabelSet | None = None
) -> Storage:
    """Find a value for every label-set: singletons keep theirs, `unannotated` is stored as
    `ignore`.

    Another set takes a value that is not used otherwise, that of one of its own leaves if possible,
    so that the file still looks right in a viewer. When the values run out, the two sets that lose
    least are merged, until all fit.
    """
    wanted = set(sets)
    taken = {next(iter(labels)) for labels in wanted if len(labels) == 1}
    free = [value for value in range(num_leaves + 1) if value not in taken]
    larger = {labels for labels in wanted if len(labels) > 1}
    merged: dict[LabelSet, LabelSet] = {}
    while len(larger) > len(free):
        pairs = combinations(sorted(larger, key=_order), 2)
        a, b = min(pairs, key=lambda pair: 2 * len(pair[0] | pair[1]) - len(pair[0]) - len(pair[1]))
        larger = larger - {a, b} | {a | b}
        merged = {labels: a | b if into in (a, b) else into for labels, into in merged.items()} | {
            a: a | b,
            b: a | b,
        }
    merged = {
        labels: into for labels, into in merged.items() if labels != into and labels in wanted
    }
    value = {frozenset([leaf]): leaf for leaf in range(num_leaves) if frozenset([leaf]) in wanted}
    full = frozenset(range(num_leaves))
    first = (
        full if full in larger else merged.get(unannotated, unannotated) if unannotated else None
    )
    if first in larger and num_leaves in free:
        assert first is not None
        value[first] = num_leaves
        free.remove(num_leaves)
    for labels in sorted(larger - set(value), key=_order):
        own = [leaf for leaf in free if leaf in labels and leaf > 0]
        # `ignore` before a foreign leaf, background last: the less a stock tool can misread, the
        # better.
        value[labels] = (
            own or sorted(free, key=lambda free_value: (free_value == 0, free_value != num_leaves))
        )[0]
        free.remove(value[labels])
    return Storage(num_leaves, value, merged)


def _order(labels: LabelSet) -> tuple[int, list[int]]:
    return len(labels), sorted(labels)


def remap(labels: np.ndarray, table: Mapping[int, int], highest: int) -> np.ndarray:
    """`table[value]` for every voxel; every value that occurs must be in `table`.

    The result has the smallest unsigned type that holds `highest`.
    """
    dtype = np.min_scalar_type(highest)
    changed = {value: target for value, target in table.items() if value != target}
    if (
        len(changed) <= 3
    ):  # most files hold the target values already; this is faster than a table then
        result = labels.astype(dtype)
        for value, target in changed.items():
            np.copyto(result, dtype.type(target), where=labels == value)
        return result
    lookup = np.zeros(max(table) + 1, dtype)
    lookup[list(table)] = list(table.values())
    return lookup.take(labels, mode="clip")  # the mode that needs no second look at the values
