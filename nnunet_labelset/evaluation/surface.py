"""Distances between the surfaces of two masks, their elements weighted by area, computed once for
all metrics.

A surface element sits between 2x2x2 voxels (2x2 pixels in 2D) that are neither all inside nor all
outside. Its area is that of the marching-cubes triangles (the length of the marching-squares
segments) between them. An element that touches a voxel of unknown membership does not count, and
no distance is larger than that to such a voxel, because the other surface may lie there. An axis
along which most voxels of the reference have no known neighbour (an image of one slice, every
tenth slice drawn) is no axis: the surface is then that of the slices, and only unknown voxels of
the same slice limit a distance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
import scipy

from nnunet_labelset.evaluation.counts import look_up

SLAB, PIECE = 1 << 22, 1 << 17  # voxels and elements that are looked at together
REACH = 4  # voxels in which near elements are looked for, before a tree is made
# elements of which one tree is made; of more, one for each neighbourhood of a piece
WHOLE = 1 << 19
FAR = 1e6  # mm
TIE = 1e-9  # of an area: rounding must not decide whether 95 % are reached
SHORT = 1 << 31  # places that four bytes can number
DIGITS = (
    4  # of a distance: what rounding has made different shall be equal, so that statistics see ties
)


Box = tuple[slice, ...]


@dataclass(frozen=True)
class Mask:
    """A bool mask that is made where it is looked at: `table[values]`, because several of a whole
    CT are large.
    """

    table: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, mask: np.ndarray | Mask) -> Mask:
        return mask if isinstance(mask, Mask) else cls(np.array([False, True]), mask.view(np.uint8))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def ndim(self) -> int:
        return self.values.ndim

    def __getitem__(self, rows: slice) -> np.ndarray:
        return look_up(self.table, self.values[rows])

    def cropped(self, box: Box) -> Mask:
        return Mask(self.table, self.values[box])


@dataclass(frozen=True)
class SurfaceDistances:
    """From the elements of reference and prediction to the nearest of the other surface; codes, and
    areas by code.
    """

    distances: tuple[np.ndarray, np.ndarray]
    codes: tuple[np.ndarray, np.ndarray]
    table: np.ndarray
    largest: float = math.inf

    @cached_property
    def areas(self) -> tuple[np.ndarray, np.ndarray]:
        return self.table[self.codes[0]], self.table[self.codes[1]]

    def percentile(self, percent: float) -> float:
        """The larger of the two directed percentiles, weighted by area (HD95); 100 is the Hausdorff
        distance.
        """
        directed = zip(self.distances, self.areas, strict=True)
        distance = max(_weighted_percentile(*one, percent) for one in directed)
        return min(round(distance, DIGITS), self.largest)

    def mean(self) -> float:
        """The mean over the area of both surfaces together (ASSD)."""
        areas = self.areas
        sides = zip(self.distances, areas, strict=True)
        weighted = sum(float((np.minimum(d, self.largest) * a).sum()) for d, a in sides)
        return round(weighted / sum(float(area.sum()) for area in areas), DIGITS)

    def share_within(self, tolerance: float) -> float:
        """The share of the area of both surfaces that is at most `tolerance` from the other one
        (NSD).
        """
        limit, areas = tolerance + 0.5 * 10**-DIGITS, self.areas
        within = sum(float(a[d <= limit].sum()) for d, a in zip(self.distances, areas, strict=True))
        return within / sum(float(area.sum()) for area in areas)


def surface_distances(
    reference: np.ndarray | Mask,
    prediction: np.ndarray | Mask,
    spacing: Sequence[float],
    unknown: np.ndarray | Mask | None = None,
    crop: Box | None = None,
    largest: float = math.inf,
) -> SurfaceDistances | None:
    """Return the distances between two bool masks `(z, y, x)`, `(y, x)` or `(x,)`.

    `unknown` voxels belong to neither. Both masks lie inside `crop`, with a margin of one voxel
    where the image has one. In HD and ASSD no distance exceeds `largest`. Without a surface in the
    reference the result is None; without one in the prediction all distances are infinite.
    """
    reference, prediction = Mask.of(reference), Mask.of(prediction)
    hidden = None if unknown is None else Mask.of(unknown)
    crop = crop or tuple(slice(0, size) for size in reference.shape)
    axes, first, first_codes = reference_elements(reference, hidden, crop)
    if not len(first):
        return None
    spacing = tuple(float(size) for size in spacing)
    table = element_areas(tuple(spacing[axis] for axis in axes))
    cropped_hidden = None if hidden is None else hidden.cropped(crop)
    second, second_codes = _elements(prediction.cropped(crop), cropped_hidden, axes, len(table) - 1)
    shape = _element_shape(crop, axes)
    there = _nearest(first, second, shape, spacing)
    back = _nearest(second, first, shape, spacing)
    if hidden is not None and len(second):
        sides = ((first, there), (second, back))
        there, back = _at_most_to_unknown(sides, hidden, crop, axes, spacing)
    return SurfaceDistances((there, back), (first_codes, second_codes), table, largest)


def reference_elements(
    reference: Mask, unknown: Mask | None, crop: Box
) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    """Return the axes that have a surface, then flat indices and codes of the elements of it."""
    cropped = reference.cropped(crop)
    hidden = None if unknown is None else unknown.cropped(crop)
    axes = tuple(axis for axis, size in enumerate(reference.shape) if size > 1)
    if hidden is not None:
        axes = _known_axes(cropped, hidden, axes)
    return axes, *_elements(cropped, hidden, axes, 2**2 ** len(axes) - 1)


def _element_shape(crop: Box, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(side.stop - side.start + (axis in axes) for axis, side in enumerate(crop))


def _at_most_to_unknown(
    sides: Sequence[tuple[np.ndarray, np.ndarray]],
    unknown: Mask,
    crop: Box,
    axes: tuple[int, ...],
    spacing: tuple[float, ...],
) -> list[np.ndarray]:
    """Return the distances of both sides, none larger than that to a voxel of unknown membership.

    Only elements on the border of the unknown part are looked at: inside, none is nearer. Where an
    axis has no surface, slices are far apart: a skipped one would be nearer than any contour.
    """
    spacing = tuple(size if axis in axes else FAR for axis, size in enumerate(spacing))
    largest = max(float(distances.max()) for _, distances in sides)
    wide = _grown(crop, unknown.shape, largest, spacing)
    border, _ = _elements(unknown.cropped(wide), None, axes, 2**2 ** len(axes) - 1)
    if not largest or not len(border):
        return [distances for _, distances in sides]
    shapes = _element_shape(crop, axes), _element_shape(wide, axes)
    offset = [inner.start - outer.start for inner, outer in zip(crop, wide, strict=True)]
    limited = []
    for at, distances in sides:
        places = np.unravel_index(at, shapes[0])
        moved = tuple(place + shift for place, shift in zip(places, offset, strict=True))
        index = np.ravel_multi_index(moved, shapes[1]).astype(border.dtype)
        limited.append(_nearest(index, border, shapes[1], spacing, distances))
    return limited


def _grown(crop: Box, shape: tuple[int, ...], distance: float, spacing: tuple[float, ...]) -> Box:
    margins = [math.ceil(distance / size) + 1 for size in spacing]
    return tuple(
        slice(max(side.start - margin, 0), min(side.stop + margin, size))
        for side, margin, size in zip(crop, margins, shape, strict=True)
    )


def _slabs(shape: tuple[int, ...], rows: int) -> Iterator[slice]:
    """The rows of the first axis, as many at once as `SLAB` voxels have: masks may be large."""
    step = max(1, SLAB // max(1, math.prod(shape[1:])))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _elements(
    mask: np.ndarray | Mask, unknown: np.ndarray | Mask | None, axes: tuple[int, ...], full: int
) -> tuple[np.ndarray, np.ndarray]:
    """Flat indices of the surface elements, ascending, and their codes."""
    places, found, before = [], [], 0
    small = math.prod(size + 1 for size in mask.shape) < SHORT
    for rows in _slabs(mask.shape, mask.shape[0] + (0 in axes)):
        codes = neighbour_codes(mask, axes, rows)
        surface = (codes != 0) & (codes != full)
        if unknown is not None and surface.any():
            surface &= neighbour_codes(unknown, axes, rows) == 0
        at = np.flatnonzero(surface)
        found.append(codes.ravel()[at])
        places.append((at + before).astype(np.int32 if small else np.int64))
        before += codes.size
    return np.concatenate(places), np.concatenate(found)


def _nearest(
    at: np.ndarray,
    others: np.ndarray,
    shape: tuple[int, ...],
    spacing: tuple[float, ...],
    limit: np.ndarray | None = None,
) -> np.ndarray:
    """Return the distances from the elements `at` (flat indices, ascending) to the nearest of
    `others`, at most `limit`; infinite where there is none.

    A good prediction shares most of its elements with the reference and has the rest within a few
    voxels: looking there, in the order of distance, takes a fraction of the time of a tree, and a
    tree a fraction of the memory of a distance map.
    """
    distances = np.full(len(at), np.inf) if limit is None else limit.copy()
    if not len(others):
        return distances
    distances[others[np.minimum(np.searchsorted(others, at), len(others) - 1)] == at] = 0
    todo = np.flatnonzero(distances > min(spacing))  # no element is nearer than a voxel
    reach = (REACH + 1) * min(spacing)
    tree = None
    for start in range(0, len(todo), PIECE):
        piece = todo[start : start + PIECE]
        near = _near(at[piece], others, shape, spacing, distances[piece])
        distances[piece] = np.minimum(distances[piece], near)
        piece = piece[np.isinf(near) & (distances[piece] > reach)]
        if not len(piece):
            continue
        if len(others) <= WHOLE:
            tree = tree or _tree(others, shape, spacing)
            far = tree.query(_points(at[piece], shape, spacing))[0]
        else:
            far = _by_rows(at[piece], others, shape, spacing)
        distances[piece] = np.minimum(distances[piece], far)
    return distances


def _near(
    at: np.ndarray,
    others: np.ndarray,
    shape: tuple[int, ...],
    spacing: tuple[float, ...],
    limit: np.ndarray,
) -> np.ndarray:
    """Distances to those of `others` that are a few voxels away, infinite where there is none, or
    none that is nearer than `limit`.
    """
    row = math.prod(shape[1:])
    first, last = (int(at[end]) // row for end in (0, -1))
    low, high = _between_rows(others, first - REACH, last + REACH + 1, shape)
    padded = [last - first + 1 + 2 * REACH, *(size + 2 * REACH for size in shape[1:])]
    there = np.zeros(math.prod(padded), bool)
    for start in range(low, high, PIECE):
        there[_moved(others[start : min(start + PIECE, high)], shape, padded, first)] = True
    strides = [math.prod(padded[axis + 1 :]) for axis in range(len(padded))]
    distances = np.full(len(at), np.inf)
    todo, place = np.arange(len(at)), _moved(at, shape, padded, first)
    has_limit = bool(np.isfinite(limit).any())
    for distance, offsets in _shells(spacing):
        if has_limit:
            is_open = limit[todo] > distance
            todo, place = todo[is_open], place[is_open]
        found = np.zeros(len(todo), bool)
        for offset in offsets @ strides:
            found |= there.take(place + offset)
        distances[todo[found]] = distance
        todo, place = todo[~found], place[~found]
        if not len(todo):
            break
    return distances


def _moved(
    flat: np.ndarray, shape: tuple[int, ...], padded: Sequence[int], first: int
) -> np.ndarray:
    """Flat indices in an array that starts with row `first`, with a margin of `REACH` voxels on all
    sides.
    """
    index, rest = (
        np.zeros(len(flat), np.int64),
        flat.astype(np.int64) - first * math.prod(shape[1:]),
    )
    for axis in range(len(shape)):
        along, rest = np.divmod(rest, math.prod(shape[axis + 1 :]))
        index = index * padded[axis] + along + REACH
    return index


@lru_cache(maxsize=64)
def _shells(spacing: tuple[float, ...]) -> list[tuple[float, np.ndarray]]:
    """Offsets in voxels, grouped by their length, shortest first; as far as `REACH` voxels hold all
    of one length.
    """
    offsets = np.array(list(product(range(-REACH, REACH + 1), repeat=len(spacing))))
    lengths = np.sqrt(((offsets * spacing) ** 2).sum(1))
    near = (lengths > 0) & (lengths < (REACH + 1) * min(spacing))
    order = np.argsort(lengths[near], kind="stable")
    offsets, lengths = offsets[near][order], lengths[near][order]
    ends = np.flatnonzero(np.diff(lengths) > 1e-9 * lengths[-1]) + 1
    return [
        (float(length[0]), shell)
        for length, shell in zip(np.split(lengths, ends), np.split(offsets, ends), strict=True)
    ]


def _by_rows(
    at: np.ndarray, others: np.ndarray, shape: tuple[int, ...], spacing: tuple[float, ...]
) -> np.ndarray:
    """With a tree of the rows around `at` alone, and of more where nothing is as near as
    their end.
    """
    distances, piece, row = np.full(len(at), np.inf), np.arange(len(at)), math.prod(shape[1:])
    first, last, reach = int(at[0]) // row, int(at[-1]) // row, 8
    while len(piece):
        low, high = _between_rows(others, first - reach, last + reach + 1, shape)
        if low < high:
            distances[piece] = _tree(others[low:high], shape, spacing).query(
                _points(at[piece], shape, spacing)
            )[0]
        if high - low == len(others):
            break
        piece = piece[distances[piece] > reach * spacing[0]]
        reach *= 4
    return distances


def _between_rows(flat: np.ndarray, first: int, last: int, shape: tuple[int, ...]) -> np.ndarray:
    """Where the elements of these rows begin and end; of the same type, else NumPy would copy all
    of `flat`.
    """
    ends = np.clip([first, last], 0, shape[0]) * math.prod(shape[1:])
    return np.searchsorted(flat, ends.astype(flat.dtype))


def _tree(
    flat: np.ndarray, shape: tuple[int, ...], spacing: tuple[float, ...]
) -> scipy.spatial.cKDTree:
    return scipy.spatial.cKDTree(
        _points(flat, shape, spacing), balanced_tree=False, compact_nodes=False
    )


def _points(flat: np.ndarray, shape: tuple[int, ...], spacing: tuple[float, ...]) -> np.ndarray:
    """Where elements are, in mm: `(N, axes)`; axis by axis, because there may be millions."""
    points = np.empty((len(flat), len(shape)))
    for axis, size in enumerate(shape):
        points[:, axis] = flat // math.prod(shape[axis + 1 :]) % size
    points *= spacing
    return points


def _known_axes(reference: Mask, unknown: Mask, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes along which at least half of the reference's voxels have a known neighbour.

    The prediction has no say: a few wrong slices must not change what is measured.
    """
    voxels, beside = 0, dict.fromkeys(axes, 0)
    for rows in _slabs(reference.shape, reference.shape[0]):
        margin = slice(max(rows.start - 1, 0), rows.stop + 1)  # beside the first and the last row
        inner = slice(rows.start - margin.start, rows.stop - margin.start)
        inside = reference[rows]
        known = ~unknown[margin]
        voxels += np.count_nonzero(inside)
        for axis in axes:
            ahead = (slice(None),) * axis + (slice(1, None),)
            behind = (slice(None),) * axis + (slice(None, -1),)
            neighbour = np.zeros_like(known)
            neighbour[behind] |= known[ahead]
            neighbour[ahead] |= known[behind]
            beside[axis] += np.count_nonzero(neighbour[inner] & inside)
    return tuple(axis for axis in axes if 2 * beside[axis] >= voxels)


