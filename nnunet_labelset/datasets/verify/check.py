"""`nnunet_labelset verify`: what nnU-Net's own integrity check misses, all problems in one go."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.datasets.verify.annotations import check_annotations
from nnunet_labelset.datasets.verify.case_facts import CaseFacts, read_case
from nnunet_labelset.datasets.verify.findings import Finding, Findings
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import case_files, read_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.folders import preprocessed_copy
from nnunet_labelset.nnunet.names import DATASET, FIRST_CHANNEL, LISTED, NUM_TRAINING
from nnunet_labelset.nnunet.raw import (
    INCOMPLETE,
    TEST,
    TRAINING,
    RawCase,
    channel_names,
    file_ending,
    image_files,
    raw_cases,
)


def verify(folder: Path, processes: int = 1) -> tuple[list[Finding], list[Finding]]:
    """Errors and warnings of the raw data set in `folder`, one line each."""
    found = Findings(folder)
    missing = not (folder / DATASET).is_file()
    if missing or (folder / INCOMPLETE).exists():
        what = "has no dataset.json" if missing else f"has the marker {INCOMPLETE}"
        text = f"incomplete: it {what}; run the same 'nnunet_labelset convert' (or 'merge') again"
        found.error(folder.name, text)
    if missing:
        return found.errors, found.warnings
    dataset_json = read_json(folder / DATASET)
    contract, problems = Contract.read(dataset_json)
    for problem in problems:
        found.error(DATASET, problem)
    try:
        cases = raw_cases(folder, dataset_json)
    except LabelSetError as error:
        found.error(folder.name, str(error))
        return found.errors, found.warnings
    channels = _channels(dataset_json, found)
    _check_names(folder, dataset_json, cases, contract, found)
    read = dict(map_parallel(read_case, cases, processes, "reading"))
    facts = {case: read[case] for case in cases}  # the order of the cases, not of the workers
    for case, fact in facts.items():
        for path, text in fact.problems:
            found.error(path, text)
        for path, text in fact.doubts:
            found.warning(path, text)
        if (
            case.images
            and fact.images_readable
            and channels is not None
            and fact.channels != channels
        ):
            found.error(
                case.images[0],
                f"case '{case.name}' has {fact.channels} channel(s), but channel_names in dataset.json lists "
                f"{channels}: add or remove files {case.name}_XXXX, or correct channel_names",
            )
    _check_duplicates(facts, _copies(dataset_json, found), found)
    if contract is not None:
        check_annotations(contract, dataset_json, facts, found)
    _check_preprocessed(folder, dataset_json, found)
    return found.errors, found.warnings


def _channels(dataset_json: Mapping[str, Any], found: Findings) -> int | None:
    try:
        return len(channel_names(dataset_json))
    except LabelSetError as error:
        found.error(DATASET, str(error))
        return None


def _check_names(
    folder: Path,
    dataset_json: Mapping[str, Any],
    cases: list[RawCase],
    contract: Contract | None,
    found: Findings,
) -> None:
    """Which files there are, against `dataset.json`."""
    if NUM_TRAINING not in dataset_json:
        found.error(DATASET, f"'{NUM_TRAINING}' is missing: nnU-Net needs it")
    training = {case.name: case for case in cases if case.part == TRAINING}
    test = {case.name: case for case in cases if case.part == TEST}
    expected = dataset_json.get(NUM_TRAINING, len(training))
    if expected != len(training):
        found.error(
            DATASET,
            f"{NUM_TRAINING} is {expected}, but there are {len(training)} training cases: set it",
        )
    ending = file_ending(dataset_json)
    for suffix, names in (("Tr", training), ("Ts", test)):
        if suffix == "Tr" and LISTED in dataset_json:
            continue
        for path in image_files(folder / f"images{suffix}", ending)[1]:
            found.error(
                path,
                f"not named {{case}}_XXXX{ending}: nnU-Net would misread the case; add the channel, {FIRST_CHANNEL}",
            )
        for name, path in case_files(folder / f"labels{suffix}", ending).items():
            if name not in names or not names[name].images:
                found.warning(
                    path,
                    f"label map without image: add images{suffix}/{name}{FIRST_CHANNEL}{ending} or remove it",
                )
    for name in sorted(set(training) & set(test)):
        file = found.name((test[name].images or (test[name].label or name,))[0])
        found.error(f"case '{name}'", f"in training and test alike ({file}): remove one of them")
    block = dataset_json.get(BLOCK)
    declared = block.get("cases") if isinstance(block, Mapping) else None
    if contract is None or not isinstance(declared, Mapping):
        return
    for name, case in training.items():
        if name not in declared:
            where = case.label or name
            found.error(
                where,
                f"no protocol: add the case to {BLOCK}.cases in dataset.json",
                f"case '{name}'",
            )
    without = [case for name, case in test.items() if case.label and name not in declared]
    if without:
        found.warning(
            f"{len(without)} test label map(s)",
            f"no protocol for {some(case.name for case in without)}: 'evaluate' cannot know what they annotate; "
            f"add them to {BLOCK}.cases in dataset.json",
        )
    for name in declared:
        if name not in training and name not in test:
            found.error(
                DATASET,
                f"{BLOCK}.cases lists '{name}', but there is no such case: remove or rename it",
            )
    for leaf in range(1, contract.num_leaves if contract.regions else 0):
        if leaf not in contract.regions_class_order:
            found.warning(
                DATASET,
                f"regions_class_order writes no '{contract.leaf_names[leaf]}', so that no segmentation can show it and "
                f"the regions that hold it lose it: give it a region of its own, [{leaf}], after them",
            )
    for name in sorted(set(contract.protocols) - set(contract.cases.values())):
        found.warning(
            DATASET, f"protocol '{name}' is used by no case: remove it, or give it its cases"
        )


def _copies(dataset_json: Mapping[str, Any], found: Findings) -> Container[str]:
    """Cases that `complete` made, which have the image of another one on purpose."""
    try:
        return originals(dataset_json)
    except LabelSetError as error:
        found.error(DATASET, str(error))
        return ()


def _check_duplicates(
    facts: Mapping[RawCase, CaseFacts], copies_of_others: Container[str], found: Findings
) -> None:
    same: defaultdict[str, list[RawCase]] = defaultdict(list)
    for case, fact in facts.items():
        if fact.image_hash and case.name not in copies_of_others:
            same[fact.image_hash].append(case)
    for copies in same.values():
        names = sorted({case.name for case in copies})
        parts = Counter(case.part for case in copies)
        if len(names) == 1:
            continue  # one name in training and test is reported by name
        where = copies[0].images[0]
        if len(parts) == 2:
            found.error(
                where,
                f"the same image is in training and test: {some(names)}: remove it from one of them",
            )
        elif len({facts[case].label_hash for case in copies}) == 1:
            found.error(where, f"the same image and label map twice, as {some(names)}: keep one")
        else:
            found.warning(
                where,
                f"the same image with different label maps, as {some(names)}: if on purpose, keep them in one fold "
                f"with 'nnunet_labelset splits --subject'",
            )


def _check_preprocessed(folder: Path, dataset_json: Mapping[str, Any], found: Findings) -> None:
    """The trainer reads the copy of dataset.json that nnU-Net made when it planned."""
    copy = preprocessed_copy(folder)
    if copy is None:
        return
    stale = [key for key in ("labels", BLOCK) if read_json(copy).get(key) != dataset_json.get(key)]
    if stale:
        found.warning(
            str(copy),
            f"{' and '.join(stale)} differ from the raw data set: plan and preprocess again, or copy dataset.json",
        )
