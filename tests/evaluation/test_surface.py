"""HD95: by hand, against the definition written slowly, and against surface-distance where it is
installed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import distance_transform_edt, gaussian_filter

from nnunet_labelset.evaluation.surface import (
    _shells,
    _weighted_percentile,
    element_areas,
    neighbour_codes,
    surface_distances,
)


def box(shape, *corners):
    mask = np.zeros(shape, dtype=bool)
    mask[tuple(slice(start, stop) for start, stop in corners)] = True
    return mask


def blob(rng, shape, smooth):
    field = rng.normal(size=shape)
    field = gaussian_filter(field, smooth) if smooth else field
    return field > np.quantile(field, rng.uniform(0.4, 0.97))


def slow_hd95(a, b, spacing):
    """The definition, element by element, without crops or distance maps."""
    areas = element_areas(tuple(spacing))
    sides = []
    for mask in (a, b):
        codes = neighbour_codes(mask)
        at = np.argwhere((codes > 0) & (codes < len(areas) - 1))
        sides.append((at * spacing, areas[codes[tuple(at.T)]]))
    directed = []
    for (points, weights), (others, _) in (sides, sides[::-1]):
        distances = np.sqrt(((points[:, None] - others[None]) ** 2).sum(-1)).min(1).round(6)
        reached = 0.0
        for distance, weight in sorted(zip(distances, weights, strict=True)):
            reached += weight / weights.sum()
            if reached >= 0.95 - 1e-12:
                directed.append(distance)
                break
    return max(directed)


def hd95(
    reference: np.ndarray, prediction: np.ndarray, spacing: Sequence[float], percent: float = 95
) -> float:
    found = surface_distances(reference, prediction, spacing)
    assert found is not None
    return found.percentile(percent)


def test_shifted_box():
    """All surfaces move by 2 voxels of 1.5 mm; more than 5% of the area is that far away."""
    a = box((12, 12, 12), (2, 8), (2, 8), (2, 8))
    b = box((12, 12, 12), (4, 10), (2, 8), (2, 8))
    assert hd95(a, b, (1.5, 1, 1)) == 3
    assert hd95(b, a, (1.5, 1, 1)) == 3
    assert hd95(a, a, (1.5, 1, 1)) == 0


def test_one_voxel():
    a, b = box((9, 9, 9), (0, 1), (0, 1), (0, 1)), box((9, 9, 9), (3, 4), (4, 5), (0, 1))
    # a voxel has eight elements, at its corners; from a quarter of them the nearest of the other is
    # (3, 4, 0) away
    assert hd95(a, b, (1, 1, 1)) == 5
    assert hd95(a, b, (2, 1, 1)) == round(math.sqrt(36 + 16), 4)


def test_two_pixels_apart_in_2d():
    a, b = box((5, 9), (2, 3), (1, 2)), box((5, 9), (2, 3), (5, 6))
    assert hd95(a, b, (1, 0.5)) == 2


def test_small_far_away_part_is_below_five_percent():
    """One far voxel is less than 5% of the surface of a cube of 10 voxels: it does not count,
    unlike in the maximum.
    """
    a = box((40, 14, 14), (2, 12), (2, 12), (2, 12))
    b = a.copy()
    b[35, 5, 5] = True
    assert hd95(a, b, (1, 1, 1)) == 0
    assert hd95(a, b, (1, 1, 1), percent=100) == 24


def test_empty_masks():
    empty, full = np.zeros((3, 4, 5), bool), np.ones((3, 4, 5), bool)
    for pair in ((empty, empty), (empty, full)):
        assert surface_distances(*pair, (1, 1, 1)) is None
    nothing = surface_distances(full, empty, (1, 1, 1))  # the reference has a surface: the worst
    assert nothing.percentile(95) == nothing.percentile(100) == nothing.mean() == math.inf
    assert nothing.share_within(1000) == 0
    assert hd95(full, full, (1, 1, 1)) == 0


def disc(shift=0):
    grid = np.indices((24, 24)) - np.array([11, 11 + shift]).reshape(2, 1, 1)
    return (grid**2).sum(0) <= 36


def test_an_axis_of_one_voxel_is_no_axis():
    """A plate of one slice has no top and no bottom, which would lie perfectly on each other."""
    flat = surface_distances(disc(), disc(3), (1, 1))
    plate = surface_distances(disc()[None], disc(3)[None], (5, 1, 1))
    assert plate.percentile(95) == flat.percentile(95) > 2
    assert plate.mean() == flat.mean()
    assert surface_distances(np.ones(1, bool), np.ones(1, bool), (1,)) is None


def test_every_tenth_slice_drawn_is_measured_in_its_slices():
    """Nobody knows what is between the slices: what is drawn has no surface towards it."""
    a, b = np.zeros((31, 24, 24), bool), np.zeros((31, 24, 24), bool)
    a[::10], b[::10] = disc(), disc(3)
    unknown = np.ones_like(a)
    unknown[::10] = False
    flat = surface_distances(disc(), disc(3), (1, 1))
    found = surface_distances(a, b, (3, 1, 1), unknown)
    assert found.percentile(95) == flat.percentile(95)
    assert found.mean() == pytest.approx(flat.mean(), abs=1e-4)
    assert found.share_within(1) == pytest.approx(flat.share_within(1))


def test_skipped_slices_limit_no_distance():
    """The prediction is 8 mm away at the edge of the image, beside slices that nobody drew."""
    a, b = np.zeros((9, 20, 20), bool), np.zeros((9, 20, 20), bool)
    a[::4, 0:4, 0:12], b[::4, 0:4, 0:20] = True, True
    unknown = np.ones_like(a)
    unknown[::4] = False
    flat = surface_distances(a[0], b[0], (1, 1))
    found = surface_distances(a, b, (1, 1, 1), unknown)
    assert found.percentile(100) == flat.percentile(100) == 8
    assert found.mean() == pytest.approx(flat.mean(), abs=1e-4)


def test_exactly_95_percent_are_reached_whatever_the_rounding():
    distances = np.arange(1.0, 41.0)
    for weight in (0.1, 0.3, 0.7, 1.1, 1.3, 2.7):
        assert _weighted_percentile(distances, np.full(40, weight), 95) == 38


def test_cut_faces_are_no_surface():
    """A bar whose lower half is not annotated: the cut is in neither surface, the known end is."""
    a, b = box((12, 12, 30), (3, 9), (3, 9), (10, 20)), box((12, 12, 30), (3, 9), (3, 9), (10, 24))
    unknown = box(a.shape, (0, 12), (0, 12), (0, 15))
    found = surface_distances(a & ~unknown, b & ~unknown, (1, 1, 1), unknown)
    whole = surface_distances(a & ~unknown, b & ~unknown, (1, 1, 1))
    assert found.share_within(0) < whole.share_within(0)
    assert len(whole.areas[0]) - len(found.areas[0]) == 7 * 7  # the cut
    assert found.percentile(100) == 4
    assert surface_distances(a & unknown, b & unknown, (1, 1, 1), ~unknown).percentile(100) == 0


def test_distances_beside_unknown_voxels_are_possible():
    """The reference is known at its far end only, and may go on in the unknown part: the prediction,
    which is right beside that part, is at most the distance to it away.
    """
    reference, prediction = np.zeros((5, 5, 40), bool), np.zeros((5, 5, 40), bool)
    reference[1:4, 1:4, 2:5] = prediction[1:4, 1:4, 2:5] = True
    unknown = box(reference.shape, (0, 5), (0, 5), (24, 36))
    prediction[1:4, 1:4, 21:23] = True  # 1 mm before the unknown part, 16 mm behind the reference
    found = surface_distances(reference, prediction, (1, 1, 1), unknown)
    assert found.percentile(100) == 3
    assert surface_distances(reference, prediction, (1, 1, 1)).percentile(100) == 18


def test_the_prediction_does_not_choose_the_axes():
    """Every tenth slice is drawn; two wrong slices that have known neighbours change no axis."""
    a = np.zeros((31, 24, 24), bool)
    a[::10] = disc()
    unknown = np.ones_like(a)
    unknown[::10] = False
    unknown[1:9] = False  # known to be empty
    b = a.copy()
    before = surface_distances(a, b, (3, 1, 1), unknown).share_within(1)
    b[4:6] = True
    after = surface_distances(a, b, (3, 1, 1), unknown).share_within(1)
    assert after < before == 1


def test_areas_by_hand():
    areas = element_areas((1.0, 2.0, 3.0))
    assert areas[0] == areas[255] == 0
    corner = np.linalg.norm([2 * 3, 1 * 3, 1 * 2]) / 8  # a triangle through three edge midpoints
    for bit in range(8):
        assert areas[1 << bit] == pytest.approx(corner)
        assert areas[255 - (1 << bit)] == pytest.approx(corner)
    for axis, area in ((0, 6), (1, 3), (2, 2)):  # a plane across each axis
        cube = np.zeros((2, 2, 2), bool)
        np.moveaxis(cube, axis, 0)[0] = True
        assert areas[neighbour_codes(cube)[1, 1, 1]] == pytest.approx(area)
    assert areas == pytest.approx(areas[::-1])  # inside and outside have the same surface


def test_lengths_by_hand_in_2d():
    lengths = element_areas((3.0, 4.0))
    code = {
        tuple(square): neighbour_codes(np.array(square, bool).reshape(2, 2))[1, 1]
        for square in product((0, 1), repeat=4)
    }
    assert lengths[code[1, 0, 0, 0]] == lengths[code[0, 1, 1, 1]] == 2.5
    assert lengths[code[1, 0, 0, 1]] == lengths[code[0, 1, 1, 0]] == 5
    assert lengths[code[1, 1, 0, 0]] == 4
    assert lengths[code[1, 0, 1, 0]] == 3


def test_total_area_of_a_large_ball():
    grid = np.indices((41, 41, 41)) - 20
    codes = neighbour_codes((grid**2).sum(0) <= 15.5**2)
    # surface of a binary ball: larger than the smooth one, as steps are, but by less than 15%
    assert 1 < element_areas((1.0, 1.0, 1.0))[codes].sum() / (4 * np.pi * 15.5**2) < 1.15


@settings(max_examples=40, derandomize=True)
@given(
    seed=st.integers(0, 2**31), ndim=st.sampled_from([2, 3]), smooth=st.sampled_from([0, 0.7, 1.5])
)
def test_equals_the_definition(seed, ndim, smooth):
    rng = np.random.default_rng(seed)
    shape = rng.integers(2, 9, ndim)
    spacing = rng.uniform(0.3, 3, ndim).round(2)
    a, b = blob(rng, shape, smooth), blob(rng, shape, smooth)
    if not a.any() or not b.any():
        return
    assert hd95(a, b, spacing) == pytest.approx(slow_hd95(a, b, spacing), abs=1e-3)
    assert hd95(a, b, spacing) == hd95(b, a, spacing)


@pytest.mark.parametrize("spacing", [(0.8, 0.8, 0.8), (1.0, 0.7, 0.7), (3.0, 0.5, 0.6)])
def test_equals_distance_maps(spacing):
    """Large, similar masks; SciPy's distance maps say what must come out."""
    rng = np.random.default_rng(5)
    field = gaussian_filter(rng.normal(size=(60, 70, 64)), 4)
    a = field > np.quantile(field, 0.8)
    b = field + gaussian_filter(rng.normal(size=field.shape), 4) * 0.05 > np.quantile(field, 0.82)
    a[:3], b[:, :2] = False, False  # borders that differ
    b[30, 40, 0], b[59, 69, 63] = True, True
    areas, directed = element_areas(spacing), []
    codes = [neighbour_codes(mask) for mask in (a, b)]
    borders = [(code > 0) & (code < 255) for code in codes]
    for one, other in ((0, 1), (1, 0)):
        distances = distance_transform_edt(~borders[other], sampling=spacing)[borders[one]]
        weights = areas[codes[one][borders[one]]]
        order = np.argsort(distances, kind="stable")
        reached = np.searchsorted(np.cumsum(weights[order]), 0.95 * weights.sum())
        directed.append(distances[order[reached]])
    assert hd95(a, b, spacing) == pytest.approx(max(directed), abs=1e-3)
    assert max(directed) > 0


