"""Folds and random splits: stratified by protocol, subjects together, every leaf trained on in
every split.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import permutations

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import TRAINED, VALIDATED

SEED = 12345  # nnU-Net's own
ATTEMPTS = 20
Split = dict[str, list[str]]


@dataclass(frozen=True)
class Subject:
    """Cases that must stay together, their protocols and the leaves that they annotate."""

    cases: tuple[str, ...]
    stratum: tuple[str, ...]
    leaves: frozenset[str]


def subjects_of(
    contract: Contract, cases: Iterable[str], subject: Mapping[str, str] | None = None
) -> list[Subject]:
    """Subjects in the order of their first case; a case that `subject` leaves out is a subject of
    its own.
    """
    subject = subject or {}
    members: dict[tuple[bool, str], list[str]] = defaultdict(list)
    for case in sorted(cases):
        members[case in subject, subject.get(case, case)].append(case)
    return [
        Subject(
            tuple(names),
            tuple(sorted(contract.protocol_name(case) for case in names)),
            frozenset(leaf for case in names for leaf in contract.annotated(case)),
        )
        for names in members.values()
    ]


def joined_subjects(
    subjects: Sequence[Subject], groups: Iterable[Collection[str]]
) -> list[Subject]:
    """Return the subjects, those as one that share a group of cases (which have the same image)."""
    joined = list(subjects)
    for group in groups:
        parts = [subject for subject in joined if not set(subject.cases).isdisjoint(group)]
        if len(parts) < 2:
            continue
        whole = Subject(
            cases=tuple(sorted(case for part in parts for case in part.cases)),
            stratum=tuple(sorted(name for part in parts for name in part.stratum)),
            leaves=frozenset().union(*(part.leaves for part in parts)),
        )
        place = joined.index(parts[0])
        joined = [subject for subject in joined if subject not in parts]
        joined.insert(place, whole)
    return joined


def read_subjects(pattern: str, cases: Iterable[str]) -> dict[str, str]:
    """The subject of each case that a regular expression matches: its first group if it has one,
    else the match.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise LabelSetError(f"--subject '{pattern}': not a regular expression: {error}") from None
    matches = {case: expression.search(case) for case in cases}
    if not any(matches.values()):
        raise LabelSetError(f"--subject '{pattern}' matches no case; cases are {some(matches)}")
    return {
        case: match[1 if expression.groups else 0] or "" for case, match in matches.items() if match
    }


def always_trained(subjects: Sequence[Subject]) -> list[Subject]:
    """Subjects that alone annotate some leaf: without them in training nothing could be learnt
    about it.
    """
    annotating = Counter(leaf for subject in subjects for leaf in subject.leaves)
    return [
        subject for subject in subjects if any(annotating[leaf] == 1 for leaf in subject.leaves)
    ]


def k_folds(subjects: Sequence[Subject], k: int, seed: int = SEED) -> list[Split]:
    """Cross-validation: every subject is validated once, but for those of `always_trained`."""
    if k < 2:
        raise LabelSetError(f"Expected -k to be at least 2, but got {k}")
    kept = always_trained(subjects)
    alone = {id(subject) for subject in kept}
    free = [subject for subject in subjects if id(subject) not in alone]
    if len(free) < k:
        why = f" ({len(kept)} more must always be trained on)" if kept else ""
        raise LabelSetError(
            f"{k} folds are impossible with {len(free)} subject(s){why}: choose a smaller -k or "
            "--random"
        )
    safe = frozenset(leaf for subject in kept for leaf in subject.leaves)
    for attempt in range(ATTEMPTS):
        folds = [_Fold() for _ in range(k)]
        order = _shuffled(free, f"{seed}/{attempt}")
        # small subjects even out the sizes
        for subject in sorted(order, key=lambda subject: -len(subject.cases)):
            min(folds, key=lambda fold: (fold.strata[subject.stratum], fold.size)).add(subject)
        if _spread_leaves(folds, safe):
            return [_split(subjects, fold.members) for fold in folds]
    raise LabelSetError(
        f"no {k} folds were found that all train on every label, because too few subjects annotate "
        "some of them: choose a larger -k or --random"
    )


class _Fold:
    """Subjects that are validated together, counted by stratum and by leaf."""

    def __init__(self) -> None:
        self.members: list[Subject] = []
        self.strata: Counter[tuple[str, ...]] = Counter()
        self.leaves: Counter[str] = Counter()
        self.size = 0

    def add(self, subject: Subject) -> None:
        self.members.append(subject)
        self.strata[subject.stratum] += 1
        self.leaves.update(subject.leaves)
        self.size += len(subject.cases)

    def remove(self, subject: Subject) -> None:
        self.members.remove(subject)
        self.strata[subject.stratum] -= 1
        self.leaves.subtract(subject.leaves)
        self.size -= len(subject.cases)


