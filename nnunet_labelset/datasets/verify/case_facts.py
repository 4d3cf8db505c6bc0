"""What `verify` must know of one case, from one read of each of its files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813  (the name that everybody uses)

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.volume import geometry_difference, label_array, read_image
from nnunet_labelset.nnunet.raw import RawCase


@dataclass
class CaseFacts:
    """Problems as `(file, what and fix)`, how often each value occurs, and hashes of the voxels."""

    problems: list[tuple[Path, str]] = field(default_factory=list)
    channels: int = 0
    images_readable: bool = True
    values: dict[int, int] | None = None
    image_hash: str = ""
    label_hash: str = ""


def read_case(case: RawCase) -> CaseFacts:
    """Read a case; whatever is wrong with a file is a fact, not an exception."""
    facts = CaseFacts()
    digest = hashlib.blake2b(digest_size=16)
    reference: sitk.Image | None = None
    for path in case.images:
        image = _read(path, facts)
        if image is None:
            facts.images_readable = False
            continue
        array = sitk.GetArrayViewFromImage(image)
        facts.channels += image.GetSize()[3] if image.GetDimension() == 4 else image.GetNumberOfComponentsPerPixel()
        _check_intensities(path, array, facts)
        # float32, so that the same image stored with another type is still the same image
        digest.update(str(array.shape).encode() + np.ascontiguousarray(array, dtype=np.float32).tobytes())
        frame = image[..., 0] if image.GetDimension() == 4 else image
        if reference is None:
            reference = frame
        else:
            _compare(path, frame, case.images[0], reference, facts)
    if reference is not None and facts.images_readable:
        facts.image_hash = digest.hexdigest()
    if case.label is not None:
        _read_label(case.label, case, reference, facts)
    if case.mask is not None and (mask := _read(case.mask, facts)) is not None:
        if reference is not None:
            _compare(case.mask, mask, case.images[0], reference, facts)
        if not sitk.GetArrayViewFromImage(mask).any():
            facts.problems.append((case.mask, "the mask is empty: nothing would be inside; draw it or delete the file"))
    return facts


def _read(path: Path, facts: CaseFacts) -> sitk.Image | None:
    try:
        return read_image(path)
    except LabelSetError as error:
        facts.problems.append((path, str(error).removeprefix(f"{path}: ") + ": restore the file or remove the case"))
        return None


def _check_intensities(path: Path, array: np.ndarray, facts: CaseFacts) -> None:
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        facts.problems.append((path, f"{bad} voxels are NaN or infinite: replace them, 0 is usual"))
    elif array.min() == array.max():
        facts.problems.append((path, f"every voxel is {array.flat[0]}: an empty image; export it again"))


def _compare(path: Path, image: sitk.Image, other: Path, reference: sitk.Image, facts: CaseFacts) -> None:
    if image.GetDimension() != reference.GetDimension():
        difference: str | None = f"dimension {image.GetDimension()} and {reference.GetDimension()}"
    else:
        difference = geometry_difference(image, reference)
    if difference:
        aligned = image.GetSize() == reference.GetSize()
        fix = "copy the header if the voxels do match, else resample" if aligned else "resample to the same grid"
        facts.problems.append((path, f"other geometry than {other.name}: {difference}: {fix}"))


def _read_label(path: Path, case: RawCase, reference: sitk.Image | None, facts: CaseFacts) -> None:
    label = _read(path, facts)
    if label is None:
        return
    if label.GetDimension() == 4 or label.GetNumberOfComponentsPerPixel() > 1:
        facts.problems.append((path, "the label map has several volumes or channels: keep one"))
        return
    if reference is not None:
        _compare(path, label, case.images[0], reference, facts)
    bad = int(np.count_nonzero(~np.isfinite(sitk.GetArrayViewFromImage(label))))
    if bad:
        text = f"{bad} voxels of the label map are NaN or infinite: replace them by background (0)"
        facts.problems.append((path, text))
        return
    try:
        array = label_array(label, path)
    except LabelSetError as error:
        text = str(error).removeprefix(f"{path}: ")
        facts.problems.append((path, f"{text}: resample label maps with nearest neighbour"))
        return
    values, counts = np.unique(array, return_counts=True) if _is_wide(array) else _count(array)
    facts.values = dict(zip(values.tolist(), counts.tolist(), strict=True))
    facts.label_hash = hashlib.blake2b(array.astype(np.int32).tobytes(), digest_size=16).hexdigest()


def _is_wide(array: np.ndarray) -> bool:
    return array.size == 0 or int(array.min()) < 0 or int(array.max()) > 1 << 16


def _count(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `np.unique` with counts, without sorting millions of voxels."""
    counts = np.bincount(array.ravel())
    values = np.flatnonzero(counts)
    return values, counts[values]
