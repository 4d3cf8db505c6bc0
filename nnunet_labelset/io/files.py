"""Files: read or explained, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError

TEMPORARY = re.compile(r"\.[0-9a-f]{16}(\.\w+)*")  # what `new_file` writes before it gets its name
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-+]*")


def read_bytes(path: str | Path) -> bytes:
    """The content of a file; a missing or unreadable file is named in one line."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise LabelSetError(f"{path}: no such file") from None
    # no permission, a folder, a loop of links, a NUL in the name
    except (OSError, ValueError) as error:
        raise LabelSetError(f"{path}: not readable: {reason(error)}") from None


def checksum(path: str | Path) -> str:
    """Return the BLAKE2b checksum of a file, as `b2sum -l 256` prints it."""
    digest = hashlib.blake2b(digest_size=32)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def read_json(path: str | Path, kind: type = dict) -> Any:
    """A JSON object, or a `list`, from a file; a missing or broken file is named."""
    raw = read_bytes(path)
    try:
        content = json.loads(raw.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise LabelSetError(f"{path}: not readable as JSON: nested too deeply") from None
    except ValueError as error:  # no text, not JSON, or an integer of thousands of digits
        raise LabelSetError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(content, kind):
        expected = "a JSON object" if kind is dict else f"a JSON {kind.__name__}"
        raise LabelSetError(f"{path}: expected {expected}, but got {type(content).__name__}")
    return content


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; the last of two equal keys would win silently."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key '{twice}' occurs twice in one object: keep one of them")
    return content


@contextmanager
def new_file(
    path: str | Path, flush: bool = True, temporary_name: str | None = None
) -> Iterator[Path]:
    """A path for any writer; when the block ends, what was written there is flushed to disk and
    named `path`.

    Readers see the old file or the whole new one. After an error nothing is left behind. A disk
    that is full, or a folder that cannot be written to, is one line. Who writes many files flushes
    them together (`flush_files`). A fixed `temporary_name` is for large files with one writer: a
    killed process then leaves at most one of them behind.
    """
    path = Path(path)
    if os.path.exists(path) and not os.path.isfile(path):  # a device, which root would replace
        raise LabelSetError(f"{path}: cannot be written: it is there already, and is not a file")
    # some writers go by it
    ending = "".join(path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:])
    # short: the name itself may be as long as can be
    temporary = path.parent / (temporary_name or f".{secrets.token_hex(8)}{ending}")
    is_mine = temporary_name is not None
    try:
        try:
            temporary.touch(exist_ok=is_mine)  # tells at once what no writer could do
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch(exist_ok=is_mine)
        yield temporary
        if flush:
            _flush(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise LabelSetError(f"{path}: cannot be written: {reason(error)}") from None
        raise


def remove_temporaries(folder: Path) -> None:
    """Remove files that a killed process has left before they got their names."""
    for path in folder.glob(".*"):
        if TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def link_file(path: Path, to: Path) -> None:
    """A symbolic link, in place of a file or link that may be there."""
    try:
        try:  # thousands of times in one run: one call where nothing is in the way
            os.symlink(to, path)
        except FileExistsError:
            path.unlink()
            os.symlink(to, path)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(to, path)
    except OSError as error:
        raise LabelSetError(f"{path}: cannot be written: {reason(error)}") from None


def flush_files(paths: Iterable[Path]) -> None:
    """Wait until files are on disk; many at once, as the disk then writes its journal once for all
    of them.
    """
    paths = list(paths)
    try:
        with ThreadPoolExecutor(16) as threads:
            for _ in threads.map(_flush, paths):
                pass
    except RuntimeError:  # a memory limit allows no more threads
        for path in paths:
            _flush(path)


def _flush(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())  # a full disk may tell only now


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with new_file(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | Path, text: str) -> None:
    """Write a text (UTF-8) whole or not at all."""
    # names of files may be no valid text
    write_bytes(path, text.encode("utf-8", errors="surrogateescape"))


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON whole or not at all, indented as nnU-Net does. NaN is written as `NaN`, which
    nnU-Net reads.
    """
    write_text(path, json.dumps(content, indent=4) + "\n")


def reason(error: BaseException) -> str:
    """What an exception says, without the number and the file name that `OSError` adds."""
    return (
        (error.strerror if isinstance(error, OSError) else None)
        or str(error)
        or type(error).__name__
    )


def check_name(name: str, what: str) -> str:
    """A name that is safe as part of a file name inside the target folder."""
    if not SAFE_NAME.fullmatch(name):
        raise LabelSetError(
            f"{what} '{name}': expected letters, digits, '_', '-', '+' and '.', starting with a "
            "letter or digit"
        )
    if len(name) > 200:
        raise LabelSetError(
            f"{what} '{name[:40]}...': {len(name)} characters are too many for a file name"
        )
    return name


def case_files(folder: str | Path, file_ending: str) -> dict[str, Path]:
    """Label maps or predictions of a folder by case name, sorted; hidden files (`._x`) are left
    out.

    A folder that does not exist has none; one that cannot be listed is an error.
    """
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise LabelSetError(f"{folder}: not readable: {reason(error)}") from None
    return {
        name[: -len(file_ending)]: Path(folder, name)
        for name in names
        if name.endswith(file_ending) and not name.startswith(".")
    }


def list_files(folder: Path, depth: int | None = None) -> list[str]:
    """Return the relative paths of all files below `folder`, with `/` and sorted.

    Hidden files (`._x`) and folders are left out. Links to folders are followed, unless they lead
    back to a folder above. `depth` limits how many folders deep to look.
    """

    def stop(error: OSError) -> None:
        raise LabelSetError(f"{error.filename}: not readable: {error.strerror}")

    if not folder.is_dir():
        raise LabelSetError(f"{folder}: no such folder")
    paths: list[str] = []
    above = {str(folder): frozenset[str]()}  # the real folders above each folder
    for current, folders, files in os.walk(folder, onerror=stop, followlinks=True):
        real = os.path.realpath(current)
        relative = Path(current).relative_to(folder)
        if real in above[current] or (depth is not None and len(relative.parts) >= depth):
            folders.clear()
        if real in above[current]:
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        above |= {os.path.join(current, name): above[current] | {real} for name in folders}
        paths += [(relative / name).as_posix() for name in files if not name.startswith(".")]
    return sorted(paths)