def neighbour_codes(
    mask: np.ndarray | Mask, axes: Sequence[int] | None = None, rows: slice | None = None
) -> np.ndarray:
    """A bit for each of the 2**n corners of every neighbourhood, one neighbourhood wider than the
    mask on each axis.

    Bits are packed axis by axis, last axis first, so that the corner `(1, ..., 1)` has the highest
    bit. Only `axes` have neighbours. `rows` are those of the first axis that are wanted.
    """
    axes = tuple(range(mask.ndim)) if axes is None else tuple(axes)
    padding = [(1, 1) if axis in axes else (0, 0) for axis in range(mask.ndim)]
    if rows is None:
        wanted = slice(None)
    elif 0 in axes:
        padding[0] = (int(rows.start == 0), int(rows.stop > mask.shape[0]))
        wanted = slice(max(rows.start - 1, 0), rows.stop)
    else:
        wanted = rows
    codes = np.pad(mask[wanted].view(np.uint8), padding)
    for used, axis in enumerate(reversed(axes)):
        lower, upper = (
            (slice(None),) * axis + (ends,) for ends in (slice(None, -1), slice(1, None))
        )
        codes = codes[lower] | (codes[upper] << 2**used)
    return codes


@lru_cache(maxsize=64)
def element_areas(spacing: tuple[float, ...]) -> np.ndarray:
    """Area (3D), length (2D) or number (1D) of the surface element of every neighbour code, for
    voxels of this size.

    A length is the area of the same element drawn out by 1 mm: marching cubes then are marching
    squares.
    """
    codes = np.arange(2**2 ** len(spacing))
    for axis in range(len(spacing), 3):
        codes |= codes << 2**axis  # the same on both sides of the new axis
    sizes = (1.0,) * (3 - len(spacing)) + spacing
    # An area vector scales with the two spacings across its component.
    scale = np.prod(sizes) / np.array(sizes)
    return np.array([np.linalg.norm(vectors * scale, axis=1).sum() for vectors in _area_vectors()])[
        codes
    ]


