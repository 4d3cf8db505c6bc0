"""The raw data set that `annotate` works on, and the values of its label maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.datasets.annotate.history import has_history
from nnunet_labelset.datasets.verify.case_facts import CaseFacts, read_values
from nnunet_labelset.errors import LabelSetError, near_miss
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.text import composed, listed, some
from nnunet_labelset.nnunet.names import DATASET, IMAGES_TRAINING
from nnunet_labelset.nnunet.raw import TRAINING, RawCase, raw_cases, why_values_come_first

Values = Mapping[str, Mapping[int, int]]  # case -> value -> voxels


@dataclass(frozen=True)
class LabelledDataset:
    """A raw data set: its labels, the cases that have a label map, and what was declared so far."""

    folder: Path
    dataset_json: Mapping[str, Any]
    labels: Contract
    cases: tuple[RawCase, ...]
    declared: Contract | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases)

    @property
    def training(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases if case.part == TRAINING)

    @property
    def test(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases if case.part != TRAINING)

    @cached_property
    def label_maps(self) -> dict[str, Path]:
        return {case.name: case.label for case in self.cases if case.label is not None}

    @property
    def undeclared(self) -> tuple[str, ...]:
        """Cases that the block does not list."""
        known = self.declared.cases if self.declared else {}
        return tuple(name for name in self.names if name not in known)


def open_dataset(
    folder: Path, label_names: Sequence[str] = (), add: bool = False
) -> LabelledDataset:
    """Read a data set.

    `label_names` names the values 1, 2, ... of a data set whose `labels` are regions. A block that
    `annotate` did not write may be extended (`add`), but not replaced.
    """
    dataset_json = read_json(folder / DATASET)
    if BLOCK in dataset_json and not has_history(folder) and not add:
        raise LabelSetError(
            f"{folder / DATASET} has a '{BLOCK}' block that annotate did not write: extend it with "
            f"--add, edit it by hand, or delete it from the file first"
        )
    labels = _labels(folder, dataset_json, label_names)
    declared = Contract.from_dataset_json(dataset_json, folder) if BLOCK in dataset_json else None
    cases = [case for case in raw_cases(folder, dataset_json) if case.label is not None]
    if not cases:
        raise LabelSetError(f"{folder}: no training cases: expected images in {IMAGES_TRAINING}")
    data = LabelledDataset(folder, dataset_json, labels, tuple(cases), declared)
    if both := set(data.training) & set(data.test):
        raise LabelSetError(
            f"{folder}: {some(sorted(both))}: in both training and test: one declaration would "
            f"speak of two label maps: rename or remove one of them"
        )
    return data


def _labels(folder: Path, dataset_json: Mapping[str, Any], label_names: Sequence[str]) -> Contract:
    values = {name: value for value, name in enumerate(["background", *label_names])}
    try:
        return Contract.of_labels(dataset_json, values if label_names else None)
    except LabelSetError as error:
        hint = "" if label_names else _labels_hint(folder, dataset_json)
        raise LabelSetError(f"{folder / DATASET}: {error}{hint}") from None


def _labels_hint(folder: Path, dataset_json: Mapping[str, Any]) -> str:
    """What to do about labels in a form that nnU-Net v2 or the contract does not know."""
    labels = dataset_json.get("labels")
    if not isinstance(labels, Mapping):
        return ""
    if any(isinstance(value, (list, tuple)) for value in labels.values()):
        return "; here: --value-names NAME_OF_1 NAME_OF_2 ..."
    if all(str(name).isdigit() for name in labels):
        return f"; {why_values_come_first(folder, dataset_json)}"
    return ""


def matching_cases(
    patterns: Iterable[str], data: LabelledDataset, include_test: bool = False
) -> set[str]:
    """Return the cases that are named, or match a pattern such as `site2_*`.

    An exact name wins over the pattern that it also is (`pat[1]`). Patterns match training cases
    and, if asked for, test cases. A pattern without any case is an error.
    """
    names = data.names if include_test else data.training
    cases: set[str] = set()
    for pattern in map(composed, patterns):
        exact = {name for name in data.names if composed(name) == pattern}
        matches = exact or {name for name in names if fnmatchcase(composed(name), pattern)}
        if not matches:
            raise LabelSetError(f"--in {pattern}: no such {_no_match(pattern, data, names)}")
        cases |= matches
    return cases


def _no_match(pattern: str, data: LabelledDataset, names: Sequence[str]) -> str:
    if any(fnmatchcase(name, pattern) for name in data.test):
        return "training case: add --test if test cases are meant"
    return "case" + (near_miss(pattern, names) or f"; cases are {some(names)}")


def unrequested_test_cases(patterns: Iterable[str], data: LabelledDataset) -> set[str]:
    """Return the test cases that patterns would match if test cases were asked for."""
    patterns = [pattern for pattern in patterns if pattern not in data.names]
    return {name for name in data.test if any(fnmatchcase(name, text) for text in patterns)}


def read_all_values(data: LabelledDataset, processes: int) -> Values:
    """Return the values of all label maps; one error lists all files with problems."""
    facts: dict[RawCase, CaseFacts] = dict(
        map_parallel(read_values, data.cases, processes, "reading label maps")
    )
    last = len(data.labels.value_names) - 1
    problems = []
    for case in data.cases:
        problems += [f"{path}: {text}" for path, text in facts[case].problems]
        unknown = [value for value in facts[case].values or () if not 0 <= value <= last]
        if unknown:
            problems.append(
                f"{case.label}: values that 'labels' (0..{last}) does not declare: {some(unknown)}"
            )
    if problems:
        raise LabelSetError(listed(f"{len(problems)} problem(s), nothing was written:", problems))
    return {case.name: facts[case].values or {} for case in data.cases}
