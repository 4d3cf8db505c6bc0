"""Reading volumes: errors name the file, nothing is hidden, geometry is compared, labels are integers.

ITK reads the geometry, as nnU-Net sees it, but not the voxels of NIfTI files: it turns NaN into 0 and fills up
truncated files without a word.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import nibabel
import numpy as np
import SimpleITK as sitk  # noqa: N813  (the name that everybody uses)

from nnunet_labelset.errors import LabelSetError

# Headers are float32 in NIfTI: what differs by less than this is the same place.
RELATIVE_SPACING = 1e-3
RELATIVE_ORIGIN = 1e-2  # of a voxel
DIRECTION = 1e-3
READ_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    zlib.error,
    nibabel.filebasedimages.ImageFileError,
    nibabel.spatialimages.HeaderDataError,
)


def read_image(path: str | Path) -> sitk.Image:
    """Read a volume; a missing or broken file is named in one line."""
    array, header = read_voxels(path)
    image = sitk.GetImageFromArray(array, isVector=header.GetNumberOfComponents() > 1)
    image.SetSpacing(header.GetSpacing())
    image.SetOrigin(header.GetOrigin())
    image.SetDirection(header.GetDirection())
    return image


def read_voxels(path: str | Path) -> tuple[np.ndarray, sitk.ImageFileReader]:
    """The voxels of a file (z, y, x), and the reader that knows its geometry."""
    path = Path(path)
    if not path.is_file():
        raise LabelSetError(f"{path}: no such file")
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
        if not path.name.endswith((".nii", ".nii.gz")):
            return sitk.GetArrayFromImage(reader.Execute()), reader
        array = _nifti_voxels(path.read_bytes())
        if array.dtype.fields or reader.GetNumberOfComponents() > 1:  # colours and vectors
            return sitk.GetArrayFromImage(reader.Execute()), reader
        return array.reshape(reader.GetSize()[::-1]), reader
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise LabelSetError(f"{path}: not readable as an image: {reason}") from None
    except READ_ERRORS as error:
        raise LabelSetError(f"{path}: not readable as an image: {error}") from None


def _nifti_voxels(content: bytes) -> np.ndarray:
    """The voxels (z, y, x) of a NIfTI file, scaled as its header says. Decompressed in one go, which is fastest."""
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    second = 540 in (int.from_bytes(content[:4], order) for order in ("little", "big"))
    image = (nibabel.Nifti2Image if second else nibabel.Nifti1Image).from_bytes(content)
    array = np.asarray(image.dataobj).T
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def geometry_difference(a: sitk.Image | sitk.ImageFileReader, b: sitk.Image | sitk.ImageFileReader) -> str | None:
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


def label_array(image: sitk.Image, path: str | Path) -> np.ndarray:
    """The values of a label map as int64-safe integers (z, y, x), rounded; real fractions are an error.

    NaN counts as background, and header scaling may leave values such as 1.00000006.
    """
    return integer_array(sitk.GetArrayFromImage(image), path)


def integer_array(array: np.ndarray, path: str | Path, allow_nan: bool = True, tolerance: float = 1e-3) -> np.ndarray:
    """What `label_array` does, for an array that was read from `path`; NaN may be made an error."""
    if np.issubdtype(array.dtype, np.integer):
        return array
    bad = int(np.count_nonzero(np.isinf(array) if allow_nan else ~np.isfinite(array)))
    if bad:
        raise LabelSetError(f"{path}: {bad} voxels of the label map are NaN or infinite")
    array = np.nan_to_num(array, nan=0.0)
    rounded = np.rint(array)
    fractions = int(np.count_nonzero(np.abs(array - rounded) > tolerance))
    if fractions:
        raise LabelSetError(f"{path}: {fractions} voxels of the label map have fractional values")
    return rounded.astype(np.int32)
