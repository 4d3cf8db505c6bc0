"""Interpretation of protocols, and remapping: what a voxel may be survives. No files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import distance_transform_edt

from nnunet_labelset.dataset_conversion.case import dilate, remap
from nnunet_labelset.dataset_conversion.meaning import (
    BACKGROUND,
    Interpretation,
    Mask,
    SourceProtocol,
    interpret,
)
from nnunet_labelset.io.volume import count_values

C = 5


def fs(*leaves: int) -> frozenset[int]:
    return frozenset(leaves)


def protocol_name(num_leaves, values, annotated=None, **more) -> SourceProtocol:
    """By default everything that has a value is annotated."""
    annotated = frozenset().union(*values.values()) if annotated is None else annotated
    return SourceProtocol(num_leaves, values, annotated, **more)


def outside_of(meaning: Interpretation) -> frozenset[int]:
    return meaning.protocol.sets[meaning.outside]


@given(st.data())
def test_protocol_keeps_the_truth(data):
    """An annotator follows a random protocol on known true leaves; the label-set of each voxel
    contains its true leaf, and is exactly what the annotator knew where nothing is withheld or
    merged.
    """
    foreground = st.frozensets(st.integers(1, C - 1))
    annotated = data.draw(foreground)
    withheld = data.draw(foreground)
    mask = data.draw(
        st.sampled_from(
            [Mask.NONE, Mask.FILE] + ([Mask.LABELLED] if len(annotated) == C - 1 else [])
        )
    )
    values = {10 + leaf: fs(leaf) for leaf in range(1, C)}
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    truth = rng.integers(0, C, 200)
    inside = truth > 0  # an exact brain mask
    if len(annotated) == C - 1:
        inside = inside | (rng.random(200) < 0.2)  # fully annotated: the mask may be too large
    labels = np.where(np.isin(truth, list(annotated)), truth + 10, 0)
    meaning = interpret(
        protocol_name(C, values, annotated, withheld=withheld, mask=mask), set(labels.tolist())
    )
    target = remap(labels, meaning.values, C)
    if mask is Mask.FILE:
        target[(labels == 0) & ~inside] = meaning.outside
    sets = meaning.protocol.sets
    assert meaning.protocol.annotated - BACKGROUND == annotated - withheld
    hidden = set(range(1, C)) - annotated | withheld
    for true, label, value, within in zip(truth, labels, target, inside, strict=True):
        stored = sets[value]
        assert true in stored
        if label and true not in hidden:
            assert stored == {true}
        elif true in hidden:
            assert stored >= hidden  # nothing tells withheld and unannotated leaves apart
            assert len(stored) > 1
        elif mask is Mask.FILE and not within:
            assert stored == BACKGROUND
    if mask is Mask.FILE and len(annotated) < C - 2:
        assert 0 not in meaning.inside


def test_one_unannotated_leaf_in_a_mask_is_not_taken_for_certain():
    meaning = interpret(
        protocol_name(C, {1: fs(1), 2: fs(2), 3: fs(3)}, mask=Mask.FILE), {0, 1, 2, 3}
    )
    assert meaning.inside == {0, 4}
    assert meaning.background_added


def test_withholding_a_part_of_a_contour_leaves_unlabelled_voxels_as_they_were():
    """1 and 2 were drawn as one and 3 was not: background stays possible at the rim of the mask."""
    for withheld, unlabelled, contour in (
        (fs(), fs(0, 3), fs(1, 2)),
        (fs(1), fs(0, 3), fs(1, 2)),
        (fs(1, 2), fs(1, 2, 3), fs(1, 2, 3)),
    ):
        source = protocol_name(4, {1: fs(1, 2)}, withheld=withheld, mask=Mask.FILE)
        meaning = interpret(source, {0, 1})
        assert meaning.protocol.sets[meaning.values[0]] == unlabelled
        assert meaning.protocol.sets[meaning.values[1]] == contour


def test_one_withheld_leaf_is_not_taken_for_certain_and_two_need_no_background():
    values = {leaf: fs(leaf) for leaf in range(1, C)}
    one = interpret(protocol_name(C, values, withheld=fs(2), mask=Mask.FILE), set(range(C)))
    assert one.label_set(2) == one.inside == {0, 2}
    two = interpret(protocol_name(C, values, withheld=fs(2, 3), mask=Mask.FILE), set(range(C)))
    assert two.label_set(2) == two.label_set(3) == {2, 3}
    assert two.inside == BACKGROUND


def test_leaf_inside_a_larger_set_is_accounted_for():
    """FeTA: white matter includes the corpus callosum, so unlabelled voxels are background and
    nothing else.
    """
    meaning = interpret(protocol_name(3, {1: fs(1, 2)}, mask=Mask.LABELLED), {0, 1})
    assert meaning.inside == BACKGROUND
    assert not meaning.protocol.has_ignore
    assert meaning.protocol.sets[1] == {1, 2}


def test_absorbed_leaf():
    protocol = protocol_name(
        4, {1: fs(1), 2: fs(2), 3: fs(3)}, annotated=fs(1, 2), absorbs={1: fs(3)}, mask=Mask.FILE
    )
    meaning = interpret(protocol, {0, 1, 2})
    assert meaning.label_set(1) == {1, 3}
    assert meaning.label_set(2) == {2}
    assert meaning.inside == BACKGROUND
    withheld = protocol_name(
        4, protocol.values, withheld=fs(3), absorbs=protocol.absorbs, mask=Mask.FILE
    )
    meaning = interpret(withheld, {0, 1, 2, 3})
    sets = {value: meaning.label_set(value) for value in (1, 2, 3)}
    assert sets == {1: fs(1, 3), 2: fs(2), 3: fs(1, 3)}


def test_inference_and_contradiction():
    protocol = protocol_name(
        4, {1: fs(1), 2: fs(2), 3: fs(3)}, annotated=fs(1), varies=fs(2), mask=Mask.FILE
    )
    assert interpret(protocol, {0, 1, 2}).inside == {0, 3}
    assert interpret(protocol, {0, 1}).inside == {2, 3}
    assert interpret(protocol, {0, 1, 3}).contradicted[3] == {3}


@given(st.lists(st.integers(0, 300), min_size=1, max_size=50), st.integers(0, 5))
def test_count_and_remap(values, seed):
    labels = np.array(values, dtype=np.int32)
    assert count_values(labels) == {value: values.count(value) for value in set(values)}
    assert count_values(labels - 7) == {value - 7: values.count(value) for value in set(values)}
    rng = np.random.default_rng(seed)
    table = {value: int(rng.integers(0, 9)) for value in set(values)}
    result = remap(labels, table, 9)
    assert result.dtype == np.uint8
    assert result.tolist() == [table[value] for value in values]


@given(
    st.integers(0, 10**6),
    st.floats(0, 6),
    st.tuples(*[st.sampled_from([0.43, 0.8, 1.0, 2.5])] * 3),
    st.sampled_from([0.0, 0.002, 0.05, 1.0]),
)
def test_dilation_is_a_distance(seed, distance, spacing, density):
    region = np.random.default_rng(seed).random((9, 11, 13)) < density
    expected = (
        distance_transform_edt(~region, sampling=spacing) <= distance if region.any() else region
    )
    dilated = dilate(region, distance, spacing)
    # A voxel exactly at the distance may fall on either side by rounding.
    edge = np.abs(distance_transform_edt(~region, sampling=spacing) - distance) < 1e-4
    assert np.array_equal(dilated[~edge], expected[~edge])


X, XY = fs(0, 4), fs(3, 4)
UNLABELLED = {  # the second table of docs/manifest.md: leaves drawn -> (inside, outside) by mask
    (1, 2, 3, 4): {
        Mask.FILE: (fs(0), fs(0)),
        Mask.BODY: (fs(0), fs(0)),
        Mask.LABELLED: (fs(0), fs(0)),
        Mask.NONE: (fs(0), fs(0)),
    },
    (1, 2, 3): {
        Mask.FILE: (X, fs(0)),
        Mask.BODY: (X, fs(0)),
        Mask.LABELLED: (X, X),
        Mask.NONE: (X, X),
    },
    (1, 2): {
        Mask.FILE: (XY, fs(0)),
        Mask.BODY: (XY | {0}, fs(0)),
        Mask.LABELLED: (XY | {0}, XY | {0}),
        Mask.NONE: (XY | {0}, XY | {0}),
    },
}


@pytest.mark.parametrize("mask", list(Mask))
@pytest.mark.parametrize("drawn", UNLABELLED)
def test_unlabelled_voxels_as_the_documents_say(drawn, mask):
    values = {leaf: fs(leaf) for leaf in range(1, C)}
    meaning = interpret(protocol_name(C, values, fs(*drawn), mask=mask), set(drawn))
    assert (meaning.inside, outside_of(meaning)) == UNLABELLED[drawn][mask]
    assert meaning.is_complete == (mask is Mask.FILE and len(drawn) == C - 1)
    assert {leaf: meaning.label_set(leaf) for leaf in drawn} == {leaf: fs(leaf) for leaf in drawn}
    assert meaning.protocol.annotated - BACKGROUND == set(drawn)
    assert meaning.contradicted == {leaf: fs(leaf) for leaf in range(1, C) if leaf not in drawn}


def test_partly_drawn_is_as_good_as_unlabelled():
    values = {leaf: fs(leaf) for leaf in range(1, C)}
    meaning = interpret(protocol_name(C, values, fs(1, 2), partly=fs(3)), {1, 2, 3})
    assert meaning.label_set(3) == meaning.inside == {0, 3, 4}
    assert meaning.contradicted == {4: fs(4)}
