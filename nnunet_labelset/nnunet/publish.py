"""Write a data set out of sight and publish it when all is well, so that nobody sees half of it.

What stood there before goes only then, and files that are not part of that data set stay.
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

from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import (
    check_name,
    flush_files,
    read_json,
    remove_temporaries,
    write_json,
)
from nnunet_labelset.io.lock import locked
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import (
    DATASET,
    IMAGES_TEST,
    IMAGES_TRAINING,
    LABELS_TEST,
    LABELS_TRAINING,
    PREPROCESSED,
    RAW,
    dataset_name,
)
from nnunet_labelset.nnunet.raw import BEFORE_ANNOTATE, DEFAULT_ENDING, INCOMPLETE, file_ending

JOURNAL = ".records"  # which cases are finished, so that a stopped run can go on
NOTES = "conversion_notes.csv"
PROVENANCE = "provenance.csv"  # the files that every case was made from
RENAMED = "renamed_cases.csv"  # cases that --safe-names has renamed
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
OWN_FILES = (DATASET, NOTES, PROVENANCE, RENAMED, INCOMPLETE, JOURNAL)


@dataclass(frozen=True)
class Target:
    """The data set to write."""

    folder: Path  # .../DatasetXXX_Name
    overwrite: bool = False
    adds: bool = False  # to a data set that exists, whose files stay

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
    """Return `root/DatasetXXX_Name`. An id that another data set has is an error."""
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
    """Yield the hidden folder in which one run at a time makes the data set, until `publish`.

    After an error it stays only if its journal lists finished cases: the next run continues there.
    """
    try:
        with locked(target.place):
            settle(target.old, target.place)
            _check(target, inputs)
            target.staging.mkdir(parents=True, exist_ok=True)
            remove_temporaries(target.staging)  # of a run that was killed
            (target.staging / INCOMPLETE).touch()
            (target.staging / DATASET).unlink(missing_ok=True)
            try:
                yield target.staging
            finally:
                if target.staging.exists() and not size_of(target.staging / JOURNAL):
                    shutil.rmtree(target.staging)
    except (FileExistsError, NotADirectoryError) as error:
        raise LabelSetError(
            f"{error.filename}: expected a folder, but it is a file: choose another -o"
        ) from None
    except OSError as error:
        raise LabelSetError(
            f"{error.filename or target.staging}: {error.strerror or error}"
        ) from None


def size_of(path: Path) -> int | None:
    """Return the size of a file or link in bytes, None if it does not exist."""
    return path.lstat().st_size if os.path.lexists(path) else None


def _check(target: Target, inputs: Iterable[Path]) -> None:
    if target.folder.exists():
        _check_replacement(target, inputs)
    is_folder = target.staging.is_dir() and not target.staging.is_symlink()
    if os.path.lexists(target.staging) and not is_folder:
        raise LabelSetError(f"{target.staging}: this name is needed for a folder: move it away")
    case_folders = {target.staging / name for name in CASE_FOLDERS}
    for folder in (target.staging, *case_folders):
        for path in _folders_in(folder):
            if path not in case_folders:
                raise LabelSetError(
                    f"{path}: no conversion made this folder: move it away, it would be deleted"
                )


def _folders_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _check_replacement(target: Target, inputs: Iterable[Path]) -> None:
    if not target.overwrite and not target.adds:
        raise LabelSetError(f"{target.folder} exists: choose another -d or -n, or give --overwrite")
    if not any((target.folder / name).exists() for name in (DATASET, INCOMPLETE)):
        raise LabelSetError(
            f"{target.folder} is not a data set (no dataset.json): --overwrite would delete it"
        )
    for path in inputs:
        if os.path.realpath(path).startswith(f"{target.place}{os.sep}"):
            raise LabelSetError(
                f"{path}: lies in the data set that would be written: choose another -d or -n"
            )


def publish(target: Target, files: Collection[str], dataset_json: dict[str, Any]) -> list[str]:
    """Give the hidden folder its name, after removing all but `files` and writing dataset.json.

    Returns what was kept of the data set that stood there before.
    """
    staging = target.staging
    Contract.from_dataset_json(dataset_json)  # what we write, we can read
    _keep_only(staging, files)
    try:
        links = {name for name in files if (staging / name).is_symlink()}
        flush_files(staging / name for name in files if name not in links)
    except OSError:
        (staging / JOURNAL).unlink(missing_ok=True)  # nobody knows which files are whole
        raise
    write_json(staging / DATASET, dataset_json)
    _check_id(target.folder)  # another run may have taken it meanwhile
    (staging / INCOMPLETE).unlink()
    if target.place.exists():
        if not target.adds:
            withdraw_preprocessed(target.folder)
        os.rename(target.place, target.old)
    os.rename(staging, target.place)
    # Only now: until then, the next run can continue from it.
    (target.place / JOURNAL).unlink(missing_ok=True)
    return settle(target.old, target.place)


def link_cases(target: Target, new_files: Collection[str]) -> list[str]:
    """Give the files of all cases that exist a second name in the hidden folder; return the names.

    The files themselves stay as they are, also where the run is stopped. File systems that know no
    second names get copies.
    """
    foreign = set(_foreign(target.place))
    new_files = set(new_files)
    names = []
    for folder in CASE_FOLDERS:
        for path in sorted(target.place.joinpath(folder).glob("*")):
            if path in foreign:
                continue
            if f"{folder}/{path.name}" in new_files:
                raise LabelSetError(f"{path}: a new case needs this name: move the file away")
            link = target.staging / folder / path.name
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)
            try:
                os.link(path, link, follow_symlinks=False)
            except OSError:
                shutil.copy2(path, link, follow_symlinks=False)
            names.append(f"{folder}/{path.name}")
    return names


def _keep_only(staging: Path, files: Collection[str]) -> None:
    """Remove other files of cases, as an earlier run with other cases may have left them."""
    present = set()
    for folder in CASE_FOLDERS:
        for path in (staging / folder).glob("*"):
            name = f"{folder}/{path.name}"
            present.add(name)
            if name not in files:
                path.unlink()
    if missing := sorted(set(files) - present):
        raise LabelSetError(
            f"{staging / missing[0]}: was removed while other cases were converted: run again"
        )


def withdraw_preprocessed(folder: Path) -> None:
    """Take the block out of nnU-Net's copy of dataset.json: its preprocessed data are out of date.

    No training then starts before the data set is preprocessed again.
    """
    raw, preprocessed = (os.environ.get(variable) for variable in (RAW, PREPROCESSED))
    if not raw or not preprocessed or os.path.realpath(raw) != os.path.realpath(folder.parent):
        return
    copy = Path(preprocessed, folder.name, DATASET)
    if not copy.is_file():
        return
    remove_temporaries(copy.parent)
    content = read_json(copy)
    if content.pop(BLOCK, None) is not None:
        write_json(copy, content)


def restore(target: Target) -> None:
    """Finish a replacement that was killed, so that the data set has its name again."""
    if target.old.exists():
        with locked(target.place):
            settle(target.old, target.place)


def settle(old: Path, new: Path) -> list[str]:
    """Finish a replacement, even one that was killed: foreign files move to the new data set.

    Returns what was moved. If the new one never got its name, the old one gets its name back.
    """
    if not old.exists():
        return []
    if not new.exists():
        os.rename(old, new)
        return []
    moved = []
    for path in list(_foreign(old)):
        target = _kept_name(new / path.relative_to(old))
        target.parent.mkdir(exist_ok=True)
        os.rename(path, target)
        moved.append(target.relative_to(new).as_posix())
    shutil.rmtree(old, ignore_errors=True)
    return moved


def _kept_name(path: Path) -> Path:
    """Return a name for a file of the data set that was replaced. What `annotate` has kept of it
    gets another name: `--undo` would put it into the new data set.
    """
    name = path
    number = 1
    while os.path.lexists(name) or name.name == BEFORE_ANNOTATE:
        name = path.with_name(f"{path.name}.old{number if number > 1 else ''}")
        number += 1
    return name


def _foreign(folder: Path) -> Iterator[Path]:
    """Yield files and folders of a data set that are neither its cases nor its own files."""
    try:
        ending = file_ending(read_json(folder / DATASET))
    except LabelSetError:
        ending = DEFAULT_ENDING
    for path in sorted(folder.iterdir()):
        if path.name in CASE_FOLDERS and path.is_dir() and not path.is_symlink():
            yield from _foreign_to_cases(path, ending)
        elif path.name not in (*CASE_FOLDERS, *OWN_FILES):
            yield path


def _foreign_to_cases(folder: Path, ending: str) -> Iterator[Path]:
    """Yield what is neither an image nor a label map of a case."""
    stem = r".+_\d{4}" if folder.name.startswith("images") else ".+"
    case = re.compile(stem + re.escape(ending))
    for path in sorted(folder.iterdir()):
        if path.is_dir() or not case.fullmatch(path.name):
            yield path
