"""LabelSets: the membership matrix, and the look-up from values to set indices."""

from __future__ import annotations

import copy
import doctest
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nnunet_labelset.contract import Protocol
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses import label_sets as module
from nnunet_labelset.losses.label_sets import LabelSets
from tests.helpers.errors import refusal

DATASET = {
    "labels": {"background": 0, "organ": 1, "lesion": 2, "ignore": 3},
    "label_sets": {
        "version": 1,
        "protocols": {
            "full": {},
            "organ_only": {"organ": ["organ", "lesion"], "ignore": ["background", "organ"]},
            "no_mask": {"background": ["background", "lesion"]},
        },
        "cases": {"a": "full", "b": "organ_only", "c": "no_mask"},
    },
}


def test_membership_starts_with_the_singletons():
    sets = LabelSets.from_dataset_json(DATASET)
    assert sets.leaf_names == ("background", "organ", "lesion")
    assert (sets.num_leaves, sets.num_sets) == (3, 7)
    assert sets.membership.dtype == torch.bool
    assert torch.equal(sets.membership[:3], torch.eye(3, dtype=torch.bool))
    rows = {tuple(row.nonzero().flatten().tolist()) for row in sets.membership}
    assert rows == {(0,), (1,), (2,), (0, 1, 2), (1, 2), (0, 1), (0, 2)}
    assert "{organ, lesion}" in repr(sets)
    assert "{background, lesion}" in repr(sets)


def test_the_same_label_set_of_two_protocols_is_one_row():
    written = copy.deepcopy(DATASET)
    written["label_sets"]["protocols"]["again"] = {"lesion": ["lesion", "organ"]}
    assert LabelSets.from_dataset_json(written).num_sets == 7


def test_annotated():
    sets = LabelSets.from_dataset_json(DATASET)
    assert sets.annotated("a") == ("background", "organ", "lesion")
    assert sets.annotated("b") == ()  # the union of organ and lesion, and of background and organ
    assert sets.annotated("c") == ("organ",)
    with refusal(LabelSetError, "dataset.json"):
        LabelSets.from_superset_map(2, {}).annotated("a")


def meaning_of(sets: LabelSets, index: int) -> set[int]:
    return set(sets.membership[index].nonzero().flatten().tolist())


@settings(max_examples=40, derandomize=True)
@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
    st.sampled_from([(4,), (3, 2), (2, 2, 3)]),
    st.integers(0, 999),
)
def test_encode_equals_a_look_up_per_voxel(cases, shape, seed):
    sets = LabelSets.from_dataset_json(DATASET)
    target = torch.randint(
        4, (len(cases), 1, *shape), generator=torch.Generator().manual_seed(seed)
    )
    encoded = sets.encode(target, cases)
    assert encoded.dtype == torch.int64
    assert encoded.shape == target.shape
    for case, values, indices in zip(cases, target, encoded, strict=True):
        expected = sets.contract.protocol(case).sets
        for value, index in zip(values.flatten().tolist(), indices.flatten().tolist(), strict=True):
            assert meaning_of(sets, index) == expected[value]
            if len(expected[value]) == 1:
                assert {index} == expected[value]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
    ],
)
def test_encode_takes_any_integers(dtype):
    sets = LabelSets.from_dataset_json(DATASET)
    target = torch.arange(4).view(1, 1, 2, 2).expand(2, 1, 2, 2)
    assert torch.equal(sets.encode(target.to(dtype), ["b", "c"]), sets.encode(target, ["b", "c"]))


def test_encode_a_list_of_scales():
    sets = LabelSets.from_dataset_json(DATASET)
    scales = [torch.randint(4, (2, 1, size, size)) for size in (8, 4, 2)]
    encoded = sets.encode(scales, ["a", "b"])
    assert isinstance(encoded, list)
    for scale, result in zip(scales, encoded, strict=True):
        assert torch.equal(result, sets.encode(scale, ["a", "b"]))


def test_encode_on_another_device_and_empty():
    sets = LabelSets.from_dataset_json(DATASET)
    assert sets.encode(torch.zeros(0, 1, 4, 4), []).shape == (0, 1, 4, 4)
    twin = pickle.loads(pickle.dumps(sets))
    target = torch.randint(4, (1, 1, 5))
    assert torch.equal(twin.encode(target, ["c"]), sets.encode(target, ["c"]))


def test_encode_leaves_its_input_alone():
    sets = LabelSets.from_dataset_json(DATASET)
    target = torch.full((1, 1, 3), 3)
    sets.encode(target, ["b"])
    assert target.tolist() == [[[3, 3, 3]]]


def test_many_leaves_and_many_label_sets():
    """117 leaves, and more than 100 label-sets in one protocol."""
    supersets = {117 + i: range(i, 117) for i in range(116)} | {233: [0, 116]}
    sets = LabelSets.from_superset_map(117, supersets)
    assert sets.membership.shape == (117 + 117, 117)
    values = torch.arange(234).view(1, 1, -1)
    encoded = sets.encode(values).flatten().tolist()
    for value, index in enumerate(encoded):
        assert meaning_of(sets, index) == set(supersets.get(value, [value]))


