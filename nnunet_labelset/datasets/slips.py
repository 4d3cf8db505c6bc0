"""Likely slips in what was declared: told by `convert`, `merge`, `annotate` and `verify`, never an
error.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from nnunet_labelset.contract import Contract, LabelSet
from nnunet_labelset.io.files import checksum
from nnunet_labelset.io.text import plain_name, some

Case = TypeVar("Case")
FEW = 3  # cases that annotate a label
MANY = 10  # cases of a data set in which that is suspicious
MOST = 0.5  # of an image, and no label fills so much in the other cases


@dataclass(frozen=True)
class Evidence:
    """A contract, its training cases, and their voxels by value, as far as they are known."""

    contract: Contract
    cases: Sequence[str]
    values: Mapping[str, Mapping[int, int]]

    @property
    def labels(self) -> dict[int, str]:
        """The foreground labels by value."""
        return dict(enumerate(self.contract.leaf_names[1:], start=1))

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """Cases by protocol."""
        groups = defaultdict(list)
        for case in self.cases:
            groups[self.contract.cases[case]].append(case)
        return groups

    @cached_property
    def annotating(self) -> dict[int, list[str]]:
        """Cases that annotate each label."""
        cases: dict[int, list[str]] = {leaf: [] for leaf in self.labels}
        for case in self.cases:
            for leaf in self.contract.protocol(case).annotated - {0}:
                cases[leaf].append(case)
        return cases

    @cached_property
    def shown(self) -> dict[str, LabelSet]:
        """The labels that some voxel of a case certainly is."""
        shown = {}
        for case in self.cases:
            sets = self.contract.protocol(case).sets
            present = (sets[value] for value in self.values[case] if 0 <= value < len(sets))
            shown[case] = frozenset().union(*(leaves for leaves in present if len(leaves) == 1))
        return shown

    def share(self, case: str, leaf: int) -> float:
        """Return the share of voxels of a case that certainly are this label."""
        sets = self.contract.protocol(case).sets
        values = self.values[case]
        certain = (values.get(value, 0) for value, labels in enumerate(sets) if labels == {leaf})
        return sum(certain) / max(1, sum(values.values()))

    def shown_in(self, cases: Iterable[str]) -> LabelSet:
        """The labels that some voxel of some of these cases certainly is."""
        return frozenset().union(*(self.shown[case] for case in cases))

    def quoted(self, leaves: LabelSet) -> str:
        return " + ".join(f"'{self.contract.leaf_names[leaf]}'" for leaf in sorted(leaves))


def find_slips(
    contract: Contract,
    training: Iterable[str],
    values: Mapping[str, Mapping[int, int]],
    images: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yield what is probably a slip, in words.

    `values` are the voxels by value of training cases; where some are unknown, nothing is said
    about voxels. `images` are checksums of the first image of cases.
    """
    cases = [case for case in training if case in contract.cases]
    evidence = Evidence(contract, cases, values)
    for check in CHECKS:
        yield from check(evidence)
    if all(case in values for case in cases):
        for check in VOXEL_CHECKS:
            yield from check(evidence)
    for group in same_images(images or {}):
        yield (
            f"the same image in several cases: {some(group)}: keep one, or let "
            f"'nnunet_labelset splits' make the folds, which keeps them in one"
        )


def same_images(images: Mapping[Case, str]) -> list[list[Case]]:
    """Return the cases that have the same image, by checksums."""
    cases = defaultdict(list)
    for case, digest in images.items():
        cases[digest].append(case)
    return [group for group in cases.values() if len(group) > 1]


def file_checksums(files: Mapping[str, Path]) -> dict[str, str]:
    """Return checksums of the files that have the size of another one; the others are unique."""
    by_size = defaultdict(list)
    for case, path in files.items():
        with suppress(OSError):
            by_size[path.stat().st_size].append(case)
    checksums = {}
    for cases in by_size.values():
        for case in cases if len(cases) > 1 else ():
            with suppress(OSError):
                checksums[case] = checksum(files[case])
    return checksums


