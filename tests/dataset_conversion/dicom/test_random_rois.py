"""Random ROIs with holes on stacks of any orientation, against scikit-image on a finer grid."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from skimage.draw import polygon2mask

from nnunet_labelset.dataset_conversion.dicom.contours import draw
from nnunet_labelset.dataset_conversion.dicom.slices import Slice
from nnunet_labelset.dataset_conversion.dicom.stack import Stack
from nnunet_labelset.dataset_conversion.dicom.structure_set import Roi
from tests.helpers.dicom import Scan

SHAPE = (4, 42, 44)
FINER = 8  # parts of a pixel along each axis, in which the other rasteriser works
SIGNS = list(itertools.product((1.0, -1.0), (1.0, -1.0), (False, True)))


def random_axes(rng: np.random.Generator) -> np.ndarray:
    """Return one of the eight axial orientations, a sagittal, a coronal or an oblique one."""
    kind = int(rng.integers(0, 11))
    if kind == 8:
        return np.array([[0.0, 1, 0], [0, 0, -1], [-1, 0, 0]])
    if kind == 9:
        return np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    if kind == 10:
        return Rotation.random(random_state=int(rng.integers(1 << 30))).as_matrix()
    x, y, swap = SIGNS[kind]
    rows = np.diag([x, y, x * y])
    return np.array([rows[1], rows[0], -rows[2]]) if swap else rows


def stack_of(scan: Scan) -> Stack:
    places = scan.points(np.array([[number, 0, 0] for number in range(scan.shape[0])]))
    slices = [
        Slice(
            path=None,
            uid=str(number),
            position=tuple(place),
            orientation=tuple(scan.axes[:2].ravel()),
            spacing=scan.spacing[1:],
            rows=scan.shape[1],
            columns=scan.shape[2],
        )
        for number, place in enumerate(places)
    ]
    return Stack("series", "CT", tuple(slices))


def star(rng: np.random.Generator) -> np.ndarray:
    corners = int(rng.integers(5, 60))
    angle = (np.arange(corners) + rng.uniform(0, 0.8, corners)) * 2 * np.pi / corners
    radius = rng.uniform(9, 18, corners)
    return np.column_stack([radius * np.sin(angle), radius * np.cos(angle)])


def keyhole(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """Return one contour: around the outer one, along a slit, back around the inner one."""
    return np.concatenate([outer, outer[:1], inner[:1], inner[::-1]])


def area(points: np.ndarray) -> float:
    row, column = points.T
    return abs(float(np.dot(row, np.roll(column, 1)) - np.dot(column, np.roll(row, 1)))) / 2


def random_roi(rng: np.random.Generator, scan: Scan) -> tuple[list[np.ndarray], np.ndarray, float]:
    """Return contours in mm, the share of every voxel that the other rasteriser covers, and the
    volume of the contours in voxels.
    """
    share = np.zeros(scan.shape)
    volume = 0.0
    contours = []
    first = int(rng.integers(0, 2))
    for number in range(first, int(rng.integers(first + 1, SHAPE[0] + 1))):
        centre = np.array(SHAPE[1:]) / 2 + rng.uniform(-2, 2, 2)
        shape = star(rng)
        outer = centre + shape
        hole = centre + rng.uniform(0.2, 0.7) * shape
        drawn, fine = [outer], covered(outer)
        volume += area(outer)
        if rng.random() < 0.6:
            volume -= area(hole)
            fine &= ~covered(hole)
            drawn = [keyhole(outer, hole)] if rng.random() < 0.5 else [outer, hole[::-1]]
        share[number] = fine.reshape(SHAPE[1], FINER, SHAPE[2], FINER).mean(axis=(1, 3))
        for points in drawn:
            layer = np.full((len(points), 1), float(number))
            contours.append(scan.points(np.hstack([layer, points])))
    return contours, share, volume


def covered(points: np.ndarray) -> np.ndarray:
    shape = (SHAPE[1] * FINER, SHAPE[2] * FINER)
    return polygon2mask(shape, (points + 0.5) * FINER - 0.5)


def check(seed: int) -> tuple[float, float]:
    """Return the difference of the volumes, and of the centres in voxels."""
    rng = np.random.default_rng(seed)
    spacing = tuple(rng.uniform(0.6, 5.0, 3))
    shear = (0.0, 0.0, 0.0)
    axes = random_axes(rng)
    if rng.random() < 0.2:  # a tilted gantry
        shear = tuple(axes[1] * rng.uniform(-2, 2))
    scan = Scan(SHAPE, spacing, tuple(rng.uniform(-300, 300, 3)), axes, shear=shear)
    contours, share, volume = random_roi(rng, scan)
    drawn = draw(Roi("organ", "ORGAN", "", tuple(contours)), stack_of(scan))
    assert drawn.raster is not None
    mask = np.zeros(SHAPE, bool)
    mask[drawn.raster.box] = drawn.raster.mask
    assert mask[share > 0.95].all()
    assert not mask[share < 0.05].any()
    places = np.indices(SHAPE).reshape(3, -1)
    centre = places @ mask.ravel() / mask.sum()
    expected = places @ share.ravel() / share.sum()
    return abs(mask.sum() / volume - 1), float(np.abs(centre - expected).max())


@pytest.mark.parametrize("seed", range(30))
def test_volume_and_centre(seed: int) -> None:
    volume, centre = check(seed)
    assert volume < 0.01
    assert centre < 0.5
