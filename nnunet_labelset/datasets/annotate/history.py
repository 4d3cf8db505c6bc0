"""What `annotate` writes, and how it takes it back: dataset.json, nnU-Net's copy of it and, with
masks, label maps.

Every call is a step. What it replaces is kept in `before_annotate/step_1`, `step_2`, ..., and
`--undo` takes back the last one. New label maps come before the dataset.json that explains them,
and go after it: whoever is stopped in between has values that dataset.json does not declare, which
is an error everywhere. A step that was stopped is taken back by the next call.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, IGNORE, Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import (
    read_bytes,
    read_json,
    reason,
    remove_temporaries,
    write_bytes,
    write_json,
)
from nnunet_labelset.nnunet.folders import preprocessed_copy
from nnunet_labelset.nnunet.names import DATASET
from nnunet_labelset.nnunet.raw import BEFORE_ANNOTATE, label_maps_replaced

NEW_MAPS = ".annotate_new_maps"
UNFINISHED = "unfinished"  # lies in a step while it is written or taken back
UNDONE = ".undone"  # a step that was taken back, while it is removed
STEP = "step.json"
WAITS = "copy_waits"  # in its record: nnU-Net had not preprocessed the label maps before it either
CORRECTED = "_corrected"  # ends the name of a folder with label maps that changed since


@dataclass(frozen=True)
class Undone:
    """The files that were put back, and label maps that had changed since and are kept."""

    files: tuple[Path, ...]
    corrected: tuple[Path, ...]


def has_history(folder: Path) -> bool:
    return bool(_steps(folder))


def recorded_reasons(folder: Path) -> dict[str, str]:
    """Return why each case is declared as it is, from the records of all steps."""
    reasons: dict[str, str] = {}
    for step in _steps(folder):
        with suppress(LabelSetError):
            reasons |= read_json(step / STEP).get("reasons", {})
    return reasons


def _steps(folder: Path) -> list[Path]:
    steps = [
        path
        for path in (folder / BEFORE_ANNOTATE).glob("step_*")
        if path.name.removeprefix("step_").isdigit()
    ]
    return sorted(steps, key=_number)


def _number(step: Path) -> int:
    return int(step.name.removeprefix("step_"))


def settle(folder: Path) -> Undone | None:
    """Take back a step that was stopped, and remove what else a killed run has left behind."""
    shutil.rmtree(folder / NEW_MAPS, ignore_errors=True)
    remove_temporaries(folder)
    if copy := preprocessed_copy(folder):
        remove_temporaries(copy.parent)
    shutil.rmtree(folder / BEFORE_ANNOTATE / UNDONE, ignore_errors=True)
    steps = _steps(folder)
    if not steps:
        _remove_if_empty(folder / BEFORE_ANNOTATE)
    if not steps or not _is_unfinished(steps[-1]):
        return None
    return _take_back(folder, steps[-1])


def _is_unfinished(step: Path) -> bool:
    return (step / UNFINISHED).exists() or not (step / DATASET).exists()


def check_folders(folder: Path) -> None:
    """Fail if the label maps belong to another data set, which `--mask` would change."""
    for label_folder in folder.glob("labels*"):
        if label_folder.is_symlink():
            raise LabelSetError(
                f"--mask: {label_folder} is a link to {os.path.realpath(label_folder)}: new label "
                f"maps would change that folder, too: copy it first"
            )


def write_step(
    folder: Path,
    dataset_json: Mapping[str, Any],
    contract: Contract,
    new_maps: Mapping[Path, Path],
    record: Mapping[str, Any],
) -> list[Path]:
    """Write the block into dataset.json and into nnU-Net's copy of it; return the files.

    `new_maps` are label maps and the files that replace them. What nnU-Net has preprocessed is out
    of date then: its copy loses the block, and no training starts before the data set is
    preprocessed again.
    """
    path = folder / DATASET
    new = {**dataset_json, BLOCK: contract.to_block()}
    if new_maps:
        new["labels"] = {**new["labels"], IGNORE: contract.num_leaves}
    Contract.from_dataset_json(new)  # what we write, we can read
    copy = _matching_copy(folder, dataset_json)
    waits = copy is None and preprocessed_copy(folder) is not None
    step = _begin(folder, path, new_maps, {**record, WAITS: waits})
    try:
        for label_map, replacement in new_maps.items():
            _exchange(label_map, replacement, step)
        write_json(path, new)
        if copy is not None:
            write_json(copy, _with_block(read_json(copy), {} if new_maps else new))
        (step / UNFINISHED).unlink()
    except BaseException as error:
        _take_back(folder, step)
        if isinstance(error, OSError):
            raise LabelSetError(f"{error.filename}: {reason(error)}; nothing was changed") from None
        raise
    return [path, *([copy] if copy is not None and not new_maps else [])]


def _begin(
    folder: Path, path: Path, new_maps: Mapping[Path, Path], record: Mapping[str, Any]
) -> Path:
    steps = _steps(folder)
    number = _number(steps[-1]) + 1 if steps else 1
    step = folder / BEFORE_ANNOTATE / f"step_{number}"
    checksums = {_key(label_map): _checksum(new) for label_map, new in new_maps.items()}
    try:
        step.mkdir(parents=True)
        (step / UNFINISHED).touch()
        write_json(step / STEP, {**record, "label_maps": checksums})
        write_bytes(step / DATASET, read_bytes(path))
    except BaseException as error:
        shutil.rmtree(step, ignore_errors=True)
        _remove_if_empty(step.parent)
        if isinstance(error, OSError):
            raise LabelSetError(f"{step}: cannot be written: {reason(error)}") from None
        raise
    return step


def undo(folder: Path) -> Undone:
    """Take back the last step."""
    steps = _steps(folder)
    if not steps:
        raise LabelSetError(
            f"{folder}: nothing to undo: annotate has not changed this data set (no "
            f"{BEFORE_ANNOTATE})"
        )
    (steps[-1] / UNFINISHED).touch()
    return _take_back(folder, steps[-1])


def _take_back(folder: Path, step: Path) -> Undone:
    files: list[Path] = []
    corrected: list[Path] = []
    if (step / DATASET).is_file():  # else the step was stopped before it changed anything
        files += _restore_dataset_json(folder, step)
        for kept in sorted(step.glob("labels*/*")):
            restored = folder / kept.parent.name / kept.name
            corrected += _set_aside(restored, kept, step)
            os.replace(kept, restored)
            os.utime(restored)  # nnU-Net takes over what is newer than its own copy
            files.append(restored)
    undone = step.with_name(UNDONE)
    os.rename(step, undone)
    shutil.rmtree(undone)
    _remove_if_empty(step.parent)
    return Undone(files=tuple(files), corrected=tuple(corrected))


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _restore_dataset_json(folder: Path, step: Path) -> list[Path]:
    path = folder / DATASET
    content = read_json(path)
    old = read_json(step / DATASET)
    if any(step.glob("labels*")):
        content["labels"] = old["labels"]  # without the `ignore` that --mask has declared
    copy = _copy_to_restore(folder, step, old)
    if _with_block(content, {}) == _with_block(old, {}):
        write_bytes(path, read_bytes(step / DATASET))
    else:  # other changes since then stay
        write_json(path, _with_block(content, old))
    if copy is not None:
        write_json(copy, _with_block(read_json(copy), old))
    return [path, *([copy] if copy is not None else [])]


def _copy_to_restore(folder: Path, step: Path, old: Mapping[str, Any]) -> Path | None:
    """Return nnU-Net's copy of dataset.json, if its voxels are those from before the step."""
    copy = preprocessed_copy(folder)
    if copy is None:
        return None
    content = read_json(copy)
    if any(step.glob("labels*")):
        is_newer = BLOCK in content  # preprocessed with the new label maps, and sound in itself
        is_other = is_newer or _waited_before(step)
    else:
        is_other = _waits(folder, content)
    return None if is_other or content.get("labels") != old.get("labels") else copy


