"""The one writer of volumes for tests, and the one reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813


def write_volume(
    path: Path,
    array: np.ndarray,
    spacing: Sequence[float] = (),
    origin: Sequence[float] = (),
    direction: Sequence[float] | None = None,
) -> Path:
    """Write an array (z, y, x); spacing and origin are (x, y, z), cut or filled up to its
    dimensions.
    """
    image = sitk.GetImageFromArray(array, isVector=False)
    dimensions = image.GetDimension()
    image.SetSpacing([float(size) for size in (*spacing, *[1.0] * dimensions)[:dimensions]])
    image.SetOrigin([float(place) for place in (*origin, *[0.0] * dimensions)[:dimensions]])
    if direction is not None:
        image.SetDirection(direction)
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image, str(path))
    return path


def read_array(path: Path) -> np.ndarray:
    return sitk.GetArrayFromImage(sitk.ReadImage(str(path)))
