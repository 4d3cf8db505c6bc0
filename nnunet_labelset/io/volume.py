"""The one shape of an image: read with errors that name the file, written whole.

ITK reads the geometry, as nnU-Net sees it, but not the voxels of NIfTI files (see `nifti`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import nibabel
import numpy as np
import SimpleITK as sitk  # noqa: N813  (the name that everybody uses)

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import new_file, read_bytes, reason
from nnunet_labelset.io.flat import is_picture, is_tiff, read_picture
from nnunet_labelset.io.nifti import (
    NIFTI_VOXELS,
    bytes_promised,
    check_promise,
    nifti_bytes,
    read_nifti,
    unzip,
)
from nnunet_labelset.io.place import Place, nifti_place, place_of
from nnunet_labelset.io.tiff import check_pages

FRACTION = 1e-3  # of a value in a label map: header scaling may leave 1.00000006
HIGHEST_VALUE = (
    65535  # of a label map: label files are 16 bit at most, and tables by value stay small
)
PAIRED = (".hdr", ".img", ".mhd", ".nhdr")  # header and voxels in files of their own


class Volume(NamedTuple):
    """Voxels (z, y, x), (t, z, y, x) or, in a flat picture, (y, x), in their place."""

    array: np.ndarray
    place: Place


def read_voxels(path: str | Path, indices: bool = False) -> Volume:
    """The volume in a file; a missing or broken file is named in one line.

    With `indices`, a picture with a palette gives the numbers in it instead of colours.
    """
    path = Path(path)
    if not path.is_file():
        link = path.is_symlink()
        raise LabelSetError(
            f"{path}: " + ("a link that leads to no file" if link else "no such file")
        )
    try:
        if path.name.endswith((".nii", ".nii.gz")):
            return _read_nifti(path)
        if is_picture(path) and not is_tiff(path):
            return Volume(*read_picture(path, indices))
        return _read_itk(path)
    except LabelSetError:
        raise
    except RuntimeError as error:
        why = str(error).strip().splitlines()[-1].strip()
        raise LabelSetError(f"{path}: not readable as an image: {why}") from None
    except Exception as error:  # parsers of broken bytes raise whatever they stumble over
        raise LabelSetError(f"{path}: not readable as an image: {reason(error)}") from None


def _read_nifti(path: Path) -> Volume:
    array, header, stored = read_nifti(path)
    if array.dtype.fields or array.ndim > 4:  # colours and vectors
        return _read_itk(path)
    place = nifti_place(path, header, stored)
    return (
        Volume(array.reshape(place.size[::-1]), place) if place.components == 1 else _read_itk(path)
    )


def _read_itk(path: Path) -> Volume:
    # reading its header would also change the locale of the process, and with it `open`
    if path.suffix == ".vtk":
        raise LabelSetError(
            f"{path}: a truncated .vtk file cannot be recognised: save it as .nii.gz"
        )
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    _check_size(path, reader)
    if is_tiff(path) and reader.GetDimension() == 2:
        return Volume(*read_picture(path))
    array = sitk.GetArrayFromImage(reader.Execute())
    return Volume(array, place_of(reader, reader.GetNumberOfComponents()))


def _check_size(path: Path, reader: sitk.ImageFileReader) -> None:
    """Header against file size. ITK fills Analyze pairs and GIPL files up, and asks for any
    memory.
    """
    if path.suffix in (".hdr", ".img"):
        voxels = path.with_suffix(".img")
        if voxels.is_file():
            header = nibabel.load(path.with_suffix(".hdr")).header
            check_promise(voxels, bytes_promised(header), voxels.stat().st_size, False)
        return
    expected = math.prod(reader.GetSize()) * reader.GetNumberOfComponents()
    if path.name.endswith((".gipl", ".gipl.gz")):
        zipped = path.suffix == ".gz"
        expected = (
            expected * sitk.GetArrayViewFromImage(sitk.Image([1, 1], reader.GetPixelID())).itemsize
            + 256
        )
        check_promise(path, expected, path.stat().st_size, zipped)
        if zipped:
            check_promise(path, expected, len(unzip(read_bytes(path), expected)), False)
        return
    if path.suffix.lower() in (".tif", ".tiff"):
        check_pages(path)
    # .mhd and .raw
    family = [other for other in path.parent.glob(f"{path.name.split('.')[0]}*") if other.is_file()]
    check_promise(path, expected, sum(other.stat().st_size for other in family), True)


def itk_image(array: np.ndarray, place: Place) -> sitk.Image:
    """Return an array as an image of ITK."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(array), isVector=place.components > 1)
    image.SetSpacing(place.spacing)
    image.SetOrigin(place.origin)
    image.SetDirection(place.direction)
    return image


def oriented(volume: Volume, axes: str) -> Volume:
    """A 3D volume with its axes in the order of ITK's letters, such as LPS; any other one as
    it is.
    """
    if len(volume.place.size) != 3:
        return volume
    image = sitk.DICOMOrient(itk_image(*volume), axes)
    return Volume(sitk.GetArrayFromImage(image), place_of(image, volume.place.components))


