"""The pixels of a stack of slices, rescaled to the units of the modality."""

from __future__ import annotations

import warnings
from functools import lru_cache
from pathlib import Path

import numpy as np
import pydicom
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.dataset_conversion.dicom.slices import Slice, StoredPixels
from nnunet_labelset.dataset_conversion.dicom.stack import Stack
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import reason

INT16 = np.iinfo(np.int16)


def read_pixels(stack: Stack) -> np.ndarray:
    """Return the rescaled values (z, y, x): int16 where they are whole numbers, else float32."""
    array = np.empty(stack.shape, dtype=np.int16)
    for number, image in enumerate(stack.slices):
        values, slope, intercept = _read_values(image)
        if array.dtype == np.int16 and not _fits(values, slope, intercept):
            array = array.astype(np.float32)
        if array.dtype != np.int16:
            array[number] = values * slope + intercept
            continue
        if slope != 1:
            values = np.multiply(values, int(slope), dtype=np.int32)
        np.add(values, int(intercept), out=array[number], dtype=np.int32, casting="unsafe")
    return array


def _fits(values: np.ndarray, slope: float, intercept: float) -> bool:
    """Return whether the rescaled values are whole numbers that int16 holds."""
    if not (values.dtype.kind in "iu" and slope.is_integer() and intercept.is_integer()):
        return False
    ends = [int(end) * slope + intercept for end in (values.min(), values.max())]
    return min(ends) >= INT16.min and max(ends) <= INT16.max


def _read_values(image: Slice) -> tuple[np.ndarray, float, float]:
    """Return the stored values (y, x), and the slope and the intercept that they need."""
    try:
        if image.stored is not None:
            values = _read_stored(image, image.stored)
            if values is not None:
                return values, image.slope, image.intercept
        frames, is_rescaled = _decode(image.path)
        values = frames[image.frame]
    except Exception as error:  # whatever a parser stumbles over
        why = reason(error).strip().splitlines()[0]
        raise LabelSetError(f"{image.path}: pixels not readable: {why}") from None
    if values.shape != (image.rows, image.columns):
        raise LabelSetError(f"{image.path}: expected one slice, but got the shape {values.shape}")
    return (values, 1.0, 0.0) if is_rescaled else (values, image.slope, image.intercept)


def _read_stored(image: Slice, stored: StoredPixels) -> np.ndarray | None:
    """Return pixels that need no decoder, or None if not all of them are there."""
    count = image.rows * image.columns
    start = stored.offset + image.frame * count * 2
    values = np.fromfile(image.path, dtype=stored.dtype, count=count, offset=start)
    if values.size < count:
        return None
    if stored.unused_bits:  # may hold anything
        values <<= stored.unused_bits
        values >>= stored.unused_bits
    return values.reshape(image.rows, image.columns)


@lru_cache(maxsize=1)  # of an enhanced file, whose frames are asked for one by one
def _decode(path: Path) -> tuple[np.ndarray, bool]:
    """Return the frames (f, y, x) of a file, and whether they are rescaled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # padding behind the pixels
        content = pydicom.dcmread(path, force=True)
    if "TransferSyntaxUID" not in content.file_meta:  # no preamble: the default of DICOM
        content.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
    single = int(content.get("NumberOfFrames") or 1) == 1
    if content.file_meta.TransferSyntaxUID.is_compressed and single:
        return _decode_with_itk(path, content.file_meta.TransferSyntaxUID.name), True
    values = content.pixel_array
    return (values[None] if values.ndim == 2 else values), False


def _decode_with_itk(path: Path, syntax: str) -> np.ndarray:
    """Return the rescaled values: ITK has the decoders that pydicom asks further packages for."""
    reader = sitk.ImageFileReader()
    reader.SetImageIO("GDCMImageIO")
    reader.SetFileName(str(path))
    try:
        return sitk.GetArrayFromImage(reader.Execute())
    except RuntimeError as error:
        why = str(error).strip().splitlines()[-1].strip()
        raise LabelSetError(f"compressed with {syntax}, which cannot be decoded: {why}") from None
