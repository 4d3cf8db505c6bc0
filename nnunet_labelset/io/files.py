"""Folders of nnU-Net and small files: found or explained, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError

SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-+]*")


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object from a file; a missing or broken file is named."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LabelSetError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LabelSetError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(content, dict):
        raise LabelSetError(f"{path}: expected a JSON object, but got {type(content).__name__}")
    return content


def write_text(path: str | Path, text: str) -> None:
    """Write a file atomically: readers see the old content or the new one, never a part."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:  # no permission, or a part of the path is a file
        raise LabelSetError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes private files
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON atomically, indented as nnU-Net does. NaN is written as `NaN`, which nnU-Net reads."""
    write_text(path, json.dumps(content, indent=4) + "\n")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_name(name: str, what: str) -> str:
    """A name that is safe as part of a file name inside the target folder."""
    if not SAFE_NAME.fullmatch(name):
        raise LabelSetError(
            f"{what} '{name}': expected letters, digits, '_', '-', '+' and '.', starting with a letter or digit"
        )
    return name


def nnunet_folder(variable: str) -> Path:
    """The folder that one of nnU-Net's environment variables names (`nnUNet_raw`, ...)."""
    folder = os.environ.get(variable)
    if not folder:
        raise LabelSetError(f"{variable} is not set: export {variable}=/your/folder, as nnU-Net needs it")
    return Path(folder)


def find_dataset(dataset: str | int, variable: str = "nnUNet_raw") -> Path:
    """The folder of a data set, given as id (`27`), name (`Dataset027_Name`) or path.

    `variable` is nnU-Net's name of the folder to look in: `nnUNet_raw`, `nnUNet_preprocessed` or `nnUNet_results`.
    """
    dataset = str(dataset)
    if not dataset.isdigit():
        if (Path(dataset) / "dataset.json").is_file():
            return Path(dataset)
        if not dataset.startswith("Dataset") or os.sep in dataset:
            raise LabelSetError(f"{dataset}: not a data set: expected an id, a name DatasetXXX_Name or its folder")
    root = nnunet_folder(variable)
    pattern = f"Dataset{int(dataset):03d}_*" if dataset.isdigit() else dataset
    found = sorted(path for path in root.glob(pattern) if path.is_dir())
    if not found:
        raise LabelSetError(f"{root}: no data set {dataset} (looked for {pattern})")
    if len(found) > 1:
        raise LabelSetError(f"{root}: several data sets have id {dataset}: {', '.join(path.name for path in found)}")
    return found[0]


def case_files(folder: str | Path, file_ending: str) -> dict[str, Path]:
    """Label maps or predictions of a folder by case name, sorted; hidden files (`._x`) are left out."""
    return {
        path.name[: -len(file_ending)]: path
        for path in sorted(Path(folder).glob(f"*{file_ending}"))
        if not path.name.startswith(".")
    }


def some(names: Iterable[object], most: int = 5) -> str:
    """A list of names for a message, cut after `most`."""
    shown = [str(name) for name in names]
    return ", ".join(shown[:most]) + (f", ... ({len(shown)} in all)" if len(shown) > most else "")
