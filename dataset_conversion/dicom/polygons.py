"""Polygons on a stack of pixel grids: the exact area that they cover of every pixel.

Pure NumPy. Points are (row, column); pixel `i` reaches from `i - 0.5` to `i + 0.5`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from skimage.measure import points_in_poly

PADDING = 2  # cells behind each row, for edges at its end
TOLERATED_VOLUME = 0.01  # difference between polygons and voxels
AREA_DECIMALS = 6  # rounding errors are smaller, and must not decide


@dataclass(frozen=True)
class Polygon:
    """A closed polygon in one slice; `points` (n, 2) as (row, column)."""

    layer: int
    points: np.ndarray

    @cached_property
    def area(self) -> float:
        """Signed area in pixels (shoelace formula)."""
        row, column = (self.points - self.points[0]).T  # the last edge ends at 0, and adds nothing
        return float(np.dot(row[:-1], column[1:]) - np.dot(row[1:], column[:-1])) / 2


@dataclass(frozen=True)
class Raster:
    """The voxels of a structure: a mask inside a box of the stack.

    `polygon_volume` is the volume of the polygons, holes subtracted, and `clipped_volume` what of
    it lies inside the image; both in voxels.
    """

    box: tuple[slice, slice, slice]
    mask: np.ndarray
    polygon_volume: float
    clipped_volume: float

    @property
    def volume(self) -> int:
        return int(np.count_nonzero(self.mask))


def rasterise(polygons: Sequence[Polygon], shape: tuple[int, int, int]) -> Raster:
    """Return the voxels (z, y, x) that the polygons cover by at least a half.

    A polygon inside another one is a hole, one inside that hole an island; others are united. If
    voxels covered by a half miss the volume of the polygons by more than 1 %, as happens with thin
    structures and large voxels, the most covered voxels are taken, as many as fill the volume.
    """
    signs = nesting_signs(polygons)
    polygon_volume = sum(
        sign * abs(polygon.area) for sign, polygon in zip(signs, polygons, strict=True)
    )
    box = _bounding_box(polygons, shape)
    z, y, x = (part.stop - part.start for part in box)
    runs = _covered_runs(_Edges.of(polygons, signs, box), (z, y, x))
    mask = runs.at_least(0.5)
    full = runs.count_full()
    places, areas = runs.partial_voxels()
    clipped_volume = full + float(areas.sum(dtype=np.float64))
    missing = np.count_nonzero(mask) - clipped_volume
    if abs(missing) > TOLERATED_VOLUME * clipped_volume:
        _take_most_covered(mask, places, areas, round(clipped_volume) - full)
    return Raster(box, mask, polygon_volume, clipped_volume)


def _take_most_covered(mask: np.ndarray, places: np.ndarray, areas: np.ndarray, count: int) -> None:
    """Keep `count` of the partly covered voxels; a fixed shuffle breaks ties without a bias."""
    shuffle = np.random.default_rng(0).permutation(len(places))
    order = shuffle[np.argsort(-areas[shuffle], kind="stable")]
    flat = mask.reshape(-1)
    flat[places] = False
    flat[places[order[: max(count, 0)]]] = True


def nesting_signs(polygons: Sequence[Polygon]) -> list[int]:
    """Return -1 for every polygon that lies in an odd number of others of its slice, else 1."""
    by_slice: dict[int, list[int]] = {}
    for number, polygon in enumerate(polygons):
        by_slice.setdefault(polygon.layer, []).append(number)
    signs = [1] * len(polygons)
    for numbers in by_slice.values():
        for inner in numbers if len(numbers) > 1 else ():
            for outer in numbers:
                if outer != inner and _lies_inside(polygons[inner], polygons[outer]):
                    signs[inner] = -signs[inner]
    return signs


def _lies_inside(inner: Polygon, outer: Polygon) -> bool:
    if abs(inner.area) >= abs(outer.area):
        return False
    low = outer.points.min(axis=0) - 1e-6
    high = outer.points.max(axis=0) + 1e-6
    if (inner.points.max(axis=0) < low).any() or (inner.points.min(axis=0) > high).any():
        return False
    # Polygons may share edges: points are moved a little inwards before they are tested.
    points = inner.points + 1e-3 * (inner.points.mean(axis=0) - inner.points)
    return bool(points_in_poly(points, outer.points).mean() > 0.9)


def _bounding_box(
    polygons: Sequence[Polygon], shape: tuple[int, int, int]
) -> tuple[slice, slice, slice]:
    """Return the part of the stack that the polygons touch; at least one voxel."""
    slices = [polygon.layer for polygon in polygons]
    points = np.concatenate([polygon.points for polygon in polygons])
    low = np.floor([min(slices), *(points.min(axis=0) + 0.5)]).astype(int)
    high = np.floor([max(slices), *(points.max(axis=0) + 0.5)]).astype(int) + 1
    start = np.clip(low, 0, np.subtract(shape, 1))
    stop = np.maximum(np.clip(high, 0, shape), start + 1)
    z, y, x = (slice(int(a), int(b)) for a, b in zip(start, stop, strict=True))
    return z, y, x


@dataclass(frozen=True)
class _Edges:
    """Edges from `start` to `end` (E, 2), their slice (`layer`) in the box, and the sign of their
    polygon.
    """

    start: np.ndarray
    end: np.ndarray
    layer: np.ndarray
    sign: np.ndarray

    @classmethod
    def of(
        cls,
        polygons: Sequence[Polygon],
        signs: Sequence[int],
        box: tuple[slice, slice, slice],
    ) -> _Edges:
        """Return all edges, sorted by slice, in coordinates in which pixel `i` starts at `i`."""
        order = sorted(range(len(polygons)), key=lambda number: polygons[number].layer)
        chosen = [polygons[number] for number in order]
        shift = 0.5 - np.array([box[1].start, box[2].start])
        lengths = [len(polygon.points) for polygon in chosen]
        turned = [signs[number] * (1.0 if polygons[number].area > 0 else -1.0) for number in order]
        return cls(
            start=np.concatenate([polygon.points for polygon in chosen]) + shift,
            end=np.concatenate([np.roll(polygon.points, -1, axis=0) for polygon in chosen]) + shift,
            layer=np.repeat([polygon.layer - box[0].start for polygon in chosen], lengths),
            sign=np.repeat(turned, lengths),
        )

    def split(self, axis: int) -> _Edges:
        """Return the pieces between neighbouring grid lines of an axis."""
        low = np.minimum(self.start[:, axis], self.end[:, axis])
        high = np.maximum(self.start[:, axis], self.end[:, axis])
        cell = np.floor(low)
        pieces = np.maximum(np.ceil(high) - cell, 1).astype(np.int64)
        edge = np.repeat(np.arange(len(pieces)), pieces)
        number = np.arange(len(edge)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        line = cell[edge] + number
        length = np.maximum(high - low, 1e-12)[edge]
        near = np.clip((line - low[edge]) / length, 0, 1)[:, None]
        far = np.clip((line + 1 - low[edge]) / length, 0, 1)[:, None]
        forward = (self.end[:, axis] >= self.start[:, axis])[edge, None]
        begin = np.where(forward, near, 1 - far)
        stop = np.where(forward, far, 1 - near)
        start = self.start[edge]
        step = self.end[edge] - start
        return _Edges(start + begin * step, start + stop * step, self.layer[edge], self.sign[edge])


@dataclass(frozen=True)
class _Runs:
    """Runs of neighbouring cells of equal covered area, in rows that are `PADDING` cells longer."""

    shape: tuple[int, int, int]
    start: np.ndarray
    length: np.ndarray
    area: np.ndarray

    def at_least(self, area: float) -> np.ndarray:
        """Return which voxels (z, y, x) are covered by at least this area."""
        depth, height, width = self.shape
        mask = np.repeat(self.area >= area, self.length)
        padded = mask.reshape(depth, height, width + PADDING)
        return np.ascontiguousarray(padded[..., :width])

    def count_full(self) -> int:
        return int(self.length[self.area >= 1].sum())

    def partial_voxels(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the flat places in the box, and the areas, of voxels that are covered in part."""
        width = self.shape[2]
        partial = (self.area > 0) & (self.area < 1)
        length = self.length[partial]
        number = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        cell = np.repeat(self.start[partial], length) + number
        row, column = np.divmod(cell, width + PADDING)
        return row * width + column, np.repeat(self.area[partial], length)


