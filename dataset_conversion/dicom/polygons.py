"""Polygons on a stack of pixel grids: the exact area that they cover of every pixel.

Pure NumPy. Points are (row, column); pixel `i` reaches from `i - 0.5` to `i + 0.5`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from skimage.measure import points_in_poly

PADDING = 2  # cells behind each row, for edges at its end
HALF = 0.5  # of a voxel
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
    runs = _covered_runs(_Edges.of(polygons, signs, box), _shape(box))
    mask = runs.at_least(HALF)
    clipped_volume = runs.volume
    if abs(runs.count(HALF) - clipped_volume) > TOLERATED_VOLUME * clipped_volume:
        places, areas = runs.partial_voxels()
        mask = np.ascontiguousarray(mask)
        _take_most_covered(mask, places, areas, round(clipped_volume) - runs.count(1))
    return Raster(box, mask, polygon_volume, clipped_volume)


def _take_most_covered(mask: np.ndarray, places: np.ndarray, areas: np.ndarray, count: int) -> None:
    """Keep `count` of the partly covered voxels. A fixed shuffle of the pixels breaks ties without
    a bias, the same one in all slices: equal contours get equal voxels.
    """
    pixels = math.prod(mask.shape[1:])
    shuffle = np.random.default_rng(0).permutation(pixels)
    order = np.lexsort((shuffle[places % pixels], -areas))
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
    row, column = np.concatenate([polygon.points for polygon in polygons]).T
    low = np.floor([min(slices), row.min() + 0.5, column.min() + 0.5]).astype(int)
    high = np.floor([max(slices), row.max() + 0.5, column.max() + 0.5]).astype(int) + 1
    start = np.clip(low, 0, np.subtract(shape, 1))
    stop = np.maximum(np.clip(high, 0, shape), start + 1)
    z, y, x = (slice(int(a), int(b)) for a, b in zip(start, stop, strict=True))
    return z, y, x


def _shape(box: tuple[slice, slice, slice]) -> tuple[int, int, int]:
    z, y, x = (part.stop - part.start for part in box)
    return z, y, x


@dataclass(frozen=True)
class _Edges:
    """Edges that are not parallel to the rows, from `low` to `high` (row, column), with low rows
    first. `sign` is 1 for edges that were drawn in this direction around what is covered, else -1.
    """

    low: np.ndarray  # (2, E)
    high: np.ndarray  # (2, E)
    layer: np.ndarray
    sign: np.ndarray

    @classmethod
    def of(
        cls,
        polygons: Sequence[Polygon],
        signs: Sequence[int],
        box: tuple[slice, slice, slice],
    ) -> _Edges:
        """Return all edges in coordinates in which pixel `i` of the box starts at `i`."""
        shift = 0.5 - np.array([[box[1].start], [box[2].start]])
        start = np.concatenate([polygon.points for polygon in polygons]).T + shift
        lengths = [len(polygon.points) for polygon in polygons]
        following = np.arange(1, start.shape[1] + 1)
        ends = np.cumsum(lengths)
        following[ends - 1] = ends - lengths  # the last point of a polygon is followed by its first
        end = start[:, following]
        layers = [polygon.layer - box[0].start for polygon in polygons]
        turned = [
            sign * (1.0 if polygon.area > 0 else -1.0)
            for sign, polygon in zip(signs, polygons, strict=True)
        ]
        downwards = start[0] > end[0]
        kept = np.flatnonzero(start[0] != end[0])
        sign = np.where(downwards, -1.0, 1.0) * np.repeat(turned, lengths)
        return cls(
            low=np.where(downwards, end, start)[:, kept],
            high=np.where(downwards, start, end)[:, kept],
            layer=np.repeat(layers, lengths)[kept],
            sign=sign[kept],
        )


@dataclass(frozen=True)
class _Pieces:
    """Pieces of edges that lie in one row each: their place along it, and their signed height."""

    row: np.ndarray  # of all rows of the box
    left: np.ndarray
    right: np.ndarray
    rise: np.ndarray


def _cut_at_rows(edges: _Edges, height: int) -> _Pieces:
    edge, row = _cells(edges.low[0], edges.high[0])
    low, column = edges.low[:, edge]
    top = np.maximum(row, low)
    bottom = np.minimum(row + 1, edges.high[0, edge])
    slope = ((edges.high[1] - edges.low[1]) / (edges.high[0] - edges.low[0]))[edge]
    ends = np.array([column + (top - low) * slope, column + (bottom - low) * slope])
    inside = np.flatnonzero((row >= 0) & (row < height))
    return _Pieces(
        row=(edges.layer[edge] * height + row.astype(np.int64))[inside],
        left=ends.min(axis=0)[inside],
        right=ends.max(axis=0)[inside],
        rise=((bottom - top) * edges.sign[edge])[inside],
    )


def _cut_at_columns(pieces: _Pieces) -> _Pieces:
    piece, column = _cells(pieces.left, pieces.right)
    left = np.maximum(column, pieces.left[piece])
    right = np.minimum(column + 1, pieces.right[piece])
    length = (pieces.right - pieces.left)[piece]
    share = np.divide(right - left, length, out=np.ones_like(length), where=length > 0)
    return _Pieces(pieces.row[piece], left, right, pieces.rise[piece] * share)


def _cells(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return every cell that each range touches: the number of the range, and where it begins."""
    first = np.floor(low)
    counts = np.maximum(np.ceil(high) - first, 1).astype(np.int64)
    number = np.repeat(np.arange(len(counts)), counts)
    begin = np.cumsum(counts) - counts
    return number, np.arange(len(number)) + (first - begin)[number]


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
        return padded[..., :width]

    def count(self, area: float) -> int:
        """Return how many voxels are covered by at least this area."""
        return int(self.length[self.area >= area].sum())

    @property
    def volume(self) -> float:
        return float((self.length * self.area).sum())

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
    pieces = _cut_at_columns(_cut_at_rows(edges, height))
    # What is left of the image still covers all of the row, what is right of it nothing.
    place = np.clip((pieces.left + pieces.right) / 2, 0, width)
    column = np.floor(place).astype(np.int64)
    behind = pieces.rise * (place - column)
    cell = pieces.row * (width + PADDING) + column
    cells = np.concatenate([[0], cell, cell + 1])
    order = np.argsort(cells)
    cells = cells[order]
    changes = np.concatenate([[0.0], pieces.rise - behind, behind])[order]
    first = np.flatnonzero(np.diff(cells, prepend=-1))  # of every cell that edges touch
    area = np.abs(np.cumsum(np.add.reduceat(changes, first)))
    start = cells[first]
    return _Runs(
        shape=shape,
        start=start,
        length=np.diff(start, append=depth * height * (width + PADDING)),
        area=np.minimum(np.round(area, AREA_DECIMALS), 1),
    )
