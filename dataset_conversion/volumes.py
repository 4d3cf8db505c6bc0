"""Volumes as arrays in a place. ITK reads the geometry, as nnU-Net sees it, but not the voxels of NIfTI files: it would
silently turn NaN into 0, and what is copied byte for byte must not hide one.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.errors import LabelSetError

READ_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    zlib.error,
    nibabel.filebasedimages.ImageFileError,
    nibabel.spatialimages.HeaderDataError,
)


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
    if not path.is_file():
        raise LabelSetError(f"{path}: no such file")
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
        if path.name.endswith((".nii", ".nii.gz")):
            array = np.asarray(nibabel.load(path).dataobj).T  # type: ignore[attr-defined]
        else:
            array = sitk.GetArrayFromImage(reader.Execute())
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise LabelSetError(f"{path}: not readable as an image: {reason}") from None
    except READ_ERRORS as error:
        raise LabelSetError(f"{path}: not readable as an image: {error}") from None
    if array.dtype.fields or np.iscomplexobj(array) or reader.GetNumberOfComponents() != 1:
        raise LabelSetError(f"{path}: expected one number per voxel, but got colours, vectors or complex numbers")
    dimension = reader.GetDimension()
    direction = np.array(reader.GetDirection()).reshape(dimension, dimension)[:3, :3]
    return Volume(array, reader.GetSpacing()[:3], reader.GetOrigin()[:3], tuple(direction.ravel().tolist()))


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
