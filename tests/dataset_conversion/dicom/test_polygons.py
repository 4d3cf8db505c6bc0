"""Covered areas against hand-computed values and an independent rasteriser."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.draw import polygon2mask

from nnunet_labelset.dataset_conversion.dicom.polygons import Polygon, nesting_signs, rasterise


def square(low: float, high: float, number: int = 0) -> Polygon:
    points = [(low, low), (low, high), (high, high), (high, low)]
    return Polygon(number, np.array(points, float))


def full_mask(polygons: list[Polygon], shape: tuple[int, int, int]) -> np.ndarray:
    raster = rasterise(polygons, shape)
    mask = np.zeros(shape, bool)
    mask[raster.box] = raster.mask
    return mask


def supersampled(points: np.ndarray, shape: tuple[int, int], factor: int = 16) -> np.ndarray:
    """Return the covered share of every pixel, counted on a finer grid by scikit-image."""
    fine = polygon2mask((shape[0] * factor, shape[1] * factor), (points + 0.5) * factor - 0.5)
    return fine.reshape(shape[0], factor, shape[1], factor).mean(axis=(1, 3))


def test_pixels_are_squares_around_their_index() -> None:
    mask = full_mask([square(1.5, 3.5)], (1, 6, 6))
    assert set(map(tuple, np.argwhere(mask[0]))) == {(2, 2), (2, 3), (3, 2), (3, 3)}


def test_a_triangle_by_hand() -> None:
    triangle = Polygon(0, np.array([(-0.5, -0.5), (-0.5, 3.5), (3.5, -0.5)]))
    assert abs(triangle.area) == Fraction(4 * 4, 2)
    raster = rasterise([triangle], (1, 4, 4))
    assert raster.volume == 8
    assert raster.clipped_volume == pytest.approx(8)


def test_hole_and_island_in_any_direction_of_drawing() -> None:
    hole = square(3.5, 8.5)
    island = square(4.5, 6.5)
    outer = square(1.5, 10.5)
    turned = Polygon(0, hole.points[::-1])
    for polygons in ([outer, hole, island], [island, turned, outer]):
        mask = full_mask(polygons, (1, 13, 13))
        assert mask.sum() == 81 - 25 + 4
        assert rasterise(polygons, (1, 13, 13)).polygon_volume == 81 - 25 + 4


def test_keyhole() -> None:
    slit = [(1.5, 1.5), (1.5, 10.5), (10.5, 10.5), (10.5, 1.5), (5.5, 1.5), (5.5, 3.5)]
    inner = [(8.5, 3.5), (8.5, 8.5), (3.5, 8.5), (3.5, 3.5), (5.5, 3.5), (5.5, 1.5)]
    mask = full_mask([Polygon(0, np.array(slit + inner))], (1, 13, 13))
    assert mask.sum() == 81 - 25
    assert not mask[0, 4:9, 4:9].any()


def test_neighbours_are_not_holes() -> None:
    left = square(1.5, 4.5)
    right = Polygon(0, left.points + np.array([0, 3]))
    assert nesting_signs([left, right]) == [1, 1]
    assert full_mask([left, right], (1, 8, 9)).sum() == 18


def test_a_twisted_contour_keeps_both_lobes() -> None:
    lobes = np.array([(1.5, 1.5), (7.5, 7.5), (7.5, 1.5), (1.5, 7.5)])
    assert full_mask([Polygon(0, lobes)], (1, 10, 10)).sum() == pytest.approx(18, abs=1)


def test_what_lies_outside_of_the_image_is_cut_off() -> None:
    raster = rasterise([square(-3.5, 1.5)], (1, 6, 6))
    assert raster.volume == 4
    assert raster.polygon_volume == 25
    beyond = Polygon(0, square(4.5, 9.5).points)
    assert full_mask([beyond], (1, 6, 6)).sum() == 1


def test_a_thin_structure_keeps_its_volume() -> None:
    line = np.array([(2.1, 1.5), (2.1, 21.5), (2.5, 21.5), (2.5, 1.5)])
    assert rasterise([Polygon(0, line)], (1, 6, 24)).volume == 8  # 0.4 * 20


def test_equal_contours_fill_equal_voxels() -> None:
    angle = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    circle = np.column_stack([8 + 4.2 * np.sin(angle), 8 + 4.2 * np.cos(angle)])
    polygons = [Polygon(layer, circle) for layer in range(5)]
    assert abs(rasterise(polygons[:1], (1, 17, 17)).volume - abs(polygons[0].area)) < 1
    mask = full_mask(polygons, (5, 17, 17))
    assert abs(mask.sum() - 5 * abs(polygons[0].area)) < 1
    differing = [int(np.count_nonzero(mask[0] != layer)) for layer in mask]
    assert max(differing) <= 1


@given(seed=st.integers(0, 10_000), corners=st.integers(4, 12))
def test_random_stars_against_scikit_image(seed: int, corners: int) -> None:
    rng = np.random.default_rng(seed)
    angle = (np.arange(corners) + rng.uniform(0, 0.8, corners)) * 2 * np.pi / corners
    radius = rng.uniform(4, 11, corners)
    points = np.column_stack([14 + radius * np.sin(angle), 16 + radius * np.cos(angle)])
    polygon = Polygon(2, points)
    share = supersampled(points, (28, 32))
    raster = rasterise([polygon], (4, 28, 32))
    assert raster.clipped_volume == pytest.approx(abs(polygon.area), rel=1e-4, abs=1e-3)
    mask = full_mask([polygon], (4, 28, 32))
    assert not mask[[0, 1, 3]].any()
    assert mask[2][share > 0.9].all()
    assert not mask[2][share < 0.1].any()
    assert abs(raster.volume - abs(polygon.area)) <= max(0.01 * abs(polygon.area), 0.51)
