"""Volumes as arrays in a place, as `convert` works on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.volume import read_voxels


@dataclass(frozen=True)
class Volume:
    """`array` is (z, y, x), or (t, z, y, x); the place is that of the three spatial axes."""

    array: np.ndarray
    spacing: tuple[float, ...]
    origin: tuple[float, ...]
    direction: tuple[float, ...]

    # The names of SimpleITK, so that `geometry_difference` compares these as well.
    def GetSize(self) -> tuple[int, ...]:  # noqa: N802
        return self.array.shape[::-1]

    def GetSpacing(self) -> tuple[float, ...]:  # noqa: N802
        return self.spacing

    def GetOrigin(self) -> tuple[float, ...]:  # noqa: N802
        return self.origin

    def GetDirection(self) -> tuple[float, ...]:  # noqa: N802
        return self.direction


def read_volume(path: Path) -> Volume:
    """Read a file once; what is missing or broken is named in one line."""
    array, header = read_voxels(path)
    if np.iscomplexobj(array) or header.GetNumberOfComponents() != 1:
        raise LabelSetError(f"{path}: expected one number per voxel, but got colours, vectors or complex numbers")
    dimension = header.GetDimension()
    direction = np.array(header.GetDirection()).reshape(dimension, dimension)[:3, :3]
    return Volume(array, header.GetSpacing()[:3], header.GetOrigin()[:3], tuple(direction.ravel().tolist()))


def write_volume(volume: Volume, path: Path) -> None:
    """Write a 3D volume, compressed where the format can be."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(volume.array))
    image.SetSpacing(volume.spacing)
    image.SetOrigin(volume.origin)
    image.SetDirection(volume.direction)
    sitk.WriteImage(image, str(path), useCompression=True)


def count_not_finite(array: np.ndarray) -> int:
    """How many voxels are NaN or infinite."""
    if not np.issubdtype(array.dtype, np.floating):
        return 0
    with np.errstate(invalid="ignore", over="ignore"):
        # A sum is finite only if all its terms are, and needs no array of booleans.
        if np.isfinite(np.sum(array, dtype=np.float64)):
            return 0
    return int(np.count_nonzero(~np.isfinite(array)))


def dilate(region: np.ndarray, distance: float, spacing: tuple[float, ...]) -> np.ndarray:
    """Voxels (z, y, x) not farther than `distance` mm from the region.

    Lines along x of every length that the ball has, shifted in y and z: for a few millimetres this is much faster than
    a distance transform, and as exact.
    """
    result = np.zeros_like(region)
    if not region.any():
        return result
    occupied = [np.flatnonzero(region.any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(3)]
    radius = [int(distance / step + 1e-6) for step in spacing]  # in voxels
    tight = region[tuple(slice(found[0], found[-1] + 1) for found in occupied)]
    padded = np.pad(tight, [(r, r) for r in radius])
    lines = [padded]
    for length in range(1, radius[2] + 1):
        longer = lines[-1].copy()
        longer[..., length:] |= padded[..., :-length]
        longer[..., :-length] |= padded[..., length:]
        lines.append(longer)
    ball = np.zeros_like(padded)
    for dz in range(-radius[0], radius[0] + 1):
        for dy in range(-radius[1], radius[1] + 1):
            left = distance**2 - (dz * spacing[0]) ** 2 - (dy * spacing[1]) ** 2
            if left > -1e-6:
                line = lines[int(max(left, 0) ** 0.5 / spacing[2] + 1e-6)]
                ball[_shift(dz), _shift(dy)] |= line[_shift(-dz), _shift(-dy)]
    inside, cut = [], []
    for found, r, size in zip(occupied, radius, region.shape, strict=True):
        first, last = int(found[0]) - r, int(found[-1]) + r + 1
        inside.append(slice(max(first, 0), min(last, size)))
        cut.append(slice(max(-first, 0), last - first - max(last - size, 0)))
    result[tuple(inside)] = ball[tuple(cut)]
    return result


def _shift(steps: int) -> slice:
    return slice(steps, None) if steps >= 0 else slice(None, steps)
