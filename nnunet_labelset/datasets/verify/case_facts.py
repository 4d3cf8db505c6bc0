"""What `verify` must know of one case, from one read of each of its files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nnunet_labelset.datasets.normalisation import Air, measure_air
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.place import Place, geometry_difference
from nnunet_labelset.io.volume import (
    Volume,
    count_not_finite,
    count_values,
    integer_array,
    read_voxels,
    why_cut_off,
)
from nnunet_labelset.nnunet.raw import RawCase


@dataclass
class CaseFacts:
    """Problems and doubts as `(file, what and fix)`, how often each value occurs, and hashes of the
    voxels.
    """

    problems: list[tuple[Path, str]] = field(default_factory=list)
    doubts: list[tuple[Path, str]] = field(default_factory=list)
    channels: int = 0
    images_readable: bool = True
    values: dict[int, int] | None = None
    image_hash: str = ""
    label_hash: str = ""
    air: Air | None = None


def read_case(case: RawCase, looks_for_air: bool = False) -> CaseFacts:
    """Read a case; whatever is wrong with a file is a fact, not an exception."""
    facts = CaseFacts()
    images: list[np.ndarray] = []
    reference = _read_images(case, facts, images)
    if case.label is not None:
        labels = _read_label(case.label, case, reference, facts)
        shapes = {image.shape for image in images}
        if looks_for_air and labels is not None and shapes == {labels.shape}:
            facts.air = measure_air(images, labels)
    if case.mask is not None:
        _read_mask(case.mask, case, reference, facts)
    return facts


def _read_images(case: RawCase, facts: CaseFacts, images: list[np.ndarray]) -> Place | None:
    """Append the images of a case; return the place of the first one that can be read."""
    digest = hashlib.blake2b(digest_size=16)
    reference: Place | None = None
    for path in case.images:
        volume = _read(path, facts)
        if volume is None:
            facts.images_readable = False
            continue
        array, place = volume
        images.append(array)
        has_volumes = len(place.size) == 4
        facts.channels += place.size[3] if has_volumes else place.components
        _check_intensities(path, array, facts)
        # float32, so that the same image stored with another type is still the same image
        digest.update(str(array.shape).encode())
        digest.update(np.ascontiguousarray(array, dtype=np.float32).data)
        frame = place.spatial() if has_volumes else place
        if reference is None:
            reference = frame
        else:
            _compare(path, frame, case.images[0], reference, facts)
    if reference is not None and facts.images_readable:
        facts.image_hash = digest.hexdigest()
    return reference


def _read_mask(path: Path, case: RawCase, reference: Place | None, facts: CaseFacts) -> None:
    volume = _read(path, facts)
    if volume is None:
        return
    if reference is not None:
        _compare(path, volume.place, case.images[0], reference, facts)
    if not volume.array.any():
        text = "the mask is empty: nothing would be inside; draw it or delete the file"
        facts.problems.append((path, text))


def read_values(case: RawCase) -> CaseFacts:
    """Only the label map, without comparing it with the image."""
    facts = CaseFacts()
    if case.label is not None:
        _read_label(case.label, case, None, facts)
    return facts


def _read(path: Path, facts: CaseFacts) -> Volume | None:
    try:
        volume = read_voxels(path)
    except LabelSetError as error:
        facts.problems.append(
            (path, str(error).removeprefix(f"{path}: ") + ": restore the file or remove the case")
        )
        return None
    place = volume.place
    if place.refused:
        text = f"{place.refused}: nnU-Net's reader (SimpleITK) refuses it: rewrite it as NIfTI-1"
        facts.problems.append((path, text))
    if place.ambiguous:
        facts.doubts.append((path, f"{place.ambiguous}: make them agree"))
    return volume


def _check_intensities(path: Path, array: np.ndarray, facts: CaseFacts) -> None:
    if bad := count_not_finite(array):
        facts.problems.append((path, f"{bad} voxels are NaN or infinite: replace them, 0 is usual"))
    elif array.min() == array.max():
        facts.problems.append(
            (path, f"every voxel is {array.flat[0]}: an empty image; export it again")
        )


def _compare(path: Path, place: Place, other: Path, reference: Place, facts: CaseFacts) -> None:
    if len(place.size) != len(reference.size):
        difference: str | None = f"dimension {len(place.size)} and {len(reference.size)}"
    else:
        difference = geometry_difference(place, reference)
    if difference:
        aligned = place.size == reference.size
        fix = (
            "copy the header if the voxels do match, else resample"
            if aligned
            else "resample to the same grid"
        )
        facts.problems.append((path, f"other geometry than {other.name}: {difference}: {fix}"))


def _read_label(
    path: Path, case: RawCase, reference: Place | None, facts: CaseFacts
) -> np.ndarray | None:
    """Return the values of a label map, None after noting what is wrong with it."""
    read = _read(path, facts)
    if read is None:
        return None
    array, place = read
    if len(place.size) == 4 or place.components > 1:
        facts.problems.append((path, "the label map has several volumes or channels: keep one"))
        return None
    if reference is not None:
        _compare(path, place, case.images[0], reference, facts)
    if bad := count_not_finite(array):
        text = f"{bad} voxels of the label map are NaN or infinite: replace them by background (0)"
        facts.problems.append((path, text))
        return None
    try:
        integers = integer_array(array, path)
    except LabelSetError as error:
        text = str(error).removeprefix(f"{path}: ")
        facts.problems.append((path, f"{text}: resample label maps with nearest neighbour"))
        return None
    if why := why_cut_off(array):
        facts.problems.append((path, why))
        return None
    array = integers
    facts.values = count_values(array)
    facts.label_hash = hashlib.blake2b(
        np.ascontiguousarray(array, np.int32).data, digest_size=16
    ).hexdigest()
    return array
