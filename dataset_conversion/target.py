"""The place of a data set: checked, filled out of sight, and given its name when all is well.

What stood there before goes only then, and what is not of that data set itself stays.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract
from nnunet_labelset.dataset_conversion.notes import NOTES
from nnunet_labelset.dataset_conversion.records import RECORDS, size_of
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import check_name, flush_files, read_json, write_json
from nnunet_labelset.io.lock import locked
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import (
    DATASET,
    IMAGES_TEST,
    IMAGES_TRAINING,
    LABELS_TEST,
    LABELS_TRAINING,
    dataset_name,
)
from nnunet_labelset.nnunet.raw import INCOMPLETE, file_ending

# Label maps that a model has completed. Not in labelsTr: if it is there, nnU-Net looks for every
# case in it when it collects a cross-validation, also for those that are listed in place.
COMPLETED_LABELS = "labelsCompleted"
COMPLETED_VOXELS = "completedTr"  # masks of what a model has completed
CASE_FOLDERS = (
    IMAGES_TRAINING,
    LABELS_TRAINING,
    IMAGES_TEST,
    LABELS_TEST,
    COMPLETED_LABELS,
    COMPLETED_VOXELS,
)
OURS = (DATASET, NOTES, INCOMPLETE, RECORDS)


@dataclass(frozen=True)
class Target:
    """The data set to write."""

    folder: Path  # .../DatasetXXX_Name
    overwrite: bool = False

    @cached_property
    def place(self) -> Path:
        """The folder itself, where a link leads to it: the link stays."""
        return Path(os.path.realpath(self.folder))

    @property
    def staging(self) -> Path:
        return self.place.parent / f".{self.place.name}.incomplete"

    @property
    def old(self) -> Path:
        return self.place.parent / f".{self.place.name}.old"


def dataset_folder(root: Path, number: int, name: str) -> Path:
    """`root/DatasetXXX_Name`; an id that another data set has is an error, as nnU-Net could not
    tell them apart.
    """
    if not 1 <= number <= 999:
        raise LabelSetError(f"-d {number}: expected an id from 1 to 999")
    folder = root / dataset_name(number, check_name(name, "-n"))
    if os.path.islink(os.path.realpath(folder)):
        raise LabelSetError(f"{folder}: a link that leads back to itself: remove it")
    _check_id(folder)
    return folder


def _check_id(folder: Path) -> None:
    prefix = folder.name.partition("_")[0]
    others = [path.name for path in folder.parent.glob(f"{prefix}_*") if path.name != folder.name]
    if others:
        raise LabelSetError(
            f"{folder.parent}: id {int(prefix[-3:])} belongs to {some(others)}: choose another -d"
        )


@contextmanager
def staged(target: Target, inputs: Iterable[Path]) -> Iterator[Path]:
    """The hidden folder in which one run at a time makes the data set, until `publish` gives it its
    name.

    After an error it stays only if it has records of finished cases, from which the next run goes
    on.
    """
    try:
        with locked(target.place):
            settle(target.old, target.place)
            _check(target, inputs)
            target.staging.mkdir(parents=True, exist_ok=True)
            (target.staging / INCOMPLETE).touch()
            (target.staging / DATASET).unlink(missing_ok=True)
            try:
                yield target.staging
            finally:
                if target.staging.exists() and not size_of(target.staging / RECORDS):
                    shutil.rmtree(target.staging)
    except (FileExistsError, NotADirectoryError) as error:
        raise LabelSetError(
            f"{error.filename}: needed as a folder, but it is none: choose another -o"
        ) from None
    except OSError as error:
        raise LabelSetError(
            f"{error.filename or target.staging}: {error.strerror or error}"
        ) from None


def _check(target: Target, inputs: Iterable[Path]) -> None:
    if target.folder.exists():
        if not target.overwrite:
            raise LabelSetError(
                f"{target.folder} exists: choose another -d or -n, or give --overwrite"
            )
        if not any((target.folder / name).exists() for name in (DATASET, INCOMPLETE)):
            raise LabelSetError(
                f"{target.folder} is not a data set (no dataset.json): --overwrite would delete it"
            )
        inside = next((path for path in inputs if _is_below(path, target.place)), None)
        if inside:
            raise LabelSetError(
                f"{inside}: lies in the data set that would be written: choose another -d or -n"
            )
    if os.path.lexists(target.staging) and (
        target.staging.is_symlink() or not target.staging.is_dir()
    ):
        raise LabelSetError(f"{target.staging}: this name is needed for a folder: move it away")
    known = {target.staging / name for name in CASE_FOLDERS}
    for folder in (target.staging, *known):
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir() and path not in known:
                raise LabelSetError(
                    f"{path}: no conversion made this folder: move it away, it would be deleted"
                )


def _is_below(path: Path, folder: Path) -> bool:
    return os.path.realpath(path).startswith(f"{folder}{os.sep}")


def publish(target: Target, files: Collection[str], dataset_json: dict[str, Any]) -> list[str]:
    """Remove what is not among the `files` of the cases, write dataset.json last, and give the
    folder its name.

    Returns what was kept of the data set that stood there before.
    """
    staging = target.staging
    Contract.from_dataset_json(dataset_json)  # what we write, we can read
    found = set()
    for folder in CASE_FOLDERS:
        for path in (staging / folder).glob("*"):
            if f"{folder}/{path.name}" in files:
                found.add(f"{folder}/{path.name}")
            else:
                path.unlink()
    if missing := sorted(set(files) - found):
        raise LabelSetError(
            f"{staging / missing[0]}: somebody removed it while the others were converted: run again"
        )
    try:
        flush_files(staging / name for name in found if not (staging / name).is_symlink())
    except OSError:
        (staging / RECORDS).unlink(missing_ok=True)  # nobody knows which files are whole
        raise
    write_json(staging / DATASET, dataset_json)
    _check_id(target.folder)  # another run may have taken it meanwhile
    (staging / INCOMPLETE).unlink()
    if target.place.exists():
        os.rename(target.place, target.old)
    os.rename(staging, target.place)
    (target.place / RECORDS).unlink(
        missing_ok=True
    )  # only now: until then, the next run can go on from it
    return settle(target.old, target.place)


def settle(old: Path, new: Path) -> list[str]:
    """Finish a replacement, also one that was killed: what is not of the old data set itself moves
    over to the new one.

    Returns what was moved. If the new one never got its name, the old one gets its name back.
    """
    if not old.exists():
        return []
    if not new.exists():
        os.rename(old, new)
        return []
    moved = []
    for path in list(_foreign(old)):
        target = new / path.relative_to(old)
        if os.path.lexists(target):
            target = target.with_name(f"{target.name}.old")
        target.parent.mkdir(exist_ok=True)
        os.rename(path, target)
        moved.append(target.relative_to(new).as_posix())
    shutil.rmtree(old, ignore_errors=True)
    return moved


def _foreign(folder: Path) -> Iterator[Path]:
    """Files and folders in a data set that are neither its cases nor its dataset.json."""
    try:
        ending = file_ending(read_json(folder / DATASET))
    except LabelSetError:
        ending = ".nii.gz"
    for path in sorted(folder.iterdir()):
        if path.name in CASE_FOLDERS and path.is_dir() and not path.is_symlink():
            case = re.compile(
                (r".+_\d{4}" if path.name.startswith("images") else ".+") + re.escape(ending)
            )
            yield from (
                inner
                for inner in sorted(path.iterdir())
                if inner.is_dir() or not case.fullmatch(inner.name)
            )
        elif path.name not in (*CASE_FOLDERS, *OURS):
            yield path
