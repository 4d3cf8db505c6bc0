"""Contours in patient space to voxels of a stack of slices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import distance_transform_edt

from nnunet_labelset.dataset_conversion.dicom.polygons import (
    TOLERATED_VOLUME,
    Polygon,
    Raster,
    rasterise,
)
from nnunet_labelset.dataset_conversion.dicom.stack import Stack
from nnunet_labelset.dataset_conversion.dicom.structure_set import Roi
from nnunet_labelset.errors import LabelSetError

FLAT = 0.5  # slices that a contour may span
SAME_PLANE = 0.05  # slices
HALFWAY = 1e-3  # slices: contours so near to the middle lie in the middle
REGULAR = 4  # contours from which their distance is a habit


@dataclass(frozen=True)
class DrawnVoxels:
    """The voxels of an ROI; None where it was drawn empty. Volumes are in ml."""

    raster: Raster | None
    contour_volume: float
    volume: float
    notes: tuple[str, ...]

    def describe_volume(self) -> str:
        change = 100 * (self.volume / self.contour_volume - 1) if self.contour_volume else 0.0
        return f"{self.volume:.4g} ml, contours {self.contour_volume:.4g} ml ({change:+.2f} %)"


def draw(roi: Roi, stack: Stack) -> DrawnVoxels:
    """Return the voxels inside the contours of an ROI."""
    notes = []
    if roi.skipped:
        kinds = ", ".join(sorted(set(roi.skipped)))
        notes.append(f"{len(roi.skipped)} contour(s) left out ({kinds})")
    if not roi.contours:
        return DrawnVoxels(None, 0.0, 0.0, tuple(notes))
    planes = _planes(roi, stack, notes)
    polygons = [polygon for plane in planes.values() for polygon in plane]
    raster = rasterise(polygons, stack.shape)
    gaps = _slices_between(planes, roi, stack)
    if gaps.between:
        raster = _fill_between(raster, gaps.between, sorted(planes))
        notes.append(f"{len(gaps.between)} slice(s) between contours interpolated")
    if gaps.left_empty:
        notes.append(
            f"{len(gaps.left_empty)} slice(s) without a contour between others, left empty"
        )
    voxel = math.prod(stack.spacing) * stack.step / 1000
    lost = (
        "lie outside of the image" if _reach_beyond(polygons, stack) else "overlap or are twisted"
    )
    notes += _volume_notes(raster, voxel, lost, filled=bool(gaps.between))
    return DrawnVoxels(
        raster=raster,
        contour_volume=raster.polygon_volume * voxel,
        volume=raster.volume * voxel,
        notes=tuple(notes),
    )


def _reach_beyond(polygons: Sequence[Polygon], stack: Stack) -> bool:
    limits = np.array(stack.shape[1:]) - 0.5
    return any(
        bool((polygon.points < -0.5).any() or (polygon.points > limits).any())
        for polygon in polygons
    )


def _volume_notes(raster: Raster, voxel: float, why_lost: str, filled: bool) -> Iterator[str]:
    """Yield what differs between contours and voxels by more than is tolerated."""
    drawn = raster.polygon_volume
    difference = abs(drawn - raster.clipped_volume)
    if difference > TOLERATED_VOLUME * max(drawn, 1e-9):
        yield f"{difference * voxel:.3g} ml of the contours {why_lost}"
    if not filled and abs(raster.volume - drawn) > TOLERATED_VOLUME * drawn:
        yield f"{raster.volume * voxel:.4g} ml of voxels for {drawn * voxel:.4g} ml of contours"


def _planes(roi: Roi, stack: Stack, notes: list[str]) -> dict[int, list[Polygon]]:
    """Return the polygons by slice. Of several contour planes in a slice, the nearest counts."""
    nearest: dict[int, float] = {}
    planes: dict[int, list[Polygon]] = {}
    contours = _in_image(_distinct(roi.contours, notes), stack, roi)
    contours.sort(key=lambda contour: abs(contour.place - round(contour.place)))
    surplus = 0
    for contour in contours:
        number = min(max(_nearest_slice(contour.place), 0), len(stack.slices) - 1)
        if abs(nearest.setdefault(number, contour.place) - contour.place) > SAME_PLANE:
            surplus += 1
            continue
        planes.setdefault(number, []).append(Polygon(number, contour.points))
    if surplus:
        notes.append(f"{surplus} contour(s) between slices left out for nearer ones")
    return planes


def _nearest_slice(place: float) -> int:
    """Return the nearest slice. Of two, it is the lower one for all contours: rounding to even
    numbers would put two of them into one slice, and none into the next.
    """
    return math.ceil(place - 0.5 - HALFWAY)


def _distinct(contours: Sequence[np.ndarray], notes: list[str]) -> list[np.ndarray]:
    """Return the contours without repetitions: a contour twice would be its own hole."""
    distinct = {np.round(points, 3).tobytes(): points for points in contours}
    if len(distinct) < len(contours):
        notes.append(f"{len(contours) - len(distinct)} repeated contour(s) left out")
    return list(distinct.values())


@dataclass(frozen=True)
class _Contour:
    """A contour in the image: its slice, with fractions, and its points (row, column)."""

    place: float
    points: np.ndarray


def _in_image(contours: Sequence[np.ndarray], stack: Stack, roi: Roi) -> list[_Contour]:
    """Return contours in slices, or raise why they cannot belong to the image."""
    starts = np.cumsum([0] + [len(points) for points in contours])
    place = stack.pixel_coordinates(np.concatenate(contours))
    low = np.minimum.reduceat(place, starts[:-1])
    high = np.maximum.reduceat(place, starts[:-1])
    if (high[:, 0] - low[:, 0] > FLAT).any():
        raise LabelSetError(f"ROI '{roi.name}': contours are not parallel to the slices")
    beyond = np.array(stack.shape) - 0.5 + SAME_PLANE
    outside = ((high < -0.5 - SAME_PLANE) | (low > beyond)).any(axis=1)
    if outside.any():
        points = contours[int(np.flatnonzero(outside)[0])]
        where = ", ".join(f"{value:.1f}" for value in points.mean(axis=0))
        raise LabelSetError(
            f"ROI '{roi.name}': a contour at ({where}) mm lies outside of the image: "
            "was it drawn on another one?"
        )
    heights = np.add.reduceat(place[:, 0], starts[:-1]) / np.diff(starts)
    parts = np.split(place[:, 1:], starts[1:-1])
    return [_Contour(*pair) for pair in zip(heights.tolist(), parts, strict=True)]


@dataclass(frozen=True)
class _Gaps:
    between: tuple[int, ...]  # filled: contours were drawn on every second slice, or fewer
    left_empty: tuple[int, ...]


def _slices_between(planes: dict[int, list[Polygon]], roi: Roi, stack: Stack) -> _Gaps:
    """Return the slices without contours between the first and the last one.

    The usual distance between the contours of the ROI decides: where it is larger than a slice,
    what lies between was meant; a wider gap separates two parts. Few contours show no habit: more
    than one slice between them stays empty.
    """
    numbers = sorted(planes)
    if len(numbers) < 2:
        return _Gaps((), ())
    centres = np.array([points[0] for points in roi.contours])
    places = np.unique(np.round(stack.pixel_coordinates(centres)[:, 0] / SAME_PLANE)) * SAME_PLANE
    usual = math.ceil(float(np.median(np.diff(places))) - 2 * SAME_PLANE)
    if len(places) < REGULAR:
        usual = min(usual, 2)
    between: list[int] = []
    left_empty: list[int] = []
    for number, following in itertools.pairwise(numbers):
        gap = between if following - number <= usual else left_empty
        gap += range(number + 1, following)
    return _Gaps(tuple(between), tuple(left_empty))


def _fill_between(raster: Raster, between: Sequence[int], drawn: Sequence[int]) -> Raster:
    """Interpolate slices by the signed distance to the outlines in the slices around them."""
    first = raster.box[0].start
    mask = raster.mask.copy()
    for number in between:
        below = max(other for other in drawn if other < number)
        above = min(other for other in drawn if other > number)
        share = (number - below) / (above - below)
        level = (1 - share) * _signed_distance(mask[below - first])
        level += share * _signed_distance(mask[above - first])
        mask[number - first] = level > 0
    return Raster(raster.box, mask, raster.polygon_volume, raster.clipped_volume)


def _signed_distance(inside: np.ndarray) -> np.ndarray:
    # A frame of empty pixels: the box ends where the structure does.
    padded = np.pad(inside, 1)
    return (distance_transform_edt(padded) - distance_transform_edt(~padded))[1:-1, 1:-1]
