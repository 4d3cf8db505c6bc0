"""Distances between the surfaces of two masks, their elements weighted by area, computed once for
all metrics.

A surface element sits between 2x2x2 voxels (2x2 pixels in 2D) that are neither all inside nor all
outside. Its area is that of the marching-cubes triangles (the length of the marching-squares
segments) between them. An element that touches a voxel of which nobody knows whether it is inside
does not count, and an axis along which nothing is known of the neighbours (an image of one slice,
every tenth slice drawn) is no axis: the surface is then that of the slices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import scipy

from nnunet_labelset.evaluation.counts import look_up

SLAB, PIECE = 1 << 22, 1 << 17  # voxels and elements that are looked at together
REACH = 4  # voxels in which near elements are looked for, before a tree is made
WHOLE = (
    1 << 19
)  # elements of which one tree is made; of more, one for each neighbourhood of a piece
SHORT = 1 << 31  # places that four bytes can number
DIGITS = (
    4  # of a distance: what rounding has made different shall be equal, so that statistics see ties
)


@dataclass(frozen=True)
class Mask:
    """A bool mask that is made where it is looked at: `table[values]`, because several of a whole
    CT are large.
    """

    table: np.ndarray
    values: np.ndarray
    without: Mask | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def ndim(self) -> int:
        return self.values.ndim

    def __getitem__(self, rows: slice) -> np.ndarray:
        found = look_up(self.table, self.values[rows])
        return found if self.without is None else found & ~self.without[rows]


@dataclass(frozen=True)
class SurfaceDistances:
    """From the elements of reference and prediction to the nearest of the other surface; codes, and
    areas by code.
    """

    distances: tuple[np.ndarray, np.ndarray]
    codes: tuple[np.ndarray, np.ndarray]
    table: np.ndarray

    @property
    def areas(self) -> tuple[np.ndarray, np.ndarray]:
        return self.table[self.codes[0]], self.table[self.codes[1]]

    def percentile(self, percent: float) -> float:
        """The larger of the two directed percentiles, weighted by area (HD95); 100 is the Hausdorff
        distance.
        """
        directed = zip(self.distances, self.areas, strict=True)
        return round(max(_weighted_percentile(*one, percent) for one in directed), DIGITS)

    def mean(self) -> float:
        """The mean over the area of both surfaces together (ASSD)."""
        areas = self.areas
        weighted = sum(float((d * a).sum()) for d, a in zip(self.distances, areas, strict=True))
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
) -> SurfaceDistances | None:
    """Of two bool masks `(z, y, x)`, `(y, x)` or `(x,)`; `unknown` voxels are in neither. None
    without two surfaces.
    """
    axes = tuple(axis for axis, size in enumerate(reference.shape) if size > 1)
    if unknown is not None:
        axes = _known_axes(reference, prediction, unknown, axes)
    spacing = tuple(float(size) for size in spacing)
    table = element_areas(tuple(spacing[axis] for axis in axes))
    (first, first_codes), (second, second_codes) = (
        _elements(mask, unknown, axes, len(table) - 1) for mask in (reference, prediction)
    )
    if not len(first) or not len(second):
        return None
    shape = tuple(size + 1 if axis in axes else size for axis, size in enumerate(reference.shape))
    there, back = _nearest(first, second, shape, spacing), _nearest(second, first, shape, spacing)
    return SurfaceDistances((there, back), (first_codes, second_codes), table)


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
    at: np.ndarray, others: np.ndarray, shape: tuple[int, ...], spacing: tuple[float, ...]
) -> np.ndarray:
    """Distances from the elements `at` (flat indices, ascending) to the nearest of `others`.

    A good prediction shares most of its elements with the reference, and has the rest within a few
    voxels: looking there, in the order of distance, takes a fraction of the time of a tree, and a
        tree a fraction of the memory of a
    distance map.
    """
    distances = np.zeros(len(at))
    apart = others[np.minimum(np.searchsorted(others, at), len(others) - 1)] != at
    todo = np.flatnonzero(apart)
    tree = None
    for start in range(0, len(todo), PIECE):
        piece = todo[start : start + PIECE]
        distances[piece] = _near(at[piece], others, shape, spacing)
        piece = piece[np.isinf(distances[piece])]
        if len(piece) and len(others) <= WHOLE:
            tree = tree or _tree(others, shape, spacing)
            distances[piece] = tree.query(_points(at[piece], shape, spacing))[0]
        elif len(piece):
            distances[piece] = _by_rows(at[piece], others, shape, spacing)
    return distances


def _near(
    at: np.ndarray, others: np.ndarray, shape: tuple[int, ...], spacing: tuple[float, ...]
) -> np.ndarray:
    """Distances to those of `others` that are a few voxels away, infinite where there is none."""
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
    for distance, offsets in _shells(spacing):
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
    """With a tree of the rows around `at` alone, and of more where nothing is as near as their end."""
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


def _known_axes(
    reference: np.ndarray | Mask,
    prediction: np.ndarray | Mask,
    unknown: np.ndarray | Mask,
    axes: tuple[int, ...],
) -> tuple[int, ...]:
    """The axes along which at least half of the voxels of the masks have a neighbour that is known."""
    voxels, beside = 0, dict.fromkeys(axes, 0)
    for rows in _slabs(reference.shape, reference.shape[0]):
        margin = slice(
            max(rows.start - 1, 0), rows.stop + 1
        )  # what is beside the first and the last row
        inner = slice(rows.start - margin.start, rows.stop - margin.start)
        either, known = reference[rows] | prediction[rows], ~unknown[margin]
        voxels += np.count_nonzero(either)
        for axis in axes:
            ahead, behind = (
                (slice(None),) * axis + (ends,) for ends in (slice(1, None), slice(None, -1))
            )
            neighbour = np.zeros_like(known)
            neighbour[behind] |= known[ahead]
            neighbour[ahead] |= known[behind]
            beside[axis] += np.count_nonzero(neighbour[inner] & either)
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
        cube = np.unpackbits(np.uint8(code), bitorder="little").reshape(
            2, 2, 2
        )  # the inverse of `neighbour_codes`
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
        return float(distances.max())
    total, apart = np.sum(weights), distances > 0
    matched = np.sum(weights[~apart])
    distances, weights = distances[apart], weights[apart]
    if not len(distances) or matched / total >= percent / 100:
        return 0.0
    order = np.lexsort((weights, distances))
    share = (matched + np.cumsum(weights[order])) / total
    reached = int(np.searchsorted(share, percent / 100))
    return float(distances[order[min(reached, len(order) - 1)]])