def _similar_names(evidence: Evidence) -> Iterator[str]:
    by_name = defaultdict(list)
    for name in evidence.contract.leaf_names:
        by_name[plain_name(name)].append(name)
    for names in by_name.values():
        if len(names) > 1:
            shown = " and ".join(f"'{name}'" for name in names)
            yield f"the labels {shown} differ by capitals or blanks only: are they one label?"


def _never_annotated(evidence: Evidence) -> Iterator[str]:
    for leaf, name in evidence.labels.items():
        if not evidence.annotating[leaf] and evidence.cases:
            yield (
                f"'{name}' is annotated in no training case: it cannot be learned here; add cases, "
                f"or remove it (a model that knows it can keep it: 'nnunet_labelset extend')"
            )


def _rarely_annotated(evidence: Evidence) -> Iterator[str]:
    total = len(evidence.cases)
    for leaf, name in evidence.labels.items():
        cases = evidence.annotating[leaf]
        if total >= MANY and 0 < len(cases) <= FEW:
            yield (
                f"'{name}' is annotated in {len(cases)} of {total} training cases only "
                f"({some(cases)}): is that what you meant?"
            )


def _without_voxels(evidence: Evidence) -> Iterator[str]:
    shown = evidence.shown_in(evidence.cases)
    for leaf, name in evidence.labels.items():
        cases = evidence.annotating[leaf]
        if cases and leaf not in shown:
            yield (
                f"'{name}' is declared annotated in {len(cases)} training case(s), but has no "
                f"voxel in any of them"
            )


def _group_without_voxels(evidence: Evidence) -> Iterator[str]:
    """Labels that a whole group lacks, while others have them: were they never drawn there?"""
    shown = evidence.shown_in(evidence.cases)
    for group, cases in evidence.groups.items():
        annotated = evidence.contract.protocols[group].annotated - {0}
        for leaf in sorted((annotated & shown) - evidence.shown_in(cases)):
            yield (
                f"'{evidence.labels[leaf]}' is declared annotated in group '{group}' "
                f"({len(cases)} case(s): {some(cases, 3)}), but none of them has a voxel of it: "
                f"if it was not drawn there, declare it missing"
            )


def _merged_without_voxels(evidence: Evidence) -> Iterator[str]:
    for group, cases in evidence.groups.items():
        sets = evidence.contract.protocols[group].sets[: evidence.contract.num_leaves]
        for leaves in dict.fromkeys(leaves for leaves in sets if len(leaves) > 1):
            values = {value for value, labels in enumerate(sets) if labels & leaves}
            is_shown = any(values & set(evidence.values[case]) for case in cases)
            if 0 not in leaves and not is_shown:
                yield (
                    f"{evidence.quoted(leaves)} are declared as drawn as one in group '{group}' "
                    f"({len(cases)} case(s): {some(cases, 3)}), but none of them has a voxel of "
                    f"it: the network learns that there is none"
                )


def _inverted(evidence: Evidence) -> Iterator[str]:
    """Labels that fill most of one image and little of the others: masks with inverted values."""
    for leaf, name in evidence.labels.items():
        shares = {case: evidence.share(case, leaf) for case in evidence.annotating[leaf]}
        usual = statistics.median(shares.values()) if len(shares) > 2 else 1.0
        for case, share in shares.items():
            if share > MOST and usual < MOST / 2:
                yield (
                    f"'{name}' fills {share:.0%} of the image of case {case}, and {usual:.1%} of "
                    f"the usual one: is its mask inverted?"
                )


CHECKS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    _similar_names,
    _never_annotated,
    _rarely_annotated,
)
VOXEL_CHECKS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    _without_voxels,
    _group_without_voxels,
    _merged_without_voxels,
    _inverted,
)
