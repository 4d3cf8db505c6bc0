"""Storing label-sets: no voxel becomes more certain, and exactly what was drawn counts as drawn."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.storage import store

C = 4
NAMES = ("background", "a", "b", "c")
leaf_sets = st.frozensets(st.integers(0, C - 1), min_size=1)


def fs(*leaves: int) -> frozenset[int]:
    return frozenset(leaves)


def block_of(protocol) -> dict[str, list[str]]:
    """What dataset.json says about the protocol."""
    contract = Contract(NAMES, {"p": protocol}, {"x": "p"}, protocol.has_ignore)
    return contract.to_dataset_json()["label_sets"]["protocols"]["p"]


def annotated_by_the_rules(block: dict[str, list[str]]) -> set[str]:
    """The rules of docs/contract.md, on the text of dataset.json alone."""
    meaning = {name: {name} for name in NAMES} | {name: set(block[name]) for name in block}
    alone = {min(leaves) for leaves in meaning.values() if len(leaves) == 1}
    disputed = set().union(*(leaves for leaves in meaning.values() if len(leaves) > 1))
    return {leaf for leaf in alone if leaf not in disputed or block.get(leaf) == [leaf]}


@given(st.sets(leaf_sets, max_size=8), st.frozensets(st.integers(0, C - 1)), leaf_sets)
@settings(max_examples=500)
def test_exactly_what_was_drawn_counts_as_drawn(sets, annotated, for_ignore):
    storage = store(sets, annotated, C, for_ignore=for_ignore)
    assert storage.protocol.annotated == annotated
    block = block_of(storage.protocol)
    assert annotated_by_the_rules(block) == {NAMES[leaf] for leaf in annotated}
    read = Contract.from_dataset_json(
        {
            "labels": {name: value for value, name in enumerate([*NAMES, "ignore"])},
            "label_sets": {"version": 1, "protocols": {"p": block}, "cases": {"x": "p"}},
        }
    )
    assert read.protocols["p"] == storage.protocol.with_ignore()


@given(st.sets(leaf_sets, max_size=8), st.frozensets(st.integers(0, C - 1)))
@settings(max_examples=300)
def test_every_set_is_stored_as_itself_or_as_an_announced_larger_one(sets, annotated):
    storage = store(sets, annotated, C)
    for labels in sets:
        stored = storage.protocol.sets[storage.value[labels]]
        assert stored == storage.enlarged.get(labels, labels)
        assert stored >= labels
        if len(labels) == 1:
            assert storage.value[labels] == min(labels)
    alone = {labels for labels in sets if len(labels) == 1} | {fs(leaf) for leaf in annotated}
    larger = {labels for labels in sets if len(labels) > 1}
    if not storage.enlarged:
        assert len({storage.value[labels] for labels in sets}) == len(sets)
    else:
        assert len(alone) + len(larger) + 1 > C + 1  # the values really ran out


def test_a_set_takes_a_value_that_a_viewer_understands():
    storage = store([fs(0), fs(2), fs(1, 3)], fs(0, 2), C, for_ignore=fs(1, 3))
    assert storage.value[fs(1, 3)] == C
    storage = store([fs(0), fs(2), fs(1, 3)], fs(0, 2), C)
    assert storage.value[fs(1, 3)] == 1
    assert not storage.protocol.has_ignore


def test_uniting_loses_as_little_as_possible():
    singles = [fs(leaf) for leaf in range(C)]
    storage = store([*singles, fs(1, 2), fs(1, 2, 3)], fs(0), C)
    assert storage.enlarged == {fs(1, 2): fs(1, 2, 3)}
    assert storage.value[fs(1, 2)] == C


def test_nothing_drawn_is_not_laundered_by_ignore():
    """A scribble protocol: voxels of every label, and all others may be anything."""
    everything = fs(*range(C))
    some_free = store([fs(1), fs(2), everything], fs(), C)
    assert some_free.value[everything] == 0
    none_free = store([*(fs(leaf) for leaf in range(C)), everything], fs(), C)
    assert none_free.value[everything] == C
    assert none_free.protocol.annotated == fs()
    assert block_of(none_free.protocol) == {"ignore": list(NAMES)}


def test_ignored_voxels_of_a_complete_case_state_nothing():
    everything = fs(*range(C))
    storage = store([fs(0), fs(1), everything], everything, C)
    assert storage.value[everything] == C
    assert storage.protocol.is_complete
    assert block_of(storage.protocol) == {}


def test_optional_sets_are_dropped_before_anything_is_lost():
    singles = [fs(leaf) for leaf in range(C)]
    assert store([fs(0)], fs(0), C, optional=[fs(1, 2)]).value[fs(1, 2)] == 1
    crowded = store([*singles, fs(1, 2)], fs(0, 3), C, optional=[fs(2, 3)])
    assert not crowded.enlarged
    assert fs(2, 3) not in crowded.value
