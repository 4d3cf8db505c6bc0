"""One run at a time writes a data set."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from nnunet_labelset.errors import LabelSetError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`; if another run holds it, fail and say which.

    The lock is a file beside the folder, or inside it where the parent folder is read-only. It
    names its holder and ends with the process.
    """
    path = _lock_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise LabelSetError(
            f"{folder}: {_holder(path)} is writing it: wait until it ends"
        ) from None
    try:
        with suppress(OSError):  # a full disk: what is written next says so
            path.write_text(
                f"process {os.getpid()} on {platform.node()}, since {time.strftime('%H:%M:%S')}"
            )
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def _lock_file(folder: Path) -> Path:
    if folder.is_dir() and not os.access(folder.parent, os.W_OK):
        return folder / ".lock"
    return folder.parent / f".{folder.name}.lock"


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:200] or "another run"
    except OSError:
        return "another run"
