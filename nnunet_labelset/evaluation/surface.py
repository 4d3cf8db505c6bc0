"""HD95: the robust Hausdorff distance between two masks, their surface elements weighted by area.

A surface element sits between 2x2x2 voxels (2x2 pixels in 2D) that are neither all inside nor all outside. Its area is
that of the marching-cubes triangles (the length of the marching-squares segments) between them. Each directed distance
is the 95th percentile, weighted by area, of the distances from the elements of one surface to the nearest of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product

import edt
import numpy as np

REACH = 4  # voxels in which near surfaces are looked for, before a distance map is made


def hd95(reference: np.ndarray, prediction: np.ndarray, spacing: Sequence[float], percent: float = 95) -> float:
    """HD95 of two bool masks `(z, y, x)` or `(y, x)`, in the unit of `spacing`.

    NaN if both masks are empty, infinite if one of them is.
    """
    if not reference.any() or not prediction.any():
        return float("inf") if reference.any() or prediction.any() else float("nan")
    box = _common_box(reference, prediction)
    spacing = tuple(float(size) for size in spacing)
    areas = element_areas(spacing)
    codes = [neighbour_codes(mask[box]) for mask in (reference, prediction)]
    if np.array_equal(codes[0], codes[1]):
        return 0.0
    surfaces = [(code != 0) & (code != len(areas) - 1) for code in codes]
    directed = []
    for a, b in ((0, 1), (1, 0)):
        at = np.flatnonzero(surfaces[a])
        weights = areas[codes[a].ravel()[at]]
        distance = _weighted_percentile(_near(at, weights, surfaces[b], spacing, percent), weights, percent)
        if np.isinf(distance):
            # uint8 takes a faster path in `edt` than bool
            squared = edt.edtsq((~surfaces[b]).view(np.uint8), anisotropy=spacing, parallel=1)
            distance = np.sqrt(_weighted_percentile(squared.ravel()[at], weights, percent))
        directed.append(distance)
    # `edt` counts in float32: what it cannot tell apart shall be equal, so that statistics see ties.
    return round(float(max(directed)), 4)


def _near(
    at: np.ndarray, weights: np.ndarray, surface: np.ndarray, spacing: tuple[float, ...], percent: float
) -> np.ndarray:
    """Distances from the elements `at` (flat indices) to `surface`, infinite where the search did not find any.

    A good prediction is nearly everywhere within a few voxels of the reference: looking there, in the order of
    distance, until the percentile is reached takes less time than a distance map. It gives up where it would not.
    """
    padded = np.pad(surface, REACH)
    strides = np.array(padded.strides)  # of single bytes: also those of flat indices
    flat = padded.ravel()
    todo = np.ravel_multi_index(tuple(axis + REACH for axis in np.unravel_index(at, surface.shape)), padded.shape)
    where = np.arange(len(at))
    distances = np.full(len(at), np.inf)
    left, enough = weights.sum(), (1 - percent / 100) * weights.sum() * (1 - 1e-9)
    work = 2 * surface.size  # look-ups that take a fraction of the time of a distance map
    for distance, offsets in _shells(spacing):
        work -= len(offsets) * (len(todo) + 2000)  # and a call costs as much as 2000 of them
        if work < 0:
            break
        found = np.zeros(len(todo), dtype=bool)
        for offset in offsets @ strides:
            found |= flat.take(todo + offset)
        distances[where[found]] = distance
        left -= weights[where[found]].sum()
        if left < enough:
            break
        todo, where = todo[~found], where[~found]
    return distances


@lru_cache(maxsize=64)
def _shells(spacing: tuple[float, ...]) -> list[tuple[float, np.ndarray]]:
    """Offsets in voxels, grouped by their length, shortest first; as far as `REACH` voxels hold all of one length."""
    offsets = np.array(list(product(range(-REACH, REACH + 1), repeat=len(spacing))))
    lengths = np.sqrt(((offsets * spacing) ** 2).sum(1))
    complete = lengths < (REACH + 1) * min(spacing)
    groups: dict[float, list[np.ndarray]] = {}
    for length, offset in zip(lengths[complete], offsets[complete], strict=True):
        groups.setdefault(round(float(length), 9), []).append(offset)
    return [(length, np.array(groups[length])) for length in sorted(groups)]


def neighbour_codes(mask: np.ndarray) -> np.ndarray:
    """A bit for each of the 2**n corners of every neighbourhood, one neighbourhood wider than the mask on each axis.

    Bits are packed axis by axis, last axis first, so that the corner `(1, ..., 1)` has the highest bit.
    """
    codes = np.pad(mask.view(np.uint8), 1)
    for axis in reversed(range(mask.ndim)):
        bits = 2 ** (mask.ndim - 1 - axis)  # already in use
        lower, upper = ((slice(None),) * axis + (ends,) for ends in (slice(None, -1), slice(1, None)))
        codes = codes[lower] | (codes[upper] << bits)
    return codes


@lru_cache(maxsize=64)
def element_areas(spacing: tuple[float, ...]) -> np.ndarray:
    """Area (3D) or length (2D) of the surface element of every neighbour code, for voxels of this size."""
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
    from skimage.measure import marching_cubes  # here, because only HD95 in 3D needs it

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


def _common_box(a: np.ndarray, b: np.ndarray) -> tuple[slice, ...]:
    """The smallest box that holds both masks."""
    either = a | b
    box = []
    for axis in range(either.ndim):
        used = np.flatnonzero(either.any(axis=tuple(other for other in range(either.ndim) if other != axis)))
        box.append(slice(used[0], used[-1] + 1))
    return tuple(box)


def _weighted_percentile(distances: np.ndarray, weights: np.ndarray, percent: float) -> float:
    """The smallest distance up to which at least `percent` of the weight lies."""
    order = np.lexsort((weights, distances))
    share = np.cumsum(weights[order]) / np.sum(weights)
    reached = int(np.searchsorted(share, percent / 100))
    return float(distances[order[min(reached, len(order) - 1)]])