@lru_cache(maxsize=1)
def _area_vectors() -> list[np.ndarray]:
    """Area vectors (T, 3) of the T triangles of every neighbour code, for unit voxels.

    The original marching cubes: a neighbourhood and its complement have the same surface, that of
    the fewer corners.
    """
    from skimage.measure import marching_cubes  # here, because only surfaces need it

    vectors = [np.zeros((0, 3))] * 256
    for code in range(1, 255):
        # the inverse of `neighbour_codes`
        cube = np.unpackbits(np.uint8(code), bitorder="little").reshape(2, 2, 2)
        fewer = cube if cube.sum() <= 4 else 1 - cube
        vertices, faces, _, _ = marching_cubes(fewer.astype(float), 0.5, method="lorensen")
        first, second, third = (vertices[faces[:, corner]].astype(float) for corner in range(3))
        vectors[code] = np.cross(second - first, third - first) / 2
    return vectors


def _weighted_percentile(distances: np.ndarray, weights: np.ndarray, percent: float) -> float:
    """The smallest distance up to which at least `percent` of the weight lies; in good results most
    are 0.
    """
    if percent == 100:
        return float(distances.max(initial=0))
    wanted = percent / 100 - TIE
    total, apart = np.sum(weights), distances > 0
    matched = np.sum(weights[~apart])
    distances, weights = distances[apart], weights[apart]
    if not len(distances) or matched / total >= wanted:
        return 0.0
    order = np.lexsort((weights, distances))
    share = (matched + np.cumsum(weights[order])) / total
    reached = int(np.searchsorted(share, wanted))
    return float(distances[order[min(reached, len(order) - 1)]])
