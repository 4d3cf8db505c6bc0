"""Declare what is annotated in a data set that exists: the `label_sets` block of dataset.json.

Label maps stay as they are, and so does all that nnU-Net has preprocessed from them: an unlabelled
voxel (0) of a case in which the spleen was not drawn is `background`, which stands for {background,
spleen} in that case. Only where masks are given (see `annotate_masks`), more is known than value 0
can say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, Contract, LabelSet, Protocol
from nnunet_labelset.contract.annotated_table import HINT, refuse_unknown
from nnunet_labelset.datasets.verify.case_facts import CaseFacts, read_values
from nnunet_labelset.errors import LabelSetError, did_you_mean, near_miss
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.tables import csv_text
from nnunet_labelset.io.text import listed, some
from nnunet_labelset.nnunet.names import DATASET, IMAGES_TRAINING
from nnunet_labelset.nnunet.raw import OLD_LABEL_MAPS, TRAINING, RawCase, raw_cases

BEFORE = "dataset_before_annotate.json"  # the old dataset.json, for --undo
COMPLETE = "complete"
SUSPICIOUS = 0.5  # a leaf that so many of the cases have is missed where it is not
Values = Mapping[str, Mapping[int, int]]  # case -> value -> voxels
Merged = Mapping[str, Sequence[LabelSet]]  # case -> what was drawn as one in it


@dataclass(frozen=True)
class Existing:
    """A raw data set, its leaves, and the cases that have a label map."""

    folder: Path
    dataset_json: Mapping[str, Any]
    labels: Contract
    cases: tuple[RawCase, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases)

    @property
    def training(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases if case.part == TRAINING)


def open_dataset(folder: Path, leaves: Sequence[str] = ()) -> Existing:
    """`leaves` names the values 1, 2, ... of a data set whose `labels` are regions."""
    dataset_json = read_json(folder / DATASET)
    if any(folder.glob(f"labels*{OLD_LABEL_MAPS}")):
        raise LabelSetError(
            f"{folder}: --mask has changed label maps: 'nnunet_labelset annotate --undo' comes first"
        )
    if BLOCK in dataset_json and not (folder / BEFORE).is_file():
        raise LabelSetError(
            f"{folder / DATASET} has a '{BLOCK}' block that annotate did not write: edit it by hand, or delete "
            f"it from the file first if it is to be replaced"
        )
    named = {name: value for value, name in enumerate(["background", *leaves])} if leaves else None
    try:
        labels = Contract.of_labels(dataset_json, named)
    except LabelSetError as error:
        hint = "" if leaves else _regions_hint(dataset_json)
        raise LabelSetError(f"{folder / DATASET}: {error}{hint}") from None
    cases = [case for case in raw_cases(folder, dataset_json) if case.label is not None]
    if not cases:
        raise LabelSetError(f"{folder}: no training cases: expected images in {IMAGES_TRAINING}")
    return Existing(folder, dataset_json, labels, tuple(cases))


def _regions_hint(dataset_json: Mapping[str, Any]) -> str:
    labels = dataset_json.get("labels")
    has_regions = isinstance(labels, Mapping) and any(
        isinstance(value, (list, tuple)) for value in labels.values()
    )
    return "; here: --leaves NAME_OF_1 NAME_OF_2 ..." if has_regions else ""


def matching(patterns: Iterable[str], names: Sequence[str]) -> set[str]:
    """Cases that are named, or match a pattern such as `site2_*`; a pattern that matches none is an
    error.
    """
    found: set[str] = set()
    for pattern in patterns:
        here = {name for name in names if fnmatchcase(name, pattern)}
        if not here:
            hint = near_miss(pattern, names) or f"; cases are {some(names)}"
            raise LabelSetError(f"--in {pattern}: no such case{hint}")
        found |= here
    return found


def declared_missing(
    data: Existing, groups: Iterable[tuple[Sequence[str], Sequence[str]]]
) -> dict[str, LabelSet]:
    """What each case lacks, from `(leaves, patterns of cases)`; every leaf that is not named is
    annotated.
    """
    missing: dict[str, set[int]] = {name: set() for name in data.names}
    foreground = data.labels.leaf_names[1:]
    for leaves, patterns in groups:
        for leaf in leaves:
            if leaf in (data.labels.regions or {}) and leaf not in foreground:
                raise LabelSetError(
                    f"--missing {leaf}: a region: name its leaves ({', '.join(foreground)}); was one outline drawn "
                    f"around all of it? Then --merged '{leaf}'"
                )
            if leaf not in foreground:
                raise LabelSetError(
                    f"--missing {leaf}: no such label{did_you_mean(leaf, foreground)}"
                )
        for name in matching(patterns, data.names):
            missing[name].update(data.labels.leaf_names.index(leaf) for leaf in leaves)
    return {name: frozenset(leaves) for name, leaves in missing.items()}


def declared_merged(
    data: Existing,
    groups: Iterable[tuple[Sequence[str], Sequence[str]]],
    missing: Mapping[str, LabelSet],
) -> Merged:
    """What was drawn as one in each case, from `(leaves or a region, patterns of cases)`."""
    merged: dict[str, tuple[LabelSet, ...]] = {}
    known = {name: frozenset([leaf]) for leaf, name in enumerate(data.labels.leaf_names) if leaf}
    known |= data.labels.regions or {}
    for names, patterns in groups:
        for name in names:
            if name not in known:
                raise LabelSetError(f"--merged {name}: no such label{did_you_mean(name, known)}")
        leaves = frozenset[int]().union(*(known[name] for name in names))
        if len(leaves) < 2:
            raise LabelSetError(
                f"--merged {' '.join(names)}: expected the labels that were drawn as one, two or more"
            )
        for case in sorted(matching(patterns, data.names)):
            if both := [data.labels.leaf_names[leaf] for leaf in sorted(leaves & missing[case])]:
                raise LabelSetError(
                    f"{case}: '{both[0]}' is said to be missing, and to be merged with others"
                )
            merged[case] = (*merged.get(case, ()), leaves)
    return merged


def missing_by_table(
    data: Existing, annotated: Mapping[str, LabelSet], table: str | Path
) -> dict[str, LabelSet]:
    """What each case of a table lacks; training cases that it leaves out, and cases that do not
    exist, are errors.
    """
    refuse_unknown(
        table, annotated, dict.fromkeys(data.names), f"with a label map in {data.folder.name}"
    )
    if absent := [name for name in data.training if name not in annotated]:
        raise LabelSetError(
            f"{table}: {len(absent)} training case(s) not listed: {some(absent)}: add a line for each"
        )
    return {name: data.labels.full_set - {0} - leaves for name, leaves in annotated.items()}


def contract_of(
    data: Existing, missing: Mapping[str, LabelSet], masked: Collection[str], merged: Merged
) -> Contract:
    """A protocol for every set of missing leaves: there, `background` may be any of them; with a
    mask, `ignore` may.

    The value of a leaf that was drawn as one with others may be any of them.
    """
    protocols, cases = {}, {}
    has_ignore = data.labels.has_ignore or bool(masked)
    plain = Protocol.complete(data.labels.num_leaves, has_ignore).sets
    for name, leaves in missing.items():
        groups = merged.get(name, ())
        cases[name] = protocol_name(data.labels, leaves, groups)
        if name in masked:
            cases[name] += " (mask)"
            # One leaf alone would turn "not drawn" into "certainly this leaf": no mask is that
            # exact.
            sets = [*plain[:-1], leaves if len(leaves) > 1 else leaves | {0}]
        else:
            sets = [frozenset([0]) | leaves, *plain[1:]]
        for group in groups:
            for leaf in group:
                sets[leaf] |= group
        protocols[cases[name]] = Protocol(tuple(sets), data.labels.num_leaves)
    return replace(
        data.labels, protocols=dict(sorted(protocols.items())), cases=cases, has_ignore=has_ignore
    )


def protocol_name(labels: Contract, missing: LabelSet, merged: Iterable[LabelSet] = ()) -> str:
    """What was drawn, in words."""

    def joined(leaves: LabelSet) -> str:
        return "+".join(labels.leaf_names[leaf] for leaf in sorted(leaves))

    present = labels.full_set - {0} - missing
    parts = [f"{joined(leaves)} merged" for leaves in merged]
    if missing:
        only = 0 < len(present) < len(missing)
        parts.insert(0, f"only {joined(present)}" if only else f"without {joined(missing)}")
    return ", ".join(parts) or COMPLETE


def read_all_values(data: Existing, processes: int) -> Values:
    """The values of all label maps; whatever cannot be read or is no label is one error that lists
    all files.
    """
    facts: dict[RawCase, CaseFacts] = dict(
        map_parallel(read_values, data.cases, processes, "reading label maps")
    )
    last = len(data.labels.value_names) - 1
    problems = []
    for case in data.cases:
        problems += [f"{path}: {text}" for path, text in facts[case].problems]
        if unknown := [value for value in facts[case].values or () if not 0 <= value <= last]:
            problems.append(
                f"{case.label}: values that 'labels' (0..{last}) does not declare: {some(unknown)}"
            )
    if problems:
        raise LabelSetError(listed(f"{len(problems)} problem(s), nothing was written:", problems))
    return {case.name: facts[case].values or {} for case in data.cases}


def check_values(
    data: Existing, missing: Mapping[str, LabelSet], values: Values, merged: Merged
) -> list[str]:
    """Voxels against what is declared: a case that has what it is said to lack is an error, the
    rest are notes.
    """
    names = data.labels.leaf_names
    wrong = [
        f"{case} has {values[case][leaf]} voxels of '{names[leaf]}', but is said to lack it"
        for case, leaves in missing.items()
        for leaf in sorted(leaves)
        if leaf in values[case]
    ]
    if wrong:
        raise LabelSetError(
            listed("nothing was written: correct the declaration, or the label maps:", wrong)
        )
    notes = []
    training = [case for case in data.training if case in missing]
    for region, members in (data.labels.regions or {}).items():
        apart = [case for case in training if members & missing[case] and members - missing[case]]
        if apart:
            notes.append(
                f"in {len(apart)} case(s) ({some(apart, 3)}) only a part of '{region}' is missing: what was drawn of "
                f"it is taken at its word; was one outline drawn around '{region}'? Say --merged, not --missing"
            )
    for group in dict.fromkeys(group for groups in merged.values() for group in groups):
        apart = [
            case
            for case, groups in merged.items()
            if group in groups and len(group & set(values[case])) > 1
        ]
        if apart:
            drawn_apart = " and of ".join(
                f"'{names[leaf]}'" for leaf in sorted(group) if leaf in values[apart[0]]
            )
            notes.append(
                f"{len(apart)} case(s) ({some(apart, 3)}) have voxels of {drawn_apart}: were they drawn as one? "
                f"From now on they are not told apart there"
            )
    for leaf in range(1, len(names)):
        together = {
            case for case, groups in merged.items() if any(leaf in group for group in groups)
        }
        drawn = [case for case in training if leaf not in missing[case] and case not in together]
        absent = [case for case in drawn if leaf not in values[case]]
        if not drawn:
            notes.append(
                f"'{names[leaf]}' is annotated in no training case: nothing can learn it here; a model that knows it "
                f"already can keep it ('nnunet_labelset extend')"
            )
        elif absent:
            notes.append(
                f"'{names[leaf]}' has no voxel in {len(absent)} of the {len(drawn)} training cases that annotate it "
                f"({some(absent, 3)}): fine if there is none in these images; if it was not drawn, declare it missing"
            )
    return notes


def suggestion(data: Existing, values: Values) -> str:
    """A table to correct: which leaf has voxels in which case, with a hint where its absence is
    suspicious.
    """
    leaves = dict(enumerate(data.labels.leaf_names[1:], start=1))
    present = Counter(leaf for name in data.names for leaf in values[name])
    rows = []
    for name in data.names:
        cells = ["yes" if leaf in values[name] else "no" for leaf in leaves]
        hints = [
            f"{leaves[leaf]} is in {present[leaf]} of {len(data.names)} cases: forgotten here?"
            for leaf in leaves
            if leaf not in values[name] and present[leaf] >= SUSPICIOUS * len(data.names)
        ]
        rows.append([name, *cells, "; ".join(hints)])
    return csv_text(["case", *leaves.values(), HINT], rows)