def _waited_before(step: Path) -> bool:
    """Tell whether nnU-Net's copy belonged to still older label maps when the step began."""
    earlier = [each for each in _steps(step.parent.parent) if _number(each) < _number(step)]
    replaced_maps = any(any(each.glob("labels*")) for each in earlier)
    return bool(read_json(step / STEP).get(WAITS, replaced_maps))  # 0.2 did not record it


def _set_aside(label_map: Path, kept: Path, step: Path) -> list[Path]:
    """Keep a label map that is neither the old nor the new one: it was corrected since."""
    if not label_map.is_file():
        return []
    checksums = read_json(step / STEP).get("label_maps", {})
    if _checksum(label_map) in (checksums.get(_key(label_map)), _checksum(kept)):
        return []
    folder = label_map.parent.with_name(label_map.parent.name + CORRECTED)
    number = 1
    while folder.joinpath(label_map.name).exists():
        number += 1
        folder = folder.with_name(f"{label_map.parent.name}{CORRECTED}_{number}")
    folder.mkdir(exist_ok=True)
    os.replace(label_map, folder / label_map.name)
    return [folder / label_map.name]


def _key(label_map: Path) -> str:
    return f"{label_map.parent.name}/{label_map.name}"


def _checksum(path: Path) -> str:
    return hashlib.blake2b(read_bytes(path), digest_size=16).hexdigest()


def _exchange(label_map: Path, replacement: Path, step: Path) -> None:
    kept = step / label_map.parent.name / label_map.name
    kept.parent.mkdir(exist_ok=True)
    os.replace(label_map, kept)
    os.replace(replacement, label_map)


def _with_block(content: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with the block of `source`, or without any if it has none."""
    others = {key: value for key, value in content.items() if key != BLOCK}
    return {**others, BLOCK: source[BLOCK]} if BLOCK in source else others


def _matching_copy(folder: Path, dataset_json: Mapping[str, Any]) -> Path | None:
    """Return nnU-Net's copy of dataset.json, unless it waits for new label maps."""
    copy = preprocessed_copy(folder)
    if copy is None or _waits(folder, read_json(copy)):
        return None
    if read_json(copy).get("labels") != dataset_json.get("labels"):
        raise LabelSetError(
            f"{copy}: 'labels' differ from those of the raw data set: plan and preprocess again "
            f"first"
        )
    return copy


def _waits(folder: Path, copy: Mapping[str, Any]) -> bool:
    """Tell whether nnU-Net has not preprocessed the label maps that `--mask` has written."""
    return BLOCK not in copy and label_maps_replaced(folder)
