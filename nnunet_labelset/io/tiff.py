"""TIFF files are chains of pages, and each page says where the next one begins.

ITK stops at a link that leads out of the file without a word: a cut-off volume would lose its last
slices.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from nnunet_labelset.errors import LabelSetError


def check_pages(path: Path) -> None:
    """Follow the chain to its end; a page that is not all there is an error."""
    with open(path, "rb") as file:
        start = file.read(16)
        order = "<" if start.startswith(b"II") else ">"
        big = start[2:4] in (b"\x2b\0", b"\0\x2b")  # BigTIFF: longer numbers
        count, entry, link = ("Q", 20, "Q") if big else ("H", 12, "I")
        at = struct.unpack_from(order + link, start, 8 if big else 4)[0]
        pages: set[int] = set()
        while at and at not in pages:
            pages.add(at)
            file.seek(at)
            entries = file.read(struct.calcsize(count)).ljust(8, b"\0")
            end = (
                at + struct.calcsize(count) + struct.unpack_from(order + count, entries)[0] * entry
            )
            file.seek(end)
            following = file.read(struct.calcsize(link))
            if len(following) < struct.calcsize(link):
                size = os.fstat(file.fileno()).st_size
                raise LabelSetError(
                    f"{path}: cut off: page {len(pages)} lies at byte {at}, but the file has {size}"
                )
            at = struct.unpack(order + link, following)[0]
