"""Shapes, smooth random fields and distances: what the phantom is drawn with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.ndimage import distance_transform_edt


def smooth_noise(rng: np.random.Generator, shape: Sequence[int], length: float) -> np.ndarray:
    """Random field of about unit variance whose features are `length` voxels wide: a cubic B-spline
    of random knots.
    """
    knots = [int(np.ceil(size / length)) + 4 for size in shape]
    field = rng.normal(0, 3, knots).astype(np.float32)
    for axis, size in enumerate(shape):
        # (size, knots)
        distance = np.abs(np.arange(size)[:, None] / length + 1.5 - np.arange(knots[axis])[None])
        near, far = 2 / 3 - distance**2 + distance**3 / 2, np.maximum(0, 2 - distance) ** 3 / 6
        weights = np.where(distance < 1, near, far).astype(np.float32)
        field = np.moveaxis(np.tensordot(weights, field, (1, axis)), 0, axis)
    return field


def ellipsoid(
    x: np.ndarray, y: np.ndarray, z: np.ndarray, middle: Sequence[float], radii: Sequence[float]
) -> np.ndarray:
    """True inside."""
    offsets = ((a - m) / r for a, m, r in zip((x, y, z), middle, radii, strict=True))
    return np.add.reduce([offset**2 for offset in offsets]) < 1


def capsule(
    points: Sequence[np.ndarray], start: Sequence[float], end: Sequence[float], r0: float, r1: float
) -> np.ndarray:
    """True within a radius that goes from `r0` at `start` to `r1` at `end` of the segment."""
    direction = np.subtract(end, start).astype(np.float32)
    along = sum((p - s) * d for p, s, d in zip(points, start, direction, strict=True)) / float(
        direction @ direction
    )
    along = np.clip(along, 0, 1)
    distance = sum(
        (p - s - along * d) ** 2 for p, s, d in zip(points, start, direction, strict=True)
    )
    return distance < (r0 + (r1 - r0) * along) ** 2


def depth_inside(inside: np.ndarray, millimetres: float) -> np.ndarray:
    """Distance to the outside, in millimetres; 0 outside."""
    depth = distance_transform_edt(inside, millimetres).astype(np.float32)
    return np.maximum(0, depth - millimetres / 2)  # the border lies between two voxels


def average_blocks(fine: np.ndarray, factor: int) -> np.ndarray:
    """Mean over blocks of `factor` voxels a side."""
    blocks = [size for length in fine.shape for size in (length // factor, factor)]
    return fine.astype(np.float32).reshape(blocks).mean((1, 3, 5))