def _covered_runs(edges: _Edges, shape: tuple[int, int, int]) -> _Runs:
    """Return the covered area of all pixels.

    An edge covers all that lies right of it, with the sign of its direction: the area of a polygon
    is the sum over its edges. In the pixel of the edge this is a trapezoid; a running sum along the
    row adds the full pixels behind it. The sum changes only where there are edges, and is 0 at the
    end of a row, because polygons are closed.
    """
    depth, height, width = shape
    part = edges.split(axis=0).split(axis=1)
    middle = (part.start + part.end) / 2
    row = np.floor(middle[:, 0]).astype(np.int64)
    inside = (row >= 0) & (row < height)
    row = row[inside]
    # What is left of the image still covers all of the row, what is right of it nothing.
    column_place = np.clip(middle[inside, 1], 0, width)
    column = np.floor(column_place).astype(np.int64)
    rise = ((part.end - part.start)[:, 0] * part.sign)[inside]
    behind = rise * (column_place - column)
    cell = (part.layer[inside] * height + row) * (width + PADDING) + column
    cells = np.concatenate([[0], cell, cell + 1])
    order = np.argsort(cells, kind="stable")
    cells = cells[order]
    changes = np.concatenate([[0.0], rise - behind, behind])[order]
    first = np.flatnonzero(np.diff(cells, prepend=-1))  # of every cell that edges touch
    area = np.abs(np.cumsum(np.add.reduceat(changes, first)))
    start = cells[first]
    return _Runs(
        shape=shape,
        start=start,
        length=np.diff(start, append=depth * height * (width + PADDING)),
        area=np.minimum(np.round(area, AREA_DECIMALS), 1),
    )
