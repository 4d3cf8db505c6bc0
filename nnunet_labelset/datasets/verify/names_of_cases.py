"""Which files and cases there are, against `dataset.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.datasets.verify.findings import Problem, Problems, doubt
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import case_files
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import DATASET, FIRST_CHANNEL, LISTED, NUM_TRAINING
from nnunet_labelset.nnunet.raw import TEST, TRAINING, RawCase, file_ending, image_files
from nnunet_labelset.nnunet.recommendation import paired_labels


@dataclass(frozen=True)
class RawDataset:
    """A raw data set and what is sound of its contract."""

    folder: Path
    dataset_json: Mapping[str, Any]
    cases: tuple[RawCase, ...]
    contract: Contract | None

    @cached_property
    def training(self) -> dict[str, RawCase]:
        return {case.name: case for case in self.cases if case.part == TRAINING}

    @cached_property
    def test(self) -> dict[str, RawCase]:
        return {case.name: case for case in self.cases if case.part == TEST}

    @property
    def declared(self) -> Mapping[str, Any] | None:
        """The cases of the block, or None if there is nothing sound to compare with."""
        block = self.dataset_json.get(BLOCK)
        cases = block.get("cases") if isinstance(block, Mapping) else None
        return cases if self.contract is not None and isinstance(cases, Mapping) else None


def check_names(data: RawDataset) -> Problems:
    """Yield every problem with names."""
    for check in CHECKS:
        yield from check(data)


def _check_number(data: RawDataset) -> Problems:
    if NUM_TRAINING not in data.dataset_json:
        yield Problem(DATASET, f"'{NUM_TRAINING}' is missing: nnU-Net needs it")
        return
    expected = data.dataset_json[NUM_TRAINING]
    number = len(data.training)
    if expected != number:
        yield Problem(
            DATASET,
            f"{NUM_TRAINING} is {expected}, but there are {number} training cases: set it",
        )


def _check_file_names(data: RawDataset) -> Problems:
    if LISTED not in data.dataset_json:
        yield from _check_folders(data, "Tr", data.training)
    yield from _check_folders(data, "Ts", data.test)


def _check_folders(data: RawDataset, suffix: str, cases: Mapping[str, RawCase]) -> Problems:
    ending = file_ending(data.dataset_json)
    for path in image_files(data.folder / f"images{suffix}", ending)[1]:
        yield Problem(
            path,
            f"not named {{case}}_XXXX{ending}: nnU-Net would misread the case; add the channel, "
            f"{FIRST_CHANNEL}",
        )
    for name, path in case_files(data.folder / f"labels{suffix}", ending).items():
        if name not in cases or not cases[name].images:
            yield doubt(
                path,
                f"label map without image: add images{suffix}/{name}{FIRST_CHANNEL}{ending} or "
                f"remove it",
            )


def _check_parts(data: RawDataset) -> Problems:
    for name in sorted(set(data.training) & set(data.test)):
        test_case = data.test[name]
        files = (*test_case.images, test_case.label)
        file = next((str(path.relative_to(data.folder)) for path in files if path), name)
        yield Problem(f"case '{name}'", f"in both training and test ({file}): remove one of them")


def _check_training_cases(data: RawDataset) -> Problems:
    if data.declared is None:
        return
    for name, case in data.training.items():
        if name not in data.declared:
            yield Problem(
                case.label or name,
                f"no protocol: declare the case with 'nnunet_labelset annotate --add', or add it "
                f"to {BLOCK}.cases in dataset.json",
                f"case '{name}'",
            )


def _check_test_cases(data: RawDataset) -> Problems:
    if data.declared is None:
        return
    names = [name for name, case in data.test.items() if case.label and name not in data.declared]
    if names:
        yield doubt(
            f"{len(names)} test label map(s)",
            f"no protocol for {some(names)}: 'evaluate' cannot know what they annotate; declare "
            f"them with 'nnunet_labelset annotate --add', or in {BLOCK}.cases of dataset.json",
        )


def _check_declared_cases(data: RawDataset) -> Problems:
    for name in data.declared or ():
        if name not in data.training and name not in data.test:
            yield Problem(
                DATASET,
                f"{BLOCK}.cases lists '{name}', but there is no such case: remove or rename it",
            )


def _check_class_order(data: RawDataset) -> Problems:
    contract = data.contract
    if data.declared is None or contract is None or not contract.regions:
        return
    for leaf in range(1, contract.num_leaves):
        if leaf not in contract.regions_class_order:
            yield doubt(
                DATASET,
                f"regions_class_order does not list '{contract.leaf_names[leaf]}': no segmentation "
                f"can show it, and the regions that hold it lose it: give it a region of its own, "
                f"[{leaf}], after them",
            )


def _check_protocols(data: RawDataset) -> Problems:
    if data.declared is None or data.contract is None:
        return
    for name in sorted(set(data.contract.protocols) - set(data.contract.cases.values())):
        yield doubt(
            DATASET, f"protocol '{name}' is not used by any case: remove it or assign cases"
        )


def _check_sides(data: RawDataset) -> Problems:
    if data.contract is None:
        return
    try:
        paired_labels(data.contract.leaf_names, data.dataset_json)
    except LabelSetError as error:
        yield Problem(DATASET, str(error))


CHECKS: tuple[Callable[[RawDataset], Problems], ...] = (
    _check_number,
    _check_file_names,
    _check_parts,
    _check_training_cases,
    _check_test_cases,
    _check_declared_cases,
    _check_class_order,
    _check_protocols,
    _check_sides,
)