def test_superset_map_of_the_authors():
    sets = LabelSets.from_superset_map(9, {10: [5, 6, 7, 8], 9: [4, 5, 6, 7, 8]})
    assert sets.membership.shape == (11, 9)
    assert sets.leaf_names == tuple("012345678")
    assert [
        meaning_of(sets, int(i)) for i in sets.encode(torch.tensor([[[9, 10, 3]]])).flatten()
    ] == [
        {4, 5, 6, 7, 8},
        {5, 6, 7, 8},
        {3},
    ]
    named = LabelSets.from_superset_map(2, {2: [0, 1]}, ["background", "organ"])
    assert named.leaf_names == ("background", "organ")


def test_superset_that_is_a_leaf_or_a_repetition():
    sets = LabelSets.from_superset_map(3, {3: [2], 4: [0, 1], 5: [1, 0, 1]})
    assert sets.num_sets == 4
    assert sets.encode(torch.tensor([[[3, 4, 5]]])).tolist() == [[[2, 3, 3]]]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ((1, {}), ["num_leaves", "2", "1"]),
        ((3, {2: [0, 1]}), ["superset_map", "[3]", "[2]"]),
        ((3, {3: []}), ["superset_map", "value 3", "0..2", "[]"]),
        ((3, {3: [1, 3]}), ["value 3", "0..2", "[1, 3]"]),
        ((3, {3: [-1, 1]}), ["value 3", "[-1, 1]"]),
        ((3, {4: [0, 1]}), ["superset_map", "[3]", "[4]"]),
        ((3, {}, ["a"]), ["leaf_names", "3", "1"]),
    ],
)
def test_bad_superset_map(arguments, facts):
    with refusal(LabelSetError, *facts):
        LabelSets.from_superset_map(*arguments)


@pytest.mark.parametrize("labels", [[], [-1], [0, 2]])
def test_bad_label_sets_by_hand(labels):
    with refusal(LabelSetError, "'p'", "value 1", "0..1", labels):
        LabelSets(["a", "b"], {"p": Protocol((frozenset([0]), frozenset(labels)), 2)}, None)


@pytest.mark.parametrize(
    ("target", "cases", "facts"),
    [
        (torch.tensor([[[0, 4]]]), ["a"], ["target", "0..3", "cases a"]),
        (torch.tensor([[[0, -1]]]), ["a"], ["target", "0..3"]),
        (torch.tensor([[[0, 200]]], dtype=torch.uint8), ["a"], ["target", "0..3"]),
        (torch.tensor([[[0.5]]]), ["a"], ["target", "integers", "fractions"]),
        (torch.tensor([[[torch.nan]]]), ["a"], ["target", "integers", "NaN"]),
        (torch.tensor([[[torch.inf]]]), ["a"], ["target", "integers"]),
        (torch.tensor([[[True]]]), ["a"], ["integers", "torch.bool"]),
        (torch.zeros(1, 1, 2), ["z"], ["'z'", "label_sets.cases"]),
        (torch.zeros(2, 1, 2), ["a"], ["`cases`", "2", "1"]),
        (torch.zeros(1, 1, 2), None, ["`cases`"]),
    ],
)
def test_bad_target(target, cases, facts):
    with refusal(LabelSetError, *facts):
        LabelSets.from_dataset_json(DATASET).encode(target, cases)


def test_bad_values_of_a_superset_map():
    with refusal(LabelSetError, "target", "0..3"):
        LabelSets.from_superset_map(3, {3: [0, 1]}).encode(torch.tensor([[[4]]]))


def test_fails_closed_as_the_contract_does():
    with refusal(LabelSetError, "'label_sets'"):
        LabelSets.from_dataset_json({"labels": DATASET["labels"]})


def test_examples_in_the_docstrings_run():
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_a_value_that_may_be_anything():
    sets = LabelSets.from_superset_map(3, {3: [1, 2]}, ignore_value=255)
    encoded = sets.encode(torch.tensor([[[0, 255, 3, 1]]], dtype=torch.uint8)).flatten().tolist()
    assert [meaning_of(sets, index) for index in encoded] == [{0}, {0, 1, 2}, {1, 2}, {1}]
    with refusal(LabelSetError, "254"):
        sets.check_values(torch.tensor([[[254]]]), ["a"])
    with refusal(LabelSetError, "ignore_value"):
        LabelSets.from_superset_map(3, {3: [1, 2]}, ignore_value=3)


def test_an_undeclared_value_names_its_case():
    sets = LabelSets.from_dataset_json(DATASET)
    target = torch.zeros(2, 1, 3, dtype=torch.int16)
    sets.check_values(target, ["a", "b"])
    target[1, 0, 2] = 7
    with refusal(LabelSetError, "'b'", "7"):
        sets.check_values(target, ["a", "b"])
