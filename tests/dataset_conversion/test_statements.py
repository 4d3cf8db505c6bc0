"""What teachers say together: agreement is joined, contradiction stays open, annotation wins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnunet_labelset.contract import LabelSet, Protocol
from nnunet_labelset.contract.storage import store
from nnunet_labelset.dataset_conversion.statements import (
    Answer,
    combined,
    taught_sets,
    taught_values,
)

A, B, C = 1, 2, 3
ALL = frozenset([0, A, B, C])
NO_SET: LabelSet = frozenset()


@pytest.mark.parametrize(
    ("annotated", "claims", "not_denied", "expected"),
    [
        (ALL, NO_SET, ALL - {A, B, C}, {0}),  # three teachers see none of their labels
        (ALL, NO_SET, ALL - {A}, {0, B, C}),  # one teacher says nothing about b and c
        (ALL, {A}, ALL - {B}, {A}),  # one sees a, the other one does not see b
        (ALL, {A, B}, ALL, {A, B}),  # one sees a, the other one b
        (ALL, {A}, ALL - {A, B}, {0, A, C}),  # one sees a, another one that knows a does not
        (ALL, {A, B}, ALL - {A}, {A, B}),
        ({0, B}, {A}, ALL - {B}, {0}),  # drawn: this is not a
        ({0, B}, {A}, ALL, {0, B}),
        ({A, B}, NO_SET, ALL - {A, B}, {A, B}),  # drawn: one of the two
        ({B}, {A}, ALL - {B}, {B}),
    ],
)
def test_what_a_voxel_may_be(
    annotated: set[int], claims: set[int], not_denied: set[int], expected: set[int]
) -> None:
    result = combined(frozenset(annotated), frozenset(claims), frozenset(not_denied))
    assert result == expected


PROTOCOL = Protocol((frozenset([0]), frozenset([A]), frozenset([B, C]), frozenset([C]), ALL), 4)


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_voxels_are_what_the_rule_says_and_nothing_is_widened(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 5, (2, 3, 4))
    known = [frozenset(rng.choice([A, B, C], size, replace=False).tolist()) for size in (1, 2, 3)]
    answers = [
        Answer(rng.choice([0, 0, *sorted(labels)], values.shape), labels) for labels in known
    ]
    numbers, sets = taught_sets(values, answers, PROTOCOL)
    result, is_narrowed, taught = taught_values(values, answers, PROTOCOL)
    for voxel in np.ndindex(values.shape):
        said = [(int(answer.leaf_map[voxel]), answer.known) for answer in answers]
        claims = frozenset(leaf for leaf, _ in said if leaf)
        denied = NO_SET.union(*(labels for leaf, labels in said if not leaf))
        before = PROTOCOL.sets[values[voxel]]
        expected = combined(before, claims, ALL - denied)
        assert sets[numbers[voxel]] == expected <= before
        stored = taught.protocol.sets[result[voxel]]
        assert stored >= expected
        assert stored == expected or taught.enlarged
        assert is_narrowed[voxel] == (len(stored) < len(before))
    assert taught.narrowed == is_narrowed.sum()
    assert taught.protocol.annotated == ALL


def test_labels_that_no_teacher_knows_do_not_count_as_annotated() -> None:
    unannotated = Protocol(Protocol.complete(4, has_ignore=True).sets, 4, states_ignore=True)
    values = np.full((1, 2, 2), 4)
    leaf_map = np.array([[[0, A], [A, 0]]])
    result, _, taught = taught_values(values, [Answer(leaf_map, frozenset([A]))], unannotated)
    assert taught.protocol.annotated == {A}
    assert taught.protocol.sets[result[0, 0, 0]] == {0, B, C}
    assert taught.completed == 2
    assert taught.narrowed == 4


def test_rare_sets_are_united_rather_than_frequent_ones() -> None:
    """Values run out: {0, c} is nearly everywhere, and must not become {0, a, c}."""
    singles = [frozenset([A]), frozenset([B])]
    larger = [frozenset([0, C]), frozenset([0, A, C]), frozenset([A, B]), frozenset([0, B, C])]
    counts = dict.fromkeys(larger, 1) | {larger[0]: 1_000_000}
    storage = store([*singles, *larger], frozenset([A, B]), 4, voxels=counts)
    assert storage.enlarged
    assert larger[0] not in storage.enlarged