@dataclass(frozen=True)
class _Move:
    """A subject that goes from one fold to another."""

    subject: Subject
    source: _Fold
    target: _Fold

    def apply(self) -> None:
        self.source.remove(self.subject)
        self.target.add(self.subject)

    def take_back(self) -> None:
        self.target.remove(self.subject)
        self.source.add(self.subject)


def _spread_leaves(folds: list[_Fold], safe: frozenset[str]) -> bool:
    """Move subjects until no fold holds all that annotate some leaf, `safe` leaves apart; False if
    that fails.

    Dealing gives two subjects of a stratum to two folds, so that only subjects that are alone in
    their stratum can be in the way. Moves that would make a stratum less even are not considered.
    """
    while captured := _captured(folds) - safe:
        moves = list(_possible_moves(folds, captured))
        results = [_result(move, folds, safe) for move in moves]
        best = min(range(len(moves)), key=results.__getitem__, default=None)
        if best is None or results[best][0] >= len(captured):
            return False
        moves[best].apply()
    return True


def _captured(folds: Sequence[_Fold]) -> set[str]:
    """Return the leaves that only subjects of one fold annotate."""
    holders = Counter(leaf for fold in folds for leaf, count in fold.leaves.items() if count > 0)
    return {leaf for leaf, number in holders.items() if number == 1}


def _possible_moves(folds: Sequence[_Fold], captured: set[str]) -> Iterator[_Move]:
    for source, target in permutations(folds, 2):
        for subject in source.members if len(source.members) > 1 else ():
            is_useful = bool(subject.leaves & captured)  # no other move can set a leaf free
            stratum = subject.stratum
            if is_useful and source.strata[stratum] > target.strata[stratum]:
                yield _Move(subject, source, target)


def _result(move: _Move, folds: Sequence[_Fold], safe: frozenset[str]) -> tuple[int, int]:
    """Return how many leaves are captured after a move, and how much the sizes differ."""
    move.apply()
    sizes = [fold.size for fold in folds]
    result = len(_captured(folds) - safe), max(sizes) - min(sizes)
    move.take_back()
    return result


def random_splits(
    subjects: Sequence[Subject], number: int, fraction: float, seed: int = SEED
) -> list[Split]:
    """Independent random splits, as in the paper (10, validating 0.1 of the cases).

    Subjects are drawn one by one from the stratum that is furthest from its share, never the last
    one of a leaf.
    """
    if number < 1:
        raise LabelSetError(f"Expected --random to be at least 1, but got {number}")
    if not 0 < fraction < 1:
        raise LabelSetError(f"Expected --val-fraction to be between 0 and 1, but got {fraction}")
    return [_random_split(subjects, fraction, f"{seed}/{index}") for index in range(number)]


def _random_split(subjects: Sequence[Subject], fraction: float, seed: str) -> Split:
    strata: dict[tuple[str, ...], list[Subject]] = defaultdict(list)
    for subject in _shuffled(subjects, seed):
        strata[subject.stratum].append(subject)
    annotating = Counter(leaf for subject in subjects for leaf in subject.leaves)
    wanted = fraction * sum(len(subject.cases) for subject in subjects)
    validation: list[Subject] = []
    drawn = 0
    # How far each stratum is beyond its share; the order of strata decides between equals.
    waiting = [
        (-fraction * len(members), index, members) for index, members in enumerate(strata.values())
    ]
    heapify(waiting)
    while (
        waiting and (drawn < wanted - 0.5 or not validation) and len(validation) < len(subjects) - 1
    ):
        beyond, index, members = heappop(waiting)
        if any(annotating[leaf] < 2 for leaf in members[-1].leaves):
            continue  # and never again, as leaves only become scarcer
        subject = members.pop()
        annotating.subtract(subject.leaves)
        validation.append(subject)
        drawn += len(subject.cases)
        if members:
            heappush(waiting, (beyond + 1, index, members))
    if not validation:
        raise LabelSetError(
            "nothing can be validated: there is one subject, or each one is the only one that "
            "annotates some label"
        )
    return _split(subjects, validation)


def _shuffled(subjects: Sequence[Subject], seed: str) -> list[Subject]:
    return random.Random(seed).sample(list(subjects), len(subjects))


def _split(subjects: Sequence[Subject], validation: Sequence[Subject]) -> Split:
    val = {case for subject in validation for case in subject.cases}
    train = [case for subject in subjects for case in subject.cases if case not in val]
    return {TRAINED: sorted(train), VALIDATED: sorted(val)}
