"""Write a data set from jobs: in parallel, into a hidden folder that becomes the data set only when all is well.

A killed run leaves the hidden folder with a record of every case that is done; the next run goes on from there.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nnunet_labelset.contract import BLOCK, Contract, LabelSet
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.dataset_conversion.lock import locked
from nnunet_labelset.dataset_conversion.notes import NOTES, Note, write_notes
from nnunet_labelset.dataset_conversion.records import RECORDS, convert_and_record, output_names, recall
from nnunet_labelset.dataset_conversion.replace import PARTS, settle
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import check_name, write_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.raw import INCOMPLETE, TRAINING


@dataclass(frozen=True)
class Target:
    """The data set to write."""

    folder: Path  # .../DatasetXXX_Name
    leaves: tuple[str, ...]
    channels: tuple[str, ...]
    ending: str = ".nii.gz"
    overwrite: bool = False
    skip_bad_cases: bool = False

    @property
    def place(self) -> Path:
        """The folder itself, where a link leads to it: the link stays."""
        return Path(os.path.realpath(self.folder))

    @property
    def staging(self) -> Path:
        return self.place.parent / f".{self.place.name}.incomplete"

    @property
    def old(self) -> Path:
        return self.place.parent / f".{self.place.name}.old"


@dataclass
class Written:
    """What came of a run."""

    contract: Contract
    parts: dict[str, str]  # case -> part
    groups: dict[str, str]  # case -> source
    skipped: list[str]
    notes: list[tuple[str, Note]]  # case, what was noticed
    resumed: int
    kept: list[str]  # files of the data set that was replaced


def dataset_folder(root: Path, number: int, name: str) -> Path:
    """`root/DatasetXXX_Name`; an id that another data set has is an error, as nnU-Net could not tell them apart."""
    if not 1 <= number <= 999:
        raise LabelSetError(f"-d {number}: expected an id from 1 to 999")
    folder = root / f"Dataset{number:03d}_{check_name(name, '-n')}"
    if os.path.islink(os.path.realpath(folder)):
        raise LabelSetError(f"{folder}: a link that leads back to itself: remove it")
    _check_id(folder)
    return folder


def _check_id(folder: Path) -> None:
    prefix = folder.name.partition("_")[0]
    others = [path.name for path in folder.parent.glob(f"{prefix}_*") if path.name != folder.name]
    if others:
        raise LabelSetError(f"{folder.parent}: id {int(prefix[-3:])} belongs to {some(others)}: choose another -d")


def write_dataset(
    target: Target, jobs: Sequence[CaseJob], problems: Sequence[tuple[str, str]], processes: int
) -> Written:
    """Convert all jobs and publish the data set, or raise one error that lists every problem, with nothing written."""
    if processes < 1:
        raise LabelSetError(f"-np {processes}: expected 1 or more")
    try:
        with locked(target.place):
            settle(target.old, target.place)
            _check_target(target, jobs)
            return _write(target, jobs, problems, processes)
    except OSError as error:
        raise LabelSetError(f"{error.filename or target.staging}: {error.strerror or error}") from None


def _write(target: Target, jobs: Sequence[CaseJob], problems: Sequence[tuple[str, str]], processes: int) -> Written:
    stopped_before = target.staging.exists()  # then its finished cases are worth keeping, whatever happens now
    (target.staging / RECORDS).mkdir(parents=True, exist_ok=True)
    (target.staging / INCOMPLETE).touch()
    (target.staging / "dataset.json").unlink(missing_ok=True)
    try:
        # A run that cannot succeed any more still looks for all problems, but need not write.
        results, resumed = _convert_all(target, jobs, processes, write=not problems or target.skip_bad_cases)
    except LabelSetError as error:
        if not any((target.staging / RECORDS).iterdir()):
            shutil.rmtree(target.staging)
            raise
        raise LabelSetError(
            f"{error}\nThe cases that are done are kept: the same command goes on from there."
        ) from None
    bad = [*problems, *((job.case, text) for job in jobs for text in results[job.case].problems)]
    skipped = {case for case, _ in bad}
    good = [job for job in jobs if job.case not in skipped]
    failure = ""
    if bad and not target.skip_bad_cases:
        failure = _list_problems(bad) + "\nNothing was written; --skip-bad-cases leaves these cases out."
    elif not any(job.part == TRAINING for job in good):
        failure = "no training case is left" + (": " + _list_problems(bad) if bad else "")
    if failure:
        if not stopped_before:
            shutil.rmtree(target.staging)
        raise LabelSetError(failure)
    contract = _contract(target, good, results)
    kept = _publish(target, good, results, contract)
    return Written(
        contract,
        {job.case: job.part for job in good},
        {job.case: job.source for job in good},
        list(dict.fromkeys(text for _, text in bad)),
        [(job.case, note) for job in good for note in results[job.case].notes],
        resumed,
        kept,
    )


def _check_target(target: Target, jobs: Sequence[CaseJob]) -> None:
    if target.folder.exists():
        if not target.overwrite:
            raise LabelSetError(f"{target.folder} exists: choose another -d or -n, or give --overwrite")
        if not any((target.folder / name).exists() for name in ("dataset.json", INCOMPLETE)):
            raise LabelSetError(f"{target.folder} is not a data set (no dataset.json): --overwrite would delete it")
        inside = next((path for job in jobs for path in job.inputs if _is_below(path, target.place)), None)
        if inside:
            raise LabelSetError(f"{inside}: lies in the data set that would be written: choose another -d or -n")
    if os.path.lexists(target.staging) and (target.staging.is_symlink() or not target.staging.is_dir()):
        raise LabelSetError(f"{target.staging}: this name is needed for a folder: move it away")
    known = {target.staging / name for name in (RECORDS, *PARTS)}
    for folder in (target.staging, *known):
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir() and path not in known:
                raise LabelSetError(f"{path}: no conversion made this folder: move it away, it would be deleted")


def _is_below(path: Path, folder: Path) -> bool:
    return os.path.realpath(path).startswith(f"{folder}{os.sep}")


def _convert_all(
    target: Target, jobs: Sequence[CaseJob], processes: int, write: bool
) -> tuple[dict[str, CaseResult], int]:
    results = {job.case: result for job in jobs if (result := recall(target.staging, job)) is not None}
    resumed = len(results)
    todo = [job for job in jobs if job.case not in results]
    work = partial(convert_and_record, folder=target.staging, write=write)
    for job, result in map_parallel(work, todo, processes, "converting" if write else "checking"):
        results[job.case] = result
    return results, resumed


def _contract(target: Target, jobs: Sequence[CaseJob], results: dict[str, CaseResult]) -> Contract:
    """Equal protocols of a source get one name; a source with several gets them numbered, most annotated first."""
    has_ignore = any(results[job.case].uses_ignore for job in jobs)
    by_source: dict[str, set[tuple[LabelSet, ...]]] = {}
    of_case: dict[str, tuple[str, tuple[LabelSet, ...]]] = {}
    for job in jobs:
        sets = results[job.case].sets
        if sets is not None:
            sets = sets if has_ignore else sets[:-1]
            by_source.setdefault(job.source, set()).add(sets)
            of_case[job.case] = (job.source, sets)
    names: dict[tuple[str, tuple[LabelSet, ...]], str] = {}
    for source, protocols in by_source.items():
        ordered = sorted(protocols, key=lambda sets: (sum(map(len, sets)), [sorted(labels) for labels in sets]))
        for number, protocol in enumerate(ordered, start=1):
            names[source, protocol] = source if len(ordered) == 1 else f"{source}_{number}"
    if len(set(names.values())) != len(names):  # a source 'a' with two protocols beside a source 'a_1'
        names = {key: f"{key[0]}_protocol_{number}" for number, key in enumerate(names)}
    return Contract(
        target.leaves,
        {name: protocol for (_, protocol), name in names.items()},
        {case: names[key] for case, key in of_case.items()},
        has_ignore,
    )


def _publish(target: Target, jobs: Sequence[CaseJob], results: dict[str, CaseResult], contract: Contract) -> list[str]:
    """Remove what does not belong to the data set, write dataset.json last, and give the folder its name."""
    staging = target.staging
    expected = {name for job in jobs for name in output_names(job, results[job.case])}
    found = set()
    for part in PARTS:
        for path in (staging / part).glob("*"):
            if f"{part}/{path.name}" in expected:
                found.add(f"{part}/{path.name}")
            else:
                path.unlink()
    if missing := sorted(expected - found):
        raise LabelSetError(f"{staging / missing[0]}: somebody removed it while the others were converted: run again")
    for part in ("imagesTr", "labelsTr"):
        (staging / part).mkdir(exist_ok=True)
    dataset_json = {
        "channel_names": {str(number): channel for number, channel in enumerate(target.channels)},
        "labels": {name: value for value, name in enumerate(contract.value_names)},
        "numTraining": Counter(job.part for job in jobs)[TRAINING],
        "file_ending": target.ending,
        "name": target.folder.name,
        BLOCK: contract.to_block(),
    }
    Contract.from_dataset_json(dataset_json)  # what we write, we can read
    write_notes(staging / NOTES, [(job.case, note) for job in jobs for note in results[job.case].notes])
    write_json(staging / "dataset.json", dataset_json)
    _check_id(target.folder)  # another run may have taken it meanwhile
    (staging / INCOMPLETE).unlink()
    if target.place.exists():
        os.rename(target.place, target.old)
    os.rename(staging, target.place)
    shutil.rmtree(target.place / RECORDS)  # only now: until the name is given, the next run can go on from them
    return settle(target.old, target.place)


def _list_problems(problems: Sequence[tuple[str, str]]) -> str:
    texts = list(dict.fromkeys(text for _, text in problems))
    return f"{len(texts)} problem(s):\n" + "\n".join(f"  {text}" for text in texts)
