"""An image series as a stack of slices: sorted by position, checked, read, and made regular."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.ndimage import affine_transform

from nnunet_labelset.dataset_conversion.dicom.index import Series
from nnunet_labelset.dataset_conversion.dicom.slices import Slice
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.place import Place
from nnunet_labelset.io.volume import Volume

SAME_DIRECTION = 1e-3  # as between files: see io/place.py
IRREGULAR = 0.02  # of the distance between slices; headers are rounded
SHEAR = 0.5  # pixels over the whole stack
OUTSIDE = {"CT": -1024}  # what lies beyond a tilted stack; 0 in other modalities


@dataclass(frozen=True)
class Stack:
    """Slices of one orientation, sorted along their normal; notes tell what was left out."""

    series: str
    modality: str
    slices: tuple[Slice, ...]
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.slices), self.slices[0].rows, self.slices[0].columns

    @property
    def spacing(self) -> tuple[float, float]:
        """Return the distance between rows, and between columns."""
        rows, columns = self.slices[0].spacing
        return rows, columns

    @cached_property
    def axes(self) -> np.ndarray:
        """Return the directions along a row, along a column, and from slice to slice (3, 3)."""
        return _axes(self.slices[0])

    @cached_property
    def origins(self) -> np.ndarray:
        """Return the first pixel of every slice, in mm of the patient (S, 3)."""
        return np.array([image.position for image in self.slices])

    @cached_property
    def heights(self) -> np.ndarray:
        """Return the position of every slice along the normal, in mm."""
        return self.origins @ self.axes[2]

    @cached_property
    def step(self) -> float:
        """Return the usual distance between slices; the thickness is unknown for a single one."""
        return float(np.median(np.diff(self.heights))) if len(self.slices) > 1 else 1.0

    @cached_property
    def shear(self) -> np.ndarray:
        """Return how far each slice is shifted within its plane, in pixels (S, 2) as (y, x)."""
        shift = (self.origins - self.origins[0]) @ self.axes[[1, 0]].T
        return shift / self.spacing

    @property
    def is_sheared(self) -> bool:
        return bool(np.abs(self.shear).max() > SHEAR)

    @property
    def is_irregular(self) -> bool:
        steps = np.diff(self.heights)
        return bool((np.abs(steps - self.step) > max(IRREGULAR * self.step, 0.01)).any())

    @property
    def is_regular(self) -> bool:
        return not (self.is_sheared or self.is_irregular)

    def describe_gaps(self) -> str:
        steps = np.diff(self.heights)
        if (steps < 1.5 * self.step).all():
            return f"distances between slices vary from {steps.min():.4g} to {steps.max():.4g} mm"
        wide = np.flatnonzero(steps >= 1.5 * self.step)
        name = self.slices[int(wide[0])].path.name
        return f"{len(wide)} gap(s) of up to {steps.max():.4g} mm between slices, after {name}"

    def pixel_coordinates(self, points: np.ndarray) -> np.ndarray:
        """Return patient coordinates (n, 3) as (slice, row, column), all counted from 0.

        Rows and columns are counted in the slice at that height: a tilted gantry shifts it, and
        other slices may lie a part of a pixel beside each other.
        """
        numbers = np.arange(len(self.heights), dtype=float)
        height = points @ self.axes[2]
        place = np.interp(height, self.heights, numbers)
        place += np.minimum(height - self.heights[0], 0) / self.step
        place += np.maximum(height - self.heights[-1], 0) / self.step
        in_plane = (points - self.origins[0]) @ self.axes[[1, 0]].T / self.spacing
        if self.shear.any():
            in_plane[:, 0] -= np.interp(height, self.heights, self.shear[:, 0])
            in_plane[:, 1] -= np.interp(height, self.heights, self.shear[:, 1])
        return np.column_stack([place, in_plane])

    @property
    def place(self) -> Place:
        """Return where the voxels of a regular stack lie."""
        step = self.step
        if len(self.slices) > 1:
            step = float(self.heights[-1] - self.heights[0]) / (len(self.slices) - 1)
        rows, columns = self.spacing
        return Place(
            size=self.shape[::-1],
            spacing=(columns, rows, step),
            origin=tuple(self.origins[0].tolist()),
            direction=tuple(self.axes.T.ravel().tolist()),
        )


def sorted_stack(series: Series) -> Stack:
    """Return the slices of a series in order, or raise what makes them no single volume."""
    notes = []
    # Some anonymisers give one UID to all slices.
    distinct = {(image.uid, image.frame, image.position): image for image in series.slices}
    slices = list(distinct.values())
    if len(slices) < len(series.slices):
        notes.append(f"{len(series.slices) - len(slices)} duplicate files left out")
    volume = [image for image in slices if not image.localiser]
    if volume and len(volume) < len(slices):
        notes.append(f"{len(slices) - len(volume)} localiser images left out")
        slices = volume
    for problem in _problems(slices):
        raise LabelSetError(f"{slices[0].path.parent}: {series}: {problem}")
    normal = _axes(slices[0])[2]
    slices.sort(key=lambda image: float(np.dot(image.position, normal)))
    stack = Stack(series.uid, series.modality, tuple(slices), tuple(notes))
    steps = np.diff(stack.heights)
    repeated = int(np.count_nonzero(steps < 1e-3))
    if repeated:
        raise LabelSetError(
            f"{series.folder}: {series}: {repeated} slices lie where another one does (4D, or two "
            "acquisitions in one series): keep one volume in the folder"
        )
    return stack


def _problems(slices: Sequence[Slice]) -> Iterator[str]:
    """Yield what is wrong with the headers of a series."""
    for image in slices:
        yield from _slice_problems(image)
    if len({(image.rows, image.columns) for image in slices}) > 1:
        yield "slices of different size: two series mixed?"
    if _differ([image.orientation for image in slices]):
        yield "slices of different orientation: two series mixed, or localisers?"
    if _differ([image.spacing for image in slices]):
        yield "slices of different pixel spacing: two series mixed?"


def _slice_problems(image: Slice) -> Iterator[str]:
    name = image.path.name
    if image.refused:
        yield f"{name} {image.refused}"
    if (len(image.position), len(image.orientation), len(image.spacing)) != (3, 6, 2):
        yield f"{name} has no position, orientation or pixel spacing"
        return
    if not np.isfinite([*image.position, *image.spacing]).all() or min(image.spacing) <= 0:
        place = f"position {image.position}, pixel spacing {image.spacing}"
        yield f"{name} lies nowhere: {place}"
    rows = np.reshape(image.orientation, (2, 3))
    if np.abs(rows @ rows.T - np.eye(2)).max() > 1e-2:
        yield f"{name}: rows and columns are not perpendicular: {image.orientation}"


def _differ(values: Sequence[tuple[float, ...]]) -> bool:
    return bool(np.ptp(np.array(values), axis=0).max() > SAME_DIRECTION)


def _axes(image: Slice) -> np.ndarray:
    """Return unit vectors along a row, along a column, and normal to both (3, 3)."""
    row, column = np.reshape(image.orientation, (2, 3))
    row = row / np.linalg.norm(row)
    column = column - np.dot(column, row) * row  # headers are rounded
    column = column / np.linalg.norm(column)
    return np.array([row, column, np.cross(row, column)])


@dataclass(frozen=True)
class Regular:
    """The regular grid nearest to an irregular or tilted stack, and the way to it."""

    stack: Stack
    place: Place
    margin: np.ndarray = field(repr=False)  # (y, x): how far rows and columns begin before slice 0

    @classmethod
    def of(cls, stack: Stack) -> Regular:
        depth, rows, columns = stack.shape
        extent = float(stack.heights[-1] - stack.heights[0])
        count = round(extent / stack.step) + 1 if depth > 1 else 1
        low = np.floor(stack.shear.min(axis=0) + 1e-6) if stack.is_sheared else np.zeros(2)
        high = np.ceil(stack.shear.max(axis=0) - 1e-6) if stack.is_sheared else np.zeros(2)
        origin = stack.origins[0] + (low * stack.spacing) @ stack.axes[[1, 0]]
        size_y, size_x = np.add([rows, columns], high - low).astype(int).tolist()
        place = Place(
            size=(size_x, size_y, count),
            spacing=(stack.spacing[1], stack.spacing[0], extent / max(count - 1, 1) or 1.0),
            origin=tuple(origin.tolist()),
            direction=stack.place.direction,
        )
        return cls(stack, place, low)

    def image(self, array: np.ndarray) -> Volume:
        """Return an image on the regular grid, interpolated linearly."""
        outside = OUTSIDE.get(self.stack.modality, 0)
        result = np.empty(self.place.size[::-1], dtype=array.dtype)
        for number, (below, share) in enumerate(self._neighbours()):
            values = (1 - share) * self._shifted(array[below], below, 1, outside)
            if share > 0:
                values += share * self._shifted(array[below + 1], below + 1, 1, outside)
            whole = np.issubdtype(array.dtype, np.integer)
            result[number] = np.rint(values) if whole else values
        return Volume(result, self.place)

    def labels(self, array: np.ndarray) -> Volume:
        """Return labels on the regular grid, each voxel from the nearest one of the stack."""
        result = np.empty(self.place.size[::-1], dtype=array.dtype)
        for number, nearest in enumerate(self._nearest()):
            result[number] = self._shifted(array[nearest], nearest, 0, 0)
        return Volume(result, self.place)

    def volume(self, counts: np.ndarray) -> float:
        """Return the ml on the regular grid of a structure, from its voxels in every old slice."""
        return float(counts[self._nearest()].sum() * math.prod(self.place.spacing) / 1000)

    def _nearest(self) -> list[int]:
        """Return the nearest old slice of every new one."""
        return [below + (share > 0.5) for below, share in self._neighbours()]

    def _neighbours(self) -> list[tuple[int, float]]:
        """Return for every new slice the old one below it, and the share of the one above."""
        heights = self.stack.heights
        wanted = heights[0] + np.arange(self.place.size[2]) * self.place.spacing[2]
        place = np.interp(wanted, heights, np.arange(len(heights), dtype=float))
        below = np.clip(np.floor(place), 0, max(len(heights) - 2, 0))
        share = np.round(place - below, 6)
        return list(zip(below.astype(int).tolist(), share.tolist(), strict=True))

    def _shifted(self, image: np.ndarray, number: int, order: int, outside: float) -> np.ndarray:
        if not self.stack.is_sheared:
            return image.astype(np.float32) if order else image
        return affine_transform(
            image.astype(np.float32) if order else image,
            np.ones(2),
            offset=self.margin - self.stack.shear[number],
            output_shape=self.place.size[1::-1],
            order=order,
            mode="constant",
            cval=outside,
        )
