"""Small files: read or explained, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
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


def case_files(folder: str | Path, file_ending: str) -> dict[str, Path]:
    """Label maps or predictions of a folder by case name, sorted; hidden files (`._x`) are left out."""
    return {
        path.name[: -len(file_ending)]: path
        for path in sorted(Path(folder).glob(f"*{file_ending}"))
        if not path.name.startswith(".")
    }
