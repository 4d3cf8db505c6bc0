"""Labels on the grid of another image: moved as they are where voxels coincide, else resampled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import scipy  # loads submodules on first use
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.io.place import Place
from nnunet_labelset.io.volume import HIGHEST_VALUE, Volume, itk_image

OFF_GRID = 0.05  # of a voxel, anywhere in the image
UNLABELLED = 0
UNKNOWN = HIGHEST_VALUE  # stands for every label


class Resample(Enum):
    """Whether labels may lie on another grid than their image."""

    NEVER = "never"
    TO_IMAGE = "to image"


class Interpolation(Enum):
    """How a label is chosen between voxels."""

    NEAREST = "nearest"
    DISTANCE = "distance"  # by the signed distance to each label: smooth outlines


class Outside(Enum):
    """What is known of voxels that the label file does not cover."""

    ERROR = "error"
    UNLABELLED = "unlabelled"  # the file was cropped to what was drawn
    UNKNOWN = "unknown"  # nobody looked there


@dataclass(frozen=True)
class GridRules:
    """What to do with labels on another grid."""

    resample: Resample = Resample.NEVER
    interpolation: Interpolation = Interpolation.NEAREST
    outside: Outside = Outside.ERROR


@dataclass(frozen=True)
class Moved:
    """Labels on a new grid, which of its voxels the old one covers, and what was done."""

    array: np.ndarray
    covered: np.ndarray
    about: str

    @property
    def uncovered_share(self) -> float:
        return 1 - float(np.count_nonzero(self.covered)) / self.covered.size


def move(volume: Volume, place: Place) -> Moved | None:
    """Return the same voxels in the order and extent of `place`, or None if there are others."""
    if len(volume.place.size) != len(place.size):
        return None
    matrix, offset = _index_map(place, volume.place)
    steps = np.rint(matrix)
    if not np.array_equal(np.abs(steps) @ np.ones(len(steps)), np.ones(len(steps))):
        return None
    if not np.array_equal(np.abs(steps).sum(axis=0), np.ones(len(steps))):
        return None
    reach = np.abs(matrix - steps) @ np.array(place.size, dtype=float)
    if (np.abs(offset - np.rint(offset)) + reach > OFF_GRID).any():
        return None
    coordinates = []  # of the old voxels along each of their axes (x, y, z)
    axes = []
    for row, shift in zip(steps, np.rint(offset), strict=True):
        axis = int(np.flatnonzero(row)[0])
        axes.append(axis)
        coordinates.append(np.arange(place.size[axis]) * int(row[axis]) + int(shift))
    return _take(volume, place, axes, coordinates)


def _take(volume: Volume, place: Place, axes: list[int], coordinates: list[np.ndarray]) -> Moved:
    """Return the old voxels at `coordinates`, along the new axis of each old one."""
    order = np.argsort(axes)  # the old axis (x, y, z) of every new one
    dimensions = len(order)
    array = volume.array.transpose([dimensions - 1 - int(old) for old in order[::-1]])
    covered = np.ones(place.size[::-1], dtype=bool)
    cropped = False
    for new, old in enumerate(order):
        numbers = coordinates[old]
        size = volume.place.size[old]
        inside = (numbers >= 0) & (numbers < size)
        cropped = cropped or not inside.all() or len(numbers) != size
        along = [1] * dimensions
        along[dimensions - 1 - new] = len(numbers)
        covered &= inside.reshape(along)
        array = array.take(np.clip(numbers, 0, size - 1), axis=dimensions - 1 - new)
    array = np.where(covered, array, array.dtype.type(UNLABELLED))
    turned = axes != sorted(axes) or any(len(c) > 1 and c[1] < c[0] for c in coordinates)
    words = ["axes reordered"] if turned else []
    words += ["another extent"] if cropped else []
    return Moved(array, covered, " and ".join(words) or "the same voxels")


def _index_map(target: Place, source: Place) -> tuple[np.ndarray, np.ndarray]:
    """Return how an index (x, y, z) of the target becomes one of the source."""
    dimensions = len(target.size)
    to_world = np.reshape(target.direction, (dimensions, dimensions)) * target.spacing
    to_source = np.reshape(source.direction, (dimensions, dimensions)) * source.spacing
    inverse = np.linalg.inv(to_source)
    return inverse @ to_world, inverse @ np.subtract(target.origin, source.origin)


def resample(volume: Volume, place: Place, interpolation: Interpolation) -> Moved:
    """Return labels between voxels of their own grid."""
    image = itk_image(volume.array, volume.place)
    reference = sitk.Image(list(place.size), sitk.sitkUInt8)
    reference.SetSpacing(place.spacing)
    reference.SetOrigin(place.origin)
    reference.SetDirection(place.direction)
    ones = itk_image(np.ones(volume.array.shape, np.uint8), volume.place)
    covered = sitk.Resample(ones, reference, sitk.Transform(), sitk.sitkNearestNeighbor, 0)
    is_covered = sitk.GetArrayFromImage(covered) > 0
    if interpolation is Interpolation.NEAREST:
        moved = sitk.Resample(image, reference, sitk.Transform(), sitk.sitkNearestNeighbor, 0)
        return Moved(sitk.GetArrayFromImage(moved), is_covered, "nearest voxel")
    best = np.full(is_covered.shape, -np.inf, dtype=np.float32)
    array = np.zeros(is_covered.shape, dtype=volume.array.dtype)
    for value in np.unique(volume.array):
        level = _signed_distance(volume.array == value, volume.place)
        moved = sitk.Resample(level, reference, sitk.Transform(), sitk.sitkLinear, -np.inf)
        distance = sitk.GetArrayFromImage(moved)
        np.copyto(array, value, where=distance > best)
        np.maximum(best, distance, out=best)
    # Linear interpolation ends at the last centres of voxels, half a voxel before the border.
    nearest = resample(volume, place, Interpolation.NEAREST).array
    array = np.where(np.isfinite(best), array, nearest)
    return Moved(array, is_covered, "signed distance")


def _signed_distance(inside: np.ndarray, place: Place) -> sitk.Image:
    """Return the distance in mm to the outline, positive inside."""
    spacing = place.spacing[::-1]
    distance = scipy.ndimage.distance_transform_edt(inside, sampling=spacing)
    distance -= scipy.ndimage.distance_transform_edt(~inside, sampling=spacing)
    return itk_image(distance.astype(np.float32), place)
