"""Distances between the surfaces of two masks, their elements weighted by area, computed once for all metrics.

A surface element sits between 2x2x2 voxels (2x2 pixels in 2D) that are neither all inside nor all outside. Its area is
that of the marching-cubes triangles (the length of the marching-squares segments) between them. An element that touches
a voxel of which nobody knows whether it is inside does not count, and an axis along which nothing is known of the
neighbours (an image of one slice, every tenth slice drawn) is no axis: the surface is then that of the slices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from scipy.spatial import cKDTree

SLAB, PIECE = 1 << 22, 1 << 17  # voxels and elements that are looked at together
DIGITS = 4  # of a distance: what rounding has made different shall be equal, so that statistics see ties


@dataclass(frozen=True)
class SurfaceDistances:
    """From the elements of reference and prediction to the nearest of the other surface: distances and areas."""

    distances: tuple[np.ndarray, np.ndarray]
    areas: tuple[np.ndarray, np.ndarray]

    def percentile(self, percent: float) -> float:
        """The larger of the two directed percentiles, weighted by area (HD95); 100 is the Hausdorff distance."""
        directed = zip(self.distances, self.areas, strict=True)
        return round(max(_weighted_percentile(*one, percent) for one in directed), DIGITS)

    def mean(self) -> float:
        """The mean over the area of both surfaces together (ASSD)."""
        weighted = sum(float(d @ a) for d, a in zip(self.distances, self.areas, strict=True))
        return round(weighted / sum(float(area.sum()) for area in self.areas), DIGITS)

    def share_within(self, tolerance: float) -> float:
        """The share of the area of both surfaces that is at most `tolerance` from the other one (NSD)."""
        limit = tolerance + 0.5 * 10**-DIGITS
        within = sum(float(a[d <= limit].sum()) for d, a in zip(self.distances, self.areas, strict=True))
        return within / sum(float(area.sum()) for area in self.areas)


def surface_distances(
    reference: np.ndarray, prediction: np.ndarray, spacing: Sequence[float], unknown: np.ndarray | None = None
) -> SurfaceDistances | None:
    """Of two bool masks `(z, y, x)`, `(y, x)` or `(x,)`; `unknown` voxels are in neither. None without two surfaces."""
    if not reference.any() or not prediction.any():
        return None
    axes = tuple(axis for axis, size in enumerate(reference.shape) if size > 1)
    box = _box(reference, prediction)
    reference, prediction = reference[box], prediction[box]
    unknown = None if unknown is None or not unknown[box].any() else unknown[box]
    if unknown is not None:
        axes = _known_axes(reference | prediction, unknown, axes)
    spacing = tuple(float(size) for size in spacing)
    table = element_areas(tuple(spacing[axis] for axis in axes))
    found = [_elements(mask, unknown, axes, table) for mask in (reference, prediction)]
    if not len(found[0][0]) or not len(found[1][0]):
        return None
    (first, first_areas), (second, second_areas) = found
    shape = tuple(size + 1 if axis in axes else size for axis, size in enumerate(reference.shape))
    there, back = _nearest(first, second, shape, spacing), _nearest(second, first, shape, spacing)
    return SurfaceDistances((there, back), (first_areas, second_areas))


def _elements(
    mask: np.ndarray, unknown: np.ndarray | None, axes: tuple[int, ...], table: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Flat indices of the surface elements, ascending, and their areas; slab by slab, because masks may be large."""
    rows = mask.shape[0] + (0 in axes)
    step = max(1, SLAB // max(1, mask[0].size))
    places, areas, before = [], [], 0
    for start in range(0, rows, step):
        piece = slice(start, min(start + step, rows))
        codes = neighbour_codes(mask, axes, piece)
        surface = (codes != 0) & (codes != len(table) - 1)
        if unknown is not None:
            surface &= neighbour_codes(unknown, axes, piece) == 0
        at = np.flatnonzero(surface)
        places.append(at + before)
        areas.append(table[codes.ravel()[at]])
        before += codes.size
    return np.concatenate(places), np.concatenate(areas)


def hd95(reference: np.ndarray, prediction: np.ndarray, spacing: Sequence[float], percent: float = 95) -> float:
    """HD95 of two bool masks; NaN if both are empty, infinite if one of them is."""
    if not reference.any() or not prediction.any():
        return float("inf") if reference.any() or prediction.any() else float("nan")
    found = surface_distances(reference, prediction, spacing)
    return float("nan") if found is None else found.percentile(percent)


def _nearest(at: np.ndarray, others: np.ndarray, shape: tuple[int, ...], spacing: tuple[float, ...]) -> np.ndarray:
    """Distances from the elements `at` (flat indices, ascending) to the nearest of `others`.

    A good prediction shares most of its elements with the reference. For the rest, a tree of points needs a fraction of
    the memory of a distance map; a balanced one would take longer where many points are about equally far.
    """
    distances = np.zeros(len(at))
    apart = others[np.minimum(np.searchsorted(others, at), len(others) - 1)] != at
    if apart.any():
        tree = cKDTree(_points(others, shape, spacing), balanced_tree=False, compact_nodes=False)
        todo = np.flatnonzero(apart)
        for start in range(0, len(todo), PIECE):
            piece = todo[start : start + PIECE]
            distances[piece] = tree.query(_points(at[piece], shape, spacing))[0]
    return distances


def _points(flat: np.ndarray, shape: tuple[int, ...], spacing: tuple[float, ...]) -> np.ndarray:
    """Where elements are, in mm: `(N, axes)`; axis by axis, because there may be millions."""
    points = np.empty((len(flat), len(shape)))
    for axis, size in enumerate(shape):
        points[:, axis] = flat // math.prod(shape[axis + 1 :]) % size
    points *= spacing
    return points


def _known_axes(either: np.ndarray, unknown: np.ndarray, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes along which at least half of the voxels of the masks have a neighbour that is known."""
    known = ~unknown
    used = []
    for axis in axes:
        ahead, behind = ((slice(None),) * axis + (ends,) for ends in (slice(1, None), slice(None, -1)))
        beside = np.zeros_like(known)
        beside[behind] |= known[ahead]
        beside[ahead] |= known[behind]
        if 2 * np.count_nonzero(beside & either) >= np.count_nonzero(either):
            used.append(axis)
    return tuple(used)


def neighbour_codes(mask: np.ndarray, axes: Sequence[int] | None = None, rows: slice | None = None) -> np.ndarray:
    """A bit for each of the 2**n corners of every neighbourhood, one neighbourhood wider than the mask on each axis.

    Bits are packed axis by axis, last axis first, so that the corner `(1, ..., 1)` has the highest bit. Only
    `axes` have neighbours. `rows` are those of the first axis that are wanted.
    """
    axes = tuple(range(mask.ndim)) if axes is None else tuple(axes)
    padding = [(1, 1) if axis in axes else (0, 0) for axis in range(mask.ndim)]
    if rows is not None and 0 in axes:
        padding[0] = (int(rows.start == 0), int(rows.stop > mask.shape[0]))
        mask = mask[max(rows.start - 1, 0) : rows.stop]
    elif rows is not None:
        mask = mask[rows]
    codes = np.pad(mask.view(np.uint8), padding)
    for used, axis in enumerate(reversed(axes)):
        lower, upper = ((slice(None),) * axis + (ends,) for ends in (slice(None, -1), slice(1, None)))
        codes = codes[lower] | (codes[upper] << 2**used)
    return codes


@lru_cache(maxsize=64)
def element_areas(spacing: tuple[float, ...]) -> np.ndarray:
    """Area (3D), length (2D) or number (1D) of the surface element of every neighbour code, for voxels of this size."""
    if len(spacing) < 2:
        return np.array([0.0, 1.0, 1.0, 0.0][: 2**2 ** len(spacing)])
    if len(spacing) == 2:
        return _contour_lengths(spacing)
    # An area vector scales with the two spacings across its component.
    scale = np.prod(spacing) / np.array(spacing)
    return np.array([np.linalg.norm(vectors * scale, axis=1).sum() for vectors in _area_vectors()])


def _contour_lengths(spacing: tuple[float, ...]) -> np.ndarray:
    """Marching squares; on the ambiguous diagonal the two inside pixels are separate."""
    corner = np.hypot(spacing[0], spacing[1]) / 2
    lengths = np.zeros(16)
    for code in range(1, 15):
        square = _corners(code, 2)
        if square.sum() != 2:
            lengths[code] = corner
        elif square[0, 0] == square[1, 1]:
            lengths[code] = 2 * corner
        else:
            lengths[code] = spacing[1] if square[0, 0] == square[0, 1] else spacing[0]
    return lengths


@lru_cache(maxsize=1)
def _area_vectors() -> list[np.ndarray]:
    """Area vectors (T, 3) of the T triangles of every neighbour code, for unit voxels.

    The original marching cubes: a neighbourhood and its complement have the same surface, that of the fewer corners.
    """
    from skimage.measure import marching_cubes  # here, because only surfaces in 3D need it

    vectors = []
    for code in range(256):
        cube = _corners(code, 3)
        if cube.all() or not cube.any():
            vectors.append(np.zeros((0, 3)))
            continue
        vertices, faces, _, _ = marching_cubes(
            (cube if cube.sum() <= 4 else ~cube).astype(float), 0.5, method="lorensen"
        )
        first, second, third = (vertices[faces[:, corner]].astype(float) for corner in range(3))
        vectors.append(np.cross(second - first, third - first) / 2)
    return vectors


def _corners(code: int, ndim: int) -> np.ndarray:
    """The neighbourhood of a code, the inverse of `neighbour_codes`."""
    corners = np.zeros((2,) * ndim, dtype=bool)
    for bit, corner in enumerate(product((0, 1), repeat=ndim)):
        corners[corner] = code >> bit & 1
    return corners


def _box(a: np.ndarray, b: np.ndarray) -> tuple[slice, ...]:
    """The smallest box that holds the masks, with one more voxel on each side where the image has one."""
    box = []
    for axis in range(a.ndim):
        others = tuple(other for other in range(a.ndim) if other != axis)
        used = np.flatnonzero(a.any(axis=others) | b.any(axis=others))
        box.append(slice(max(used[0] - 1, 0), used[-1] + 2))
    return tuple(box)


def _weighted_percentile(distances: np.ndarray, weights: np.ndarray, percent: float) -> float:
    """The smallest distance up to which at least `percent` of the weight lies."""
    order = np.lexsort((weights, distances))
    share = np.cumsum(weights[order]) / np.sum(weights)
    reached = int(np.searchsorted(share, percent / 100))
    return float(distances[order[min(reached, len(order) - 1)]])
