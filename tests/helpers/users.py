"""Permissions, which do not exist for root: tests of them give root's rights away for a while."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def no_root(folder: Path) -> Iterator[None]:
    """In this block even root has only the rights of `nobody`, who may enter `folder`; import what
    it needs before.
    """
    if os.geteuid() != 0:
        yield
        return
    temporary = Path(tempfile.gettempdir()).resolve()
    for path in (folder, *folder.parents):
        if temporary in path.parents:
            path.chmod(path.stat().st_mode | 0o011)
    group = os.getegid()
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
