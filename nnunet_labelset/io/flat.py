"""Flat pictures (PNG, BMP, JPEG, 2D TIFF), with the pixels that nnU-Net's reader sees.

ITK differs: it reads 255 for the 1 of a bilevel PNG, colours for a grey BMP, and resolutions that
nnU-Net ignores.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.place import Place

PICTURES = (".png", ".bmp", ".tif")  # endings that nnU-Net reads as flat pictures
LOSSY = (".jpg", ".jpeg")
COLOURS = (3, 4)


def is_picture(path: str | Path) -> bool:
    """Tell whether a file is a picture by its ending; a TIFF may also be a volume."""
    return Path(path).suffix.lower() in (*PICTURES, *LOSSY, ".tiff")


def refuse_lossy(path: Path) -> None:
    """Fail if a label map or mask is stored in a format that changes its values."""
    if path.suffix.lower() in LOSSY:
        raise LabelSetError(
            f"{path}: JPEG changes values at every outline: export labels and masks as PNG"
        )


def is_tiff(path: Path) -> bool:
    return path.suffix.lower() in (".tif", ".tiff")


def is_flat(path: Path) -> bool:
    """Tell whether a file is a picture; looks into TIFF files, which may be volumes."""
    if not is_tiff(path):
        return is_picture(path)
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
    except RuntimeError:  # whoever reads it will tell
        return False
    return reader.GetDimension() == 2


def read_picture(path: Path, indices: bool = False) -> tuple[np.ndarray, Place]:
    """Return the pixels (y, x), or (y, x, colour), and their place with a spacing of 1.

    With `indices`, a picture with a palette gives the numbers in it, and else their colours.
    """
    array = _indices(path) if indices and not is_tiff(path) else None
    if array is None:
        from skimage import io  # takes a while to import

        array = io.imread(str(path))
    if array.dtype == bool:
        array = array.astype(np.uint8)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in COLOURS):
        raise ValueError(f"expected a grey or RGB picture, but got the shape {array.shape}")
    place = Place(
        size=array.shape[1::-1],
        spacing=(1.0, 1.0),
        origin=(0.0, 0.0),
        direction=(1.0, 0.0, 0.0, 1.0),
        components=array.shape[2] if array.ndim == 3 else 1,
    )
    return array, place


def _indices(path: Path) -> np.ndarray | None:
    from PIL import Image

    with Image.open(path) as picture:
        return np.asarray(picture) if picture.mode == "P" else None
