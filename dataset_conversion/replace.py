"""What a data set folder holds of ours, and how one takes the place of another without losing what is not."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from nnunet_labelset.dataset_conversion.notes import NOTES
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet.raw import INCOMPLETE, file_ending

PARTS = ("imagesTr", "labelsTr", "imagesTs", "labelsTs")
OURS = ("dataset.json", NOTES, INCOMPLETE, ".records")


def settle(old: Path, new: Path) -> list[str]:
    """Finish a replacement, also one that was killed: what is not of the old data set itself moves over to the new one.

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
        ending = file_ending(read_json(folder / "dataset.json"))
    except LabelSetError:
        ending = ".nii.gz"
    for path in sorted(folder.iterdir()):
        if path.name in PARTS and path.is_dir() and not path.is_symlink():
            case = re.compile((r".+_\d{4}" if path.name.startswith("images") else ".+") + re.escape(ending))
            yield from (inner for inner in sorted(path.iterdir()) if inner.is_dir() or not case.fullmatch(inner.name))
        elif path.name not in (*PARTS, *OURS):
            yield path
