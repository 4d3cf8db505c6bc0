"""Read a large array of an .npz file piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError  # noqa: N812

import numpy as np

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import reason

SLAB = 2**20  # voxels that are looked at together


@dataclass(frozen=True)
class Slab:
    """Some voxels of a channel: those of `part`, where the voxels of a channel are one long row."""

    channel: int
    part: slice
    voxels: np.ndarray


def slabs_of(array: np.ndarray) -> Iterator[Slab]:
    """Yield an array `(C, *S)` in slabs."""
    for channel, volume in enumerate(array):
        row = volume.reshape(-1)
        for start in range(0, row.size, SLAB):
            part = slice(start, start + SLAB)
            yield Slab(channel=channel, part=part, voxels=row[part])


def read_slabs(path: Path, name: str, shape: tuple[int, ...]) -> Iterator[Slab]:
    """Yield the array `name` of an .npz file in slabs, without holding more than one of them.

    It must have the shape `(C, *S)`; other files are errors.
    """
    try:
        with ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            stored_shape, is_fortran, dtype = _header(file)
            if stored_shape != shape:
                raise LabelSetError(f"{path}: shape {stored_shape}, expected {shape}")
            if is_fortran:  # its channels lie between each other
                yield from slabs_of(np.load(path)[name])
            else:
                yield from _stream(file, shape, dtype)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, ZlibError) as error:
        if isinstance(error, LabelSetError):
            raise
        raise LabelSetError(f"{path}: not readable: {reason(error)}") from None


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _stream(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype) -> Iterator[Slab]:
    if dtype.kind != "f":
        raise ValueError(f"expected floating point numbers, but got {dtype}")
    size = int(np.prod(shape[1:]))
    for channel in range(shape[0]):
        for start in range(0, size, SLAB):
            stop = min(start + SLAB, size)
            content = file.read((stop - start) * dtype.itemsize)
            if len(content) < (stop - start) * dtype.itemsize:
                raise ValueError("the file is cut off")
            voxels = np.frombuffer(content, dtype)
            yield Slab(channel=channel, part=slice(start, stop), voxels=voxels)
    if file.read(1):  # also lets zipfile compare the checksum
        raise ValueError("there is more in the file than its header says")
