"""Labels over air, where nnU-Net normalises intensities inside a mask.

For images that are mostly black around the object (skull-stripped, cropped to the body), nnU-Net
takes mean and deviation of voxels that are not 0 in the image, or not 0 in the label map. There is
no label map when it predicts: `ignore` over air changes the intensities of training images only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import scipy  # loads submodules on first use

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.folders import preprocessed_copy
from nnunet_labelset.nnunet.names import DEFAULT_PLANS

# Channel names whose normalisation never looks at a mask.
WITHOUT_MASK = frozenset({"ct", "nonorm", "rescale_to_0_1", "rgb_to_0_1"})
CROPPED = 0.75  # of the image: nnU-Net uses the mask where less is left after cropping
NOTICEABLE = 0.01  # of the voxels that are not air


class Air(NamedTuple):
    """What cropping leaves of an image, and labelled air, as a share of the voxels that are not."""

    cropped: float
    labelled: float


def may_use_mask(channels: Collection[str]) -> bool:
    return any(channel.casefold() not in WITHOUT_MASK for channel in channels)


def measure_air(images: Sequence[np.ndarray], values: np.ndarray) -> Air:
    """Return what there is to know about the air of a case. Images and values: `(z, y, x)`."""
    inside = np.zeros(values.shape, bool)
    for image in images:
        inside |= image != 0
    if not inside.any():
        return Air(cropped=1.0, labelled=0.0)
    cropped = 1.0
    for axis in range(inside.ndim):
        others = tuple(other for other in range(inside.ndim) if other != axis)
        occupied = np.flatnonzero(inside.any(axis=others))
        cropped *= (occupied[-1] - occupied[0] + 1) / inside.shape[axis]
    labelled = _labelled_air(inside, values)
    if labelled > NOTICEABLE:  # holes are not air
        labelled = _labelled_air(scipy.ndimage.binary_fill_holes(inside), values)
    return Air(cropped=float(cropped), labelled=labelled)


def _labelled_air(inside: np.ndarray, values: np.ndarray) -> float:
    number = np.count_nonzero(values) - np.count_nonzero(values[inside])
    return float(number / np.count_nonzero(inside))


def find_labelled_air(
    airs: Mapping[str, Air | None], uses_mask: bool | None = None
) -> Iterator[str]:
    """Yield a warning if training images will be normalised differently from others.

    `uses_mask` is what nnU-Net's plans say; without plans, it follows from the images.
    """
    known = {case: air for case, air in airs.items() if air is not None}
    if uses_mask is None:
        uses_mask = bool(known) and median(air.cropped for air in known.values()) < CROPPED
    shares = {case: air.labelled for case, air in known.items() if air.labelled > NOTICEABLE}
    if not uses_mask or not shares:
        return
    yield (
        f"{len(shares)} training case(s) ({some(shares, 3)}) have label values other than 0 over "
        f"air (up to {max(shares.values()):.0%} of the voxels that are not air): nnU-Net "
        f"normalises these images inside a mask and takes such voxels as inside, in training only; "
        f"keep air at 0, with a mask file ('convert') or 'annotate --mask'"
    )


def planned_mask(folder: Path) -> bool | None:
    """Return whether nnU-Net's plans of a raw data set normalise inside a mask; None: no plans."""
    copy = preprocessed_copy(folder)
    plans = copy.with_name(f"{DEFAULT_PLANS}.json") if copy is not None else None
    if plans is None or not plans.is_file():
        return None
    with suppress(LabelSetError, AttributeError, TypeError):
        configurations = read_json(plans).get("configurations", {}).values()
        return any(any(entry.get("use_mask_for_norm", ())) for entry in configurations)
    return None
