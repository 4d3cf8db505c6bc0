"""One run at a time writes a data set."""

from __future__ import annotations

import errno
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nnunet_labelset.errors import LabelSetError

try:
    import fcntl
except (
    ImportError
):  # Windows: an open file cannot be removed there, which protects the names but not the run
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, a file beside it; if another run holds it, say which. It ends with
    the process.
    """
    path = folder.parent / f".{folder.name}.lock"
    handle = _open(path)
    while not _is_at(
        handle, path
    ):  # the run before has removed it between our opening and our locking
        os.close(handle)
        handle = _open(path)
    try:
        os.ftruncate(handle, 0)
        os.write(
            handle,
            f"process {os.getpid()} on {platform.node()}, since {time.strftime('%H:%M:%S')}".encode(),
        )
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            return handle  # a file system without locks
        holder = os.read(handle, 200).decode(errors="replace") or "another run"
        os.close(handle)
        name = path.name.removeprefix(".").removesuffix(".lock")
        raise LabelSetError(
            f"{path.parent / name}: {holder} is writing it: wait until it ends, or choose another -d or -n"
        ) from None
    return handle


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
