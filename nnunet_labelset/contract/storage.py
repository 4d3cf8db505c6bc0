"""Store label-sets as values; `Protocol.annotated` then holds exactly the leaves that were drawn.

Every verb that writes label maps stores its label-sets here. Pure Python on sets of leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from nnunet_labelset.contract.protocol import LabelSet, Protocol

BACKGROUND = frozenset([0])


@dataclass(frozen=True)
class Storage:
    """The protocol of a case, and the value of each of its label-sets.

    `enlarged` maps a set to the larger one as which it had to be stored, because values ran out.
    The protocol has `ignore` only where a label-set is stored as `ignore`.
    """

    protocol: Protocol
    value: Mapping[LabelSet, int]
    enlarged: Mapping[LabelSet, LabelSet]


def store(
    sets: Iterable[LabelSet],
    annotated: LabelSet,
    num_leaves: int,
    optional: Iterable[LabelSet] = (),
    for_ignore: LabelSet = frozenset(),
    voxels: Mapping[LabelSet, int] | None = None,
) -> Storage:
    """Return a protocol that stores all `sets` and in which exactly `annotated` is annotated.

    A leaf alone keeps its value, and so does an annotated leaf that does not occur. Another set
    takes a free value, one of its own leaves if possible, so that a viewer still shows it
    correctly; `for_ignore` is stored as `ignore`, if it can be. When values run out, the two sets
    that lose least are united, until all fit; `voxels` tells how often a set occurs. `optional`
    sets are stored only if nothing is lost: cases of one source then share a protocol.
    """
    needed = frozenset(sets) | {frozenset([leaf]) for leaf in annotated}
    counts = voxels or {}
    storage = _store(needed.union(optional), annotated, num_leaves, for_ignore, counts)
    if storage.enlarged:
        storage = _store(needed, annotated, num_leaves, for_ignore, counts)
    return storage


def _store(
    sets: frozenset[LabelSet],
    annotated: LabelSet,
    num_leaves: int,
    for_ignore: LabelSet,
    voxels: Mapping[LabelSet, int],
) -> Storage:
    full_set = frozenset(range(num_leaves))
    drawn_alone = frozenset().union(*(labels for labels in sets if len(labels) == 1))
    free = [value for value in range(num_leaves + 1) if value not in drawn_alone]
    larger = _with_statement(sets, drawn_alone, annotated, full_set)
    united = _unite(larger, len(free), voxels)
    larger = {united.get(labels, labels) for labels in larger}
    ignored = full_set if full_set in larger else united.get(for_ignore, for_ignore)
    if full_set in larger and _in_doubt(larger - {full_set}, drawn_alone - annotated):
        # An `ignore` that may be every leaf would not tell that they were not drawn.
        ignored = frozenset()
    value = {frozenset([leaf]): leaf for leaf in drawn_alone}
    value |= _give_values(larger, free, ignored, num_leaves)
    protocol = _protocol(value, annotated, num_leaves)
    enlarged = {labels: whole for labels, whole in united.items() if labels in sets}
    value |= {labels: value[whole] for labels, whole in enlarged.items()}
    return Storage(protocol, value, enlarged)


def _with_statement(
    sets: Collection[LabelSet], drawn_alone: LabelSet, annotated: LabelSet, full_set: LabelSet
) -> set[LabelSet]:
    """Return the larger label-sets, with one that says which leaves were not drawn completely.

    It is needed where leaves occur alone although they are not annotated, even if none of the
    voxels has it.
    """
    larger = {labels for labels in sets if len(labels) > 1}
    if full_set not in larger and _in_doubt(larger, drawn_alone - annotated):
        larger.add(_at_least_two(full_set - annotated))
    return larger


def _in_doubt(larger: Collection[LabelSet], leaves: LabelSet) -> LabelSet:
    """Return the leaves that no larger label-set holds: they would pass for annotated."""
    return leaves.difference(*larger)


def _at_least_two(leaves: LabelSet) -> LabelSet:
    """A set of one leaf would be certain: background goes with it."""
    if len(leaves) > 1:
        return leaves
    return leaves | (BACKGROUND if leaves != BACKGROUND else {1})


def _unite(
    larger: Collection[LabelSet], room: int, voxels: Mapping[LabelSet, int]
) -> dict[LabelSet, LabelSet]:
    """Return which sets are united to which, so that at most `room` sets are left."""
    remaining = set(larger)
    counts = {labels: voxels.get(labels, 1) for labels in larger}
    united: dict[LabelSet, LabelSet] = {}
    while len(remaining) > room:
        pairs = combinations(sorted(remaining, key=_order), 2)
        pair = min(pairs, key=partial(_loss, counts))
        whole = pair[0] | pair[1]
        counts[whole] = sum(counts[labels] for labels in {*pair, whole} if labels in counts)
        remaining = remaining.difference(pair) | {whole}
        united = {labels: whole if target in pair else target for labels, target in united.items()}
        united |= dict.fromkeys(pair, whole)
    return {labels: whole for labels, whole in united.items() if labels != whole}


def _loss(counts: Mapping[LabelSet, int], pair: tuple[LabelSet, LabelSet]) -> int:
    """Return how many leaves the voxels of the two sets gain when the sets are united."""
    whole = len(pair[0] | pair[1])
    return sum(counts[labels] * (whole - len(labels)) for labels in pair)


def _order(labels: LabelSet) -> tuple[int, list[int]]:
    return len(labels), sorted(labels)


def _give_values(
    larger: Collection[LabelSet], free: Collection[int], ignored: LabelSet, num_leaves: int
) -> dict[LabelSet, int]:
    available = list(free)
    value: dict[LabelSet, int] = {}
    for labels in sorted(larger, key=lambda labels: (labels != ignored, _order(labels))):
        available.sort(key=partial(_preference, labels, labels == ignored, num_leaves))
        value[labels] = available.pop(0)
    return value


def _preference(
    labels: LabelSet, is_ignored: bool, num_leaves: int, value: int
) -> tuple[bool, bool, bool]:
    """A sort key: which of the free values a label-set should take."""
    is_ignore = value == num_leaves
    if is_ignored:
        return not is_ignore, False, False
    if len(labels) == num_leaves:  # `ignore` would not state it
        return is_ignore, value != 0, False
    is_own_leaf = value in labels and value > 0
    # `ignore` before a foreign leaf, background last: stock tools misread it least.
    return not is_own_leaf, value == 0, not is_ignore


def _protocol(value: Mapping[LabelSet, int], annotated: LabelSet, num_leaves: int) -> Protocol:
    """Return the protocol of the values; those that store nothing must not claim a leaf."""
    full_set = frozenset(range(num_leaves))
    sets = [frozenset([leaf]) for leaf in range(num_leaves)] + [full_set]
    for labels, number in value.items():
        sets[number] = labels
    protocol = Protocol(tuple(sets), num_leaves)
    unused = frozenset(
        leaf for leaf in protocol.annotated - annotated if frozenset([leaf]) not in value
    )
    for leaf in unused:
        sets[leaf] = _at_least_two(unused)
    if num_leaves not in value.values():
        sets.pop()
    if unused or len(sets) < len(protocol.sets):
        protocol = Protocol(tuple(sets), num_leaves)
    states_ignore = not protocol.annotated <= annotated
    vouched = annotated & replace(protocol, states_ignore=states_ignore).uncertain
    return replace(protocol, states_ignore=states_ignore, vouched=vouched)
