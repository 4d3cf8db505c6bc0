"""What several teachers say about a voxel, together with its annotation.

A teacher, such as a trained model, knows some labels. It says "this is a", or "this is none of the
labels that I know", which leaves every other label open. Statements that agree are joined; where
they contradict each other, each of the contradicting answers stays possible. Nothing that a teacher
says can widen what the annotation knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nnunet_labelset.contract import LabelSet, Protocol
from nnunet_labelset.contract.storage import store

NONE = 0  # the answer "none of the labels that I know"


@dataclass(frozen=True)
class Answer:
    """What a teacher says about every voxel: the leaf that it sees, or `NONE`."""

    leaf_map: np.ndarray
    known: LabelSet  # without background

    def __post_init__(self) -> None:
        assert NONE not in self.known


@dataclass(frozen=True)
class Completed:
    """The protocol of a completed case, and numbers of voxels."""

    protocol: Protocol
    open_before: int
    completed: int  # open before, with one label now
    enlarged: int  # voxels whose label-set had to be stored as a larger one


@dataclass(frozen=True)
class Taught(Completed):
    """A case whose teachers were asked."""

    narrowed: int  # voxels with fewer labels than before


def combined(annotated: LabelSet, claims: LabelSet, not_denied: LabelSet) -> LabelSet:
    """Return what a voxel may be.

    annotated: the label-set of its annotation. claims: the leaves that teachers see. not_denied:
    the leaves that no teacher without a claim has denied. A claim that nobody denies wins over
    "none of mine"; if every claim is denied, claims and denials stay side by side.
    """
    possible_claims = claims & annotated
    rest = not_denied & annotated
    if not rest:  # together the teachers deny all that the annotation allows
        return annotated
    if possible_claims & rest:
        return possible_claims
    return possible_claims | rest


def taught_sets(
    values: np.ndarray, answers: Sequence[Answer], protocol: Protocol
) -> tuple[np.ndarray, list[LabelSet]]:
    """Return the number of every voxel's label-set, and the label-sets by number."""
    full = protocol.full_set
    rows = np.stack([values.ravel(), *(answer.leaf_map.ravel() for answer in answers)])
    is_claimed = (rows[1:] != NONE).any(0)
    # Where nobody sees anything, the value decides: most voxels need no sorting.
    columns, inverse = np.unique(rows[:, is_claimed], axis=1, return_inverse=True)
    quiet_values = np.unique(rows[0, ~is_claimed])
    quiet = np.zeros((len(rows), len(quiet_values)), rows.dtype)
    quiet[0] = quiet_values
    numbers = np.empty(rows.shape[1], np.int64)
    numbers[is_claimed] = inverse.ravel()
    numbers[~is_claimed] = columns.shape[1] + np.searchsorted(quiet_values, rows[0, ~is_claimed])
    sets = []
    for value, *leaves in np.concatenate([columns, quiet], 1).T.tolist():
        denials = [
            answer.known for answer, leaf in zip(answers, leaves, strict=True) if leaf == NONE
        ]
        claims = frozenset(leaves) - {NONE}
        sets.append(combined(protocol.sets[value], claims, full.difference(*denials)))
    unique_sets = list(dict.fromkeys(sets))
    renumbered = np.array([unique_sets.index(labels) for labels in sets], np.int64)
    return renumbered[numbers].reshape(values.shape), unique_sets


def taught_values(
    values: np.ndarray, answers: Sequence[Answer], protocol: Protocol
) -> tuple[np.ndarray, np.ndarray, Taught]:
    """Return new values for a label map, where they say more than before, and what they mean."""
    numbers, sets = taught_sets(values, answers, protocol)
    counts = np.bincount(numbers.ravel(), minlength=len(sets)).tolist()
    storage = store(
        sets=sets,
        annotated=_annotated(protocol, answers, np.unique(values).tolist(), sets),
        num_leaves=protocol.num_leaves,
        voxels=dict(zip(sets, counts, strict=True)),
    )
    result = np.array([storage.value[labels] for labels in sets])[numbers]
    size_before = protocol.membership.sum(1)[values]
    size_after = storage.protocol.membership.sum(1)[result]
    is_narrowed = size_after < size_before
    enlarged = [
        count for labels, count in zip(sets, counts, strict=True) if labels in storage.enlarged
    ]
    taught = Taught(
        protocol=storage.protocol,
        open_before=int((size_before > 1).sum()),
        completed=int((is_narrowed & (size_after == 1)).sum()),
        narrowed=int(is_narrowed.sum()),
        enlarged=sum(enlarged),
    )
    return result, is_narrowed, taught


def _annotated(
    protocol: Protocol,
    answers: Sequence[Answer],
    values: Iterable[int],
    sets: Iterable[LabelSet],
) -> LabelSet:
    """Return the leaves that a training on the copy may take for annotated.

    Those that people drew, those that a teacher knows, and those about which nothing is open any
    more; background if that is all of them.
    """
    no_leaf: LabelSet = frozenset()
    stated = protocol.stated_sets
    in_question = no_leaf.union(*(stated.get(value, no_leaf) for value in values))
    still_open = no_leaf.union(*(labels for labels in sets if len(labels) > 1))
    leaves = protocol.annotated.union(*(answer.known for answer in answers))
    leaves |= in_question - still_open
    is_complete = leaves | {NONE} == protocol.full_set
    return leaves | {NONE} if is_complete else leaves
