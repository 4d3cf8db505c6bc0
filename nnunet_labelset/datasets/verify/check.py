"""`nnunet_labelset verify`: what nnU-Net's own integrity check misses, all problems in one go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.datasets.normalisation import find_labelled_air, may_use_mask, planned_mask
from nnunet_labelset.datasets.slips import same_images
from nnunet_labelset.datasets.verify.annotations import check_annotations
from nnunet_labelset.datasets.verify.case_facts import CaseFacts, read_case
from nnunet_labelset.datasets.verify.findings import Finding, Findings, Problem, Problems, doubt
from nnunet_labelset.datasets.verify.names_of_cases import RawDataset, check_names
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.tables import read_table
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.folders import preprocessed_copy
from nnunet_labelset.nnunet.names import DATASET
from nnunet_labelset.nnunet.publish import PROVENANCE
from nnunet_labelset.nnunet.raw import INCOMPLETE, TRAINING, RawCase, channel_names, raw_cases

Facts = Mapping[RawCase, CaseFacts]


def verify(folder: Path, processes: int = 1) -> tuple[list[Finding], list[Finding]]:
    """Return the errors and the warnings of the raw data set in `folder`, one line each."""
    findings = Findings(folder)
    findings.add(_check_completeness(folder))
    if (folder / DATASET).is_file():
        _verify_content(folder, processes, findings)
    return findings.errors, findings.warnings


def _verify_content(folder: Path, processes: int, findings: Findings) -> None:
    dataset_json = read_json(folder / DATASET)
    contract, problems = Contract.read(dataset_json)
    findings.add(Problem(DATASET, problem) for problem in problems)
    try:
        cases = raw_cases(folder, dataset_json)
    except LabelSetError as error:
        findings.add([Problem(folder.name, str(error))])
        return
    data = RawDataset(folder, dataset_json, tuple(cases), contract)
    findings.add(check_names(data))
    work = partial(read_case, looks_for_air=_may_use_mask(dataset_json))
    by_case = dict(map_parallel(work, cases, processes, "reading"))
    facts = {case: by_case[case] for case in cases}  # the order of the cases, not of the workers
    for check in CHECKS:
        findings.add(check(data, facts))


def _may_use_mask(dataset_json: Mapping[str, Any]) -> bool:
    try:
        return may_use_mask(channel_names(dataset_json))
    except LabelSetError:  # told by the check of channels
        return False


def _check_completeness(folder: Path) -> Problems:
    has_no_json = not (folder / DATASET).is_file()
    if has_no_json or (folder / INCOMPLETE).exists():
        sign = "has no dataset.json" if has_no_json else f"has the marker {INCOMPLETE}"
        yield Problem(
            folder.name,
            f"incomplete: it {sign}; run the same 'nnunet_labelset convert' (or 'merge') again",
        )


def _check_files(data: RawDataset, facts: Facts) -> Problems:
    for fact in facts.values():
        for path, text in fact.problems:
            yield Problem(path, text)
        for path, text in fact.doubts:
            yield doubt(path, text)


def _check_channels(data: RawDataset, facts: Facts) -> Problems:
    try:
        number = len(channel_names(data.dataset_json))
    except LabelSetError as error:
        yield Problem(DATASET, str(error))
        return
    for case, fact in facts.items():
        if case.images and fact.images_readable and fact.channels != number:
            yield Problem(
                case.images[0],
                f"case '{case.name}' has {fact.channels} channel(s), but channel_names in "
                f"dataset.json lists {number}: add or remove files {case.name}_XXXX, or correct "
                f"channel_names",
            )


def _check_duplicates(data: RawDataset, facts: Facts) -> Problems:
    try:
        # `complete` makes cases that have the image of another one on purpose.
        copies = originals(data.dataset_json)
    except LabelSetError as error:
        yield Problem(DATASET, str(error))
        copies = {}
    images = {
        case: fact.image_hash
        for case, fact in facts.items()
        if fact.image_hash and case.name not in copies
    }
    for cases in same_images(images):
        if len({case.name for case in cases}) > 1:  # one name twice is reported by name
            yield _duplicate(cases, facts)


def _duplicate(cases: list[RawCase], facts: Facts) -> Problem:
    where = cases[0].images[0]
    names = some(sorted({case.name for case in cases}))
    if len({case.part for case in cases}) == 2:
        return Problem(
            where, f"the same image is in training and test: {names}: remove it from one of them"
        )
    if len({facts[case].label_hash for case in cases}) == 1:
        return Problem(where, f"the same image and label map twice, as {names}: keep one")
    return doubt(
        where,
        f"the same image with different label maps, as {names}: if on purpose, make the folds with "
        f"'nnunet_labelset splits', which keeps them in one",
    )


def _check_annotations(data: RawDataset, facts: Facts) -> Problems:
    if data.contract is not None:
        partly_drawn = _partly_drawn(data.folder, data.contract)
        yield from check_annotations(data.contract, data.dataset_json, facts, partly_drawn)


def _partly_drawn(folder: Path, contract: Contract) -> dict[str, set[str]]:
    """Return the labels that had voxels, though they are not annotated, when `convert` or `merge`
    has written a case that is still declared as it was then.
    """
    background = contract.leaf_names[0]
    labels: dict[str, set[str]] = {}
    with suppress(LabelSetError, KeyError):  # other data sets have no such table
        for row in read_table(folder / PROVENANCE):
            case = row["case"]
            drawn = set(row["annotated"].split(";")) - {"", background}
            if case in contract.cases and drawn == {*contract.annotated(case)} - {background}:
                labels[case] = set(row["partly_drawn"].split(";"))
    return labels


def _check_air(data: RawDataset, facts: Facts) -> Problems:
    airs = {case.name: fact.air for case, fact in facts.items() if case.part == TRAINING}
    for text in find_labelled_air(airs, planned_mask(data.folder)):
        yield doubt(DATASET, text)


def _check_preprocessed(data: RawDataset, facts: Facts) -> Problems:
    """The trainer reads the copy of dataset.json that nnU-Net made when it planned."""
    copy = preprocessed_copy(data.folder)
    if copy is None:
        return
    content: Mapping[str, Any] = read_json(copy)
    stale = [key for key in ("labels", BLOCK) if content.get(key) != data.dataset_json.get(key)]
    if not stale:
        return
    text = (
        f"{' and '.join(stale)} differ from the raw data set: plan and preprocess again, or copy "
        f"dataset.json if no label map has changed"
    )
    # Without a block no training starts; with another one it would learn something else.
    yield Problem(str(copy), text, is_doubt=BLOCK not in content)


CHECKS: tuple[Callable[[RawDataset, Facts], Problems], ...] = (
    _check_files,
    _check_channels,
    _check_duplicates,
    _check_annotations,
    _check_air,
    _check_preprocessed,
)