def write_voxels(path: str | Path, array: np.ndarray, place: Place, flush: bool = True) -> None:
    """Write voxels (z, y, x) in their place, whole or not at all, compressed where the format can
    be.

    Read back before the file gets its name: ITK does not tell when a disk was full.
    """
    if Path(path).suffix.lower() in PAIRED:
        raise LabelSetError(
            f"{path}: cannot be written: such images are two files, one of which could be lost"
        )
    with new_file(path, flush) as temporary:
        try:
            # ITK's copy is gone before the file is read back: scans are large.
            sitk.WriteImage(itk_image(array, place), str(temporary), useCompression=True)
            is_whole = _holds(temporary, array)
        except Exception as error:  # whatever a reader stumbles over in half a file
            why = reason(error).strip().splitlines()[-1].replace(str(temporary), "the file")
            raise LabelSetError(
                f"{path}: cannot be written, perhaps the disk is full: {why}"
            ) from None
        if not is_whole:
            raise LabelSetError(
                f"{path}: cannot be written, perhaps the disk is full: other voxels were read back"
            )


def _holds(path: Path, array: np.ndarray) -> bool:
    """Tell whether a file that ITK has just written holds exactly this array."""
    if path.name.endswith((".nii", ".nii.gz")):
        # Thousands of times in one run: no look at the header.
        written = nifti_bytes(path, NIFTI_VOXELS + array.nbytes)
        if len(written) == NIFTI_VOXELS + array.nbytes and _ends_with(written, array):
            return True
        written_array = read_nifti(path)[0]  # colours lie in another order
    else:
        written_array = read_voxels(path).array
    inexact = np.issubdtype(array.dtype, np.inexact)
    return np.array_equal(written_array, array, equal_nan=inexact)


def _ends_with(content: bytes, array: np.ndarray) -> bool:
    """Tell whether the bytes of an array are the last ones, without a copy of all of them."""
    start = len(content) - array.nbytes
    for part in array if array.ndim else [array]:
        if content[start : start + part.nbytes] != part.tobytes():
            return False
        start += part.nbytes
    return True


def integer_array(array: np.ndarray, path: str | Path, allow_nan: bool = True) -> np.ndarray:
    """The values of a label map that was read from `path`, rounded; real fractions are an error.

    NaN counts as background, unless it is to be an error too.
    """
    if np.issubdtype(array.dtype, np.integer):
        return array
    if not np.issubdtype(array.dtype, np.floating):
        raise LabelSetError(
            f"{path}: expected a label map of one number per voxel, but got {array.dtype}"
        )
    bad = int(np.count_nonzero(np.isinf(array) if allow_nan else ~np.isfinite(array)))
    if bad:
        raise LabelSetError(f"{path}: {bad} voxels of the label map are NaN or infinite")
    array = np.nan_to_num(array, nan=0.0)
    rounded = np.rint(array)
    fractions = int(np.count_nonzero(np.abs(array - rounded) > FRACTION))
    if fractions:
        raise LabelSetError(
            f"{path}: {fractions} voxels of the label map have fractional values: if they are "
            f"probabilities, store the labels that they stand for"
        )
    if rounded.size and np.abs(rounded).max() > np.iinfo(np.int32).max:
        raise LabelSetError(f"{path}: values up to {np.abs(rounded).max():.3g}: not a label map")
    return rounded.astype(np.int32)


def why_cut_off(array: np.ndarray) -> str | None:
    """Say why nnU-Net would read other values from this label map; None if it would not.

    nnU-Net cuts fractions off: 2.9999998, which the scaling of a header may leave, becomes 2.
    """
    if np.issubdtype(array.dtype, np.integer):
        return None
    values = array.astype(np.float32)  # as ITK hands them on
    inexact = values[values != np.rint(values)]
    if not inexact.size:
        return None
    example = float(inexact.flat[0])
    return (
        f"{inexact.size} voxels have values like {example:.8g}, which nnU-Net reads as "
        f"{int(example)}: save the label map again as integers, without scaling in its header"
    )


def count_values(labels: np.ndarray) -> dict[int, int]:
    """Voxels of every value that occurs in an array of integers."""
    labelled = labels[labels != 0]  # few voxels of a scan, and counting is slower than choosing
    if labelled.size and labelled.min() > 0 and labelled.max() <= HIGHEST_VALUE:
        counts = np.bincount(labelled)
        present = np.flatnonzero(counts)
        counts = counts[present]
    else:
        present, counts = np.unique(labelled, return_counts=True)
    found = dict(zip(present.tolist(), counts.tolist(), strict=True))
    return {0: labels.size - labelled.size, **found} if labelled.size < labels.size else found


def count_not_finite(array: np.ndarray) -> int:
    """How many voxels are NaN or infinite."""
    if not np.issubdtype(array.dtype, np.inexact):
        return 0
    with np.errstate(invalid="ignore", over="ignore"):
        # A sum is finite only if all its terms are, and needs no array of booleans.
        if np.isfinite(np.sum(array, dtype=np.result_type(array.dtype, np.float64))):
            return 0
    return int(np.count_nonzero(~np.isfinite(array)))
