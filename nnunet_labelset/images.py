"""Reading volumes with SimpleITK: errors name the file, geometry is compared, labels are integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813  (the name that everybody uses)

from nnunet_labelset.errors import LabelSetError

# Headers are float32 in NIfTI: what differs by less than this is the same place.
RELATIVE_SPACING = 1e-3
RELATIVE_ORIGIN = 1e-2  # of a voxel
DIRECTION = 1e-3


def read_image(path: str | Path) -> sitk.Image:
    """Read a volume; a missing or broken file is named in one line."""
    if not Path(path).is_file():
        raise LabelSetError(f"{path}: no such file")
    try:
        return sitk.ReadImage(str(path))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise LabelSetError(f"{path}: not readable as an image: {reason}") from None


def geometry_difference(a: sitk.Image, b: sitk.Image) -> str | None:
    """What differs in size, spacing, origin or direction beyond rounding, or None."""
    if a.GetSize() != b.GetSize():
        return f"size {a.GetSize()} and {b.GetSize()}"
    spacing = np.array(a.GetSpacing())
    if not np.allclose(spacing, b.GetSpacing(), rtol=RELATIVE_SPACING, atol=0):
        return f"spacing {a.GetSpacing()} and {b.GetSpacing()}"
    if not np.allclose(a.GetDirection(), b.GetDirection(), rtol=0, atol=DIRECTION):
        return f"direction {a.GetDirection()} and {b.GetDirection()}"
    if np.any(np.abs(np.array(a.GetOrigin()) - b.GetOrigin()) > RELATIVE_ORIGIN * spacing.max()):
        return f"origin {a.GetOrigin()} and {b.GetOrigin()}"
    return None


def label_array(image: sitk.Image, path: str | Path, tolerance: float = 1e-3) -> np.ndarray:
    """The values of a label map as int64-safe integers (z, y, x), rounded; real fractions are an error.

    NaN counts as background, and header scaling may leave values such as 1.00000006.
    """
    return integer_array(sitk.GetArrayFromImage(image), path, tolerance)


def integer_array(array: np.ndarray, path: str | Path, tolerance: float = 1e-3) -> np.ndarray:
    """What `label_array` does, for an array that was read from `path`."""
    if np.issubdtype(array.dtype, np.integer):
        return array
    array = np.nan_to_num(array, nan=0.0)
    rounded = np.rint(array)
    fractions = int(np.count_nonzero(np.abs(array - rounded) > tolerance))
    if fractions:
        raise LabelSetError(f"{path}: {fractions} voxels of the label map have fractional values")
    return rounded.astype(np.int32)