def test_slabs_are_seamless(monkeypatch):
    rng = np.random.default_rng(2)
    for shape in ((9, 8, 7), (12, 11), (30,)):
        a, b, unknown = (blob(rng, shape, 0.8) for _ in range(3))
        arguments = (a & ~unknown, b & ~unknown, np.arange(1, len(shape) + 1), unknown)
        whole = surface_distances(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr("nnunet_labelset.evaluation.surface.SLAB", 1)
            cut = surface_distances(*arguments)
        for one, two in zip(
            (*whole.distances, *whole.areas), (*cut.distances, *cut.areas), strict=True
        ):
            assert (one == two).all()


def test_large_surfaces_are_measured_row_by_row(monkeypatch):
    """A tree around every piece finds what one tree of all finds, also where the other surface is
    many rows away.
    """
    rng = np.random.default_rng(3)
    a, b = blob(rng, (60, 20, 20), 2), blob(rng, (60, 20, 20), 2)
    b[:45] = False
    for masks in ((a, b), (b, a)):
        whole = surface_distances(*masks, (0.7, 1, 2))
        with monkeypatch.context() as patch:
            patch.setattr("nnunet_labelset.evaluation.surface.WHOLE", 0)
            patch.setattr("nnunet_labelset.evaluation.surface.PIECE", 50)
            pieces = surface_distances(*masks, (0.7, 1, 2))
        for one, two in zip(whole.distances, pieces.distances, strict=True):
            assert (one == two).all()
        assert max(one.max() for one in whole.distances) > 8 * 0.7


def slow_distances(masks, spacing, unknown):
    """Codes corner by corner, from every element to every other one, and to every corner of an
    unknown voxel; the axes are those along which the reference has known neighbours.
    """
    axes = [axis for axis, size in enumerate(masks[0].shape) if size > 1]
    near = {}
    for axis in axes:
        known = np.pad(~unknown, [(int(other == axis),) * 2 for other in range(unknown.ndim)])
        sides = (known.take(range(start, start + unknown.shape[axis]), axis) for start in (0, 2))
        near[axis] = np.logical_or(*sides)[masks[0]].mean()
    axes = [axis for axis in axes if near[axis] >= 0.5]
    around = [(0, 1) if axis in axes else (0,) for axis in range(unknown.ndim)]
    padding = [(1, 1) if axis in axes else (0, 0) for axis in range(unknown.ndim)]
    places = list(
        product(*(range(size + (axis in axes)) for axis, size in enumerate(unknown.shape)))
    )
    areas, sides = element_areas(tuple(float(spacing[axis]) for axis in axes)), []
    hidden = np.pad(unknown, padding)
    border = []
    for place in places:
        if any(hidden[tuple(np.add(place, offset))] for offset in product(*around)):
            border.append(np.multiply(place, spacing))
    for mask in masks:
        padded, points, weights = np.pad(mask, padding), [], []
        for place in places:
            corners = [tuple(np.add(place, offset)) for offset in product(*around)]
            code = sum(1 << bit for bit, corner in enumerate(corners) if padded[corner])
            if 0 < code < len(areas) - 1 and not any(hidden[corner] for corner in corners):
                points.append(np.multiply(place, spacing))
                weights.append(areas[code])
        sides.append((np.array(points), np.array(weights)))
    if not len(sides[0][0]):
        return None
    if not len(sides[1][0]):
        return (np.full(len(sides[0][0]), np.inf), np.zeros(0)), (sides[0][1], sides[1][1])
    apart = np.sqrt(((sides[0][0][:, None] - sides[1][0][None]) ** 2).sum(-1))
    distances = [apart.min(1), apart.min(0)]
    for side, (points, _) in enumerate(sides if border else ()):
        to_unknown = np.sqrt(((points[:, None] - np.array(border)[None]) ** 2).sum(-1)).min(1)
        distances[side] = np.minimum(distances[side], to_unknown)
    return tuple(distances), (sides[0][1], sides[1][1])


def crop_around(masks):
    """The box around both masks, one voxel wider: what lies outside of it is unknown or
    known, too.
    """
    places = np.argwhere(masks[0] | masks[1])
    low, high = np.maximum(places.min(0) - 1, 0), np.minimum(places.max(0) + 2, masks[0].shape)
    return tuple(slice(int(start), int(stop)) for start, stop in zip(low, high, strict=True))


SPACINGS = ((1, 1, 1), (5, 0.7, 0.7), (0.5, 3, 3), (0.8, 0.8, 0.8))
SHAPES = ((9, 8, 7), (1, 12, 9), (7, 1, 6), (24, 3, 4), (14, 11), (1, 20), (40,))


@pytest.mark.parametrize(
    "limits", [{}, {"PIECE": 5, "WHOLE": 2, "SLAB": 9, "SHORT": 0}, {"PIECE": 7, "REACH": 1}]
)
def test_all_metrics_equal_all_pairs_of_elements(monkeypatch, limits):
    """Whichever way a distance is found: beside the element, in one tree, or in trees of a few
    rows.
    """
    for name, value in limits.items():
        monkeypatch.setattr(f"nnunet_labelset.evaluation.surface.{name}", value)
    _shells.cache_clear()  # depends on REACH
    rng, compared = np.random.default_rng(7), 0
    for trial in range(2 * len(SHAPES) * len(SPACINGS)):
        shape = SHAPES[trial % len(SHAPES)]
        spacing = SPACINGS[trial // len(SHAPES) % len(SPACINGS)][: len(shape)]
        unknown = rng.random(shape) < rng.choice([0, 0.02, 0.3])
        if trial % 9 == 0:
            unknown[1::2] = True
        a, b = blob(rng, shape, rng.choice([0, 1])), blob(rng, shape, rng.choice([0, 1]))
        if trial % 3 == 0:  # one voxel, and what lies far away on the border
            a, b = np.zeros(shape, bool), np.zeros(shape, bool)
            a.flat[rng.integers(a.size)] = b.flat[-1] = b[0].flat[0] = True
        elif trial % 3 == 1:
            b = a ^ (rng.random(shape) < 0.05)
        masks = (a & ~unknown, b & ~unknown)
        if not masks[0].any() or not masks[1].any():
            continue
        found = surface_distances(*masks, spacing, unknown, crop_around(masks))
        expected = slow_distances(masks, spacing, unknown)
        assert (found is None) == (expected is None), (trial, shape, spacing)
        if expected is None or not len(expected[0][1]):
            continue
        compared += 1
        for one, two in zip(
            (*found.distances, *found.areas), (*expected[0], *expected[1]), strict=True
        ):
            assert one == pytest.approx(two, abs=1e-9), (trial, shape, spacing)
        both = [np.concatenate(side) for side in expected]
        assert found.percentile(100) == pytest.approx(both[0].max(), abs=1e-4)
        assert found.mean() == pytest.approx(np.average(both[0], weights=both[1]), abs=1e-4)
        for tolerance in (0, 1, 4):
            within = both[1][both[0] <= tolerance + 1e-6].sum() / both[1].sum()
            assert found.share_within(tolerance) == pytest.approx(within)
        # at 95 % itself, either is right
        for beyond, compare in ((1e-9, np.less_equal), (-1e-9, np.greater_equal)):
            directed = [
                slow_percentile(*side, 0.95 + beyond) for side in zip(*expected, strict=True)
            ]
            assert compare(found.percentile(95), max(directed) + beyond * 1e5)
    assert compared > 40
    _shells.cache_clear()


def slow_percentile(distances, weights, share):
    order = np.argsort(distances)
    reached = np.searchsorted(np.cumsum(weights[order]) / weights.sum(), share)
    return distances[order[min(reached, len(order) - 1)]]


@pytest.fixture
def surface_distance(monkeypatch):
    """The package, given back the NumPy and SciPy names that its last release still uses."""
    package = pytest.importorskip("surface_distance")
    import scipy.ndimage

    monkeypatch.setattr(np, "Inf", np.inf, raising=False)
    for name in ("filters", "morphology"):
        monkeypatch.setattr(scipy.ndimage, name, scipy.ndimage, raising=False)
    return package


def test_equals_surface_distance(surface_distance):
    rng = np.random.default_rng(1)
    for trial in range(150):
        ndim = 2 + trial % 2
        shape, spacing = rng.integers(2, 17, ndim), rng.uniform(0.3, 3.5, ndim).round(2)
        a, b = (blob(rng, shape, rng.choice([0, 0.8, 2])) for _ in range(2))
        if trial % 10 == 0:  # one voxel, perhaps on the border
            a = np.zeros(shape, bool)
            a[tuple(rng.integers(0, size) for size in shape)] = True
        if not a.any() or not b.any():
            continue
        distances = surface_distance.compute_surface_distances(a, b, spacing)
        assert hd95(a, b, spacing) == pytest.approx(
            surface_distance.compute_robust_hausdorff(distances, 95), abs=1e-3
        ), (trial, shape, spacing)


@pytest.mark.usefixtures("surface_distance")
def test_areas_equal_surface_distance():
    from surface_distance import lookup_tables as tables

    spacing = (0.8, 0.45, 3.3)
    theirs = tables.create_table_neighbour_code_to_surface_area(spacing)
    # its first corner has the highest bit
    reverse = [int(f"{code:08b}"[::-1], 2) for code in range(256)]
    assert element_areas(spacing) == pytest.approx(theirs[reverse])


def test_assd_and_nsd_equal_surface_distance(surface_distance):
    """NSD as MeshMetrics and surface-distance define it: areas of both surfaces; ASSD over both
    areas together.
    """
    rng = np.random.default_rng(1)
    for trial in range(60):
        ndim = 3 if trial % 3 else 2
        shape, spacing = rng.integers(3, 17, ndim), rng.uniform(0.3, 3.5, ndim).round(2)
        a, b = (blob(rng, shape, rng.choice([0, 0.8, 2])) for _ in range(2))
        if not a.any() or not b.any():
            continue
        theirs, ours = (
            surface_distance.compute_surface_distances(a, b, spacing),
            surface_distances(a, b, spacing),
        )
        tolerance = rng.uniform(0.2, 4)
        expected = surface_distance.compute_surface_dice_at_tolerance(theirs, tolerance)
        assert ours.share_within(tolerance) == pytest.approx(expected, abs=1e-6)
        sizes = [theirs[f"surfel_areas_{one}"] for one in ("gt", "pred")]
        distances = [theirs["distances_gt_to_pred"], theirs["distances_pred_to_gt"]]
        total = sum((d * size).sum() for d, size in zip(distances, sizes, strict=True)) / sum(
            map(np.sum, sizes)
        )
        assert ours.mean() == pytest.approx(total, abs=1e-4)
        assert ours.percentile(100) == pytest.approx(
            surface_distance.compute_robust_hausdorff(theirs, 100), abs=1e-3
        )


def voxel_faces(mask, spacing):
    """MeshMetrics' surface, which VTK calls a surface net without smoothing: the faces of the
    voxels, `(low, high)`.
    """
    padded = np.pad(mask, 1).astype(np.int8)
    low, high = [], []
    for axis in range(3):
        at, half = np.argwhere(np.diff(padded, axis=axis)).astype(float), np.full(3, 0.5)
        at[:, axis] += 0.5  # between the two voxels
        half[axis] = 0
        low.append((at - half) * spacing)
        high.append((at + half) * spacing)
    return np.concatenate(low), np.concatenate(high)


def test_nsd_close_to_meshmetrics(surface_distance):
    """MeshMetrics measures from the centres of the two triangles of a voxel face to the nearest
    point of a face.
    """
    rng = np.random.default_rng(4)
    apart = []
    for spacing in ((1, 1, 1), (1, 1, 1), (2, 1, 1), (0.8, 0.8, 0.8), (3, 0.8, 0.8)) * 2:
        grid = (np.indices((18, 24, 24)) - 11.5) * np.reshape(spacing, (3, 1, 1, 1))
        radius, shift = rng.uniform(5, 7), rng.normal(size=3)
        masks = [
            ((grid - move.reshape(3, 1, 1, 1)) ** 2).sum(0) <= radius**2
            for move in (np.zeros(3), 2 * shift)
        ]
        tolerance = rng.uniform(1, 3)
        ours = surface_distances(*masks, spacing).share_within(tolerance)
        theirs = surface_distance.compute_surface_distances(*masks, spacing)
        expected = surface_distance.compute_surface_dice_at_tolerance(theirs, tolerance)
        assert ours == pytest.approx(expected, abs=1e-6)
        apart.append(
            ours - nsd_of_faces([voxel_faces(mask, np.array(spacing)) for mask in masks], tolerance)
        )
    assert np.abs(apart).max() < 0.1
    assert abs(np.mean(apart)) < 0.03


def nsd_of_faces(surfaces, tolerance):
    within = total = 0.0
    for (low, high), (other_low, other_high) in (surfaces, surfaces[::-1]):
        size = high - low
        areas = np.where(size > 0, size, 1).prod(1)
        # centres of the triangles of a face that is cut from corner to corner
        for share in (1 / 3, 2 / 3):
            points = (low + share * size)[:, None]
            nearest = np.clip(points, other_low, other_high)
            distances = np.sqrt(((points - nearest) ** 2).sum(-1)).min(1)
            within += (areas / 2)[distances <= tolerance].sum()
            total += (areas / 2).sum()
    return within / total


def test_close_to_monai():
    """MONAI counts border voxels instead of areas: the same to within a voxel, on a smooth body."""
    monai = pytest.importorskip("monai.metrics")
    torch = pytest.importorskip("torch")
    grid = np.indices((40, 40, 40)) - 19.5
    a, b = (
        (grid**2).sum(0) <= 12**2,
        ((grid - np.array([3, 0, 0]).reshape(3, 1, 1, 1)) ** 2).sum(0) <= 12**2,
    )
    pair = [torch.from_numpy(mask[None, None].astype(np.float32)) for mask in (b, a)]
    found = surface_distances(a, b, (1, 1, 1))
    assert found.percentile(100) == pytest.approx(
        float(monai.compute_hausdorff_distance(*pair)), abs=0.5
    )
    assert found.percentile(95) == pytest.approx(
        float(monai.compute_hausdorff_distance(*pair, percentile=95)), abs=0.5
    )
    theirs = float(monai.compute_average_surface_distance(*pair, symmetric=True))
    assert found.mean() == pytest.approx(theirs, abs=0.35)
    for tolerance in (1.0, 3.0):
        theirs = float(
            monai.compute_surface_dice(*pair, class_thresholds=[tolerance], include_background=True)
        )
        assert found.share_within(tolerance) == pytest.approx(theirs, abs=0.2)
