"""Contours on stacks of every orientation: nothing rotated, mirrored or shifted."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from scipy.spatial.transform import Rotation

from nnunet_labelset.dataset_conversion.dicom.contours import draw
from nnunet_labelset.dataset_conversion.dicom.index import read_index
from nnunet_labelset.dataset_conversion.dicom.pixels import read_pixels
from nnunet_labelset.dataset_conversion.dicom.stack import Regular, Stack, sorted_stack
from nnunet_labelset.dataset_conversion.dicom.structure_set import Roi, read_structure_set
from nnunet_labelset.errors import LabelSetError
from tests.helpers.dicom import RoiSpec, Scan, ellipse, write_series, write_structures


def in_plane(x: float, y: float, swap: bool) -> np.ndarray:
    """Return right-handed axes: along a row, along a column, from slice to slice."""
    rows = np.diag([x, y, x * y])
    return np.array([rows[1], rows[0], -rows[2]]) if swap else rows


EIGHT = [in_plane(*signs) for signs in itertools.product((1.0, -1.0), (1.0, -1.0), (False, True))]
ORIENTATIONS = {
    **{f"axial {number}": axes for number, axes in enumerate(EIGHT)},
    "sagittal": np.array([[0.0, 1, 0], [0, 0, -1], [-1, 0, 0]]),
    "coronal": np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]]),
    "oblique": Rotation.from_euler("xyz", [14, -9, 25], degrees=True).as_matrix(),
}


def stack_of(folder: Path, scan: Scan, array: np.ndarray | None = None) -> Stack:
    array = np.zeros(scan.shape, np.int16) if array is None else array
    write_series(folder, array, scan)
    (series,) = read_index(folder).series.values()
    return sorted_stack(series)


def mask_of(roi: Roi, stack: Stack) -> np.ndarray:
    mask = np.zeros(stack.shape, bool)
    drawn = draw(roi, stack)
    if drawn.raster is not None:
        mask[drawn.raster.box] = drawn.raster.mask
    return mask


def roi(*contours: np.ndarray) -> Roi:
    return Roi("organ", "ORGAN", "", contours)


@pytest.mark.parametrize("axes", ORIENTATIONS.values(), ids=ORIENTATIONS)
def test_orientations_agree_with_itk(tmp_path: Path, axes: np.ndarray) -> None:
    """The mask, placed by ITK from the same files, holds the points that were drawn around."""
    scan = Scan(axes=axes)
    rng = np.random.default_rng(0)
    array = (2 * rng.integers(-500, 500, scan.shape)).astype(np.int16)
    stack = stack_of(tmp_path, scan, array)
    assert np.array_equal(read_pixels(stack), array)

    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(tmp_path)))
    image = reader.Execute()
    contours = [ellipse(scan, number, (7, 12), (5, 3)) for number in (2, 3, 4)]
    mask = mask_of(roi(*contours), stack)
    assert mask[2:5].any(axis=(1, 2)).all()
    for z, y, x in np.ndindex(scan.shape):
        point = scan.points(np.array([[z, y, x]], float))[0]
        inside = 2 <= z <= 4 and ((y - 7) / 5) ** 2 + ((x - 12) / 3) ** 2 < 1
        edge = abs(((y - 7) / 5) ** 2 + ((x - 12) / 3) ** 2 - 1) < 0.25
        i, j, k = image.TransformPhysicalPointToIndex(point.tolist())
        assert image[i, j, k] == array[z, y, x]
        if not edge:
            assert mask[z, y, x] == inside
    assert np.allclose(image.GetOrigin(), stack.place.origin, atol=1e-4)
    assert np.allclose(image.GetDirection(), stack.place.direction, atol=1e-4)
    assert np.allclose(image.GetSpacing(), stack.place.spacing, atol=1e-4)


def test_tilted_gantry_is_made_upright(tmp_path: Path) -> None:
    """A ball in patient space stays where it is when slices are shifted against each other."""
    scan = Scan(shape=(12, 40, 40), spacing=(2.0, 1.0, 1.0), shear=(0.0, 0.7, 0.0))
    centre = scan.points(np.array([[6.0, 18.0, 20.0]]))[0]
    places = scan.points(np.argwhere(np.ones(scan.shape)).astype(float))
    ball = (np.linalg.norm(places - centre, axis=1) < 9).reshape(scan.shape)
    stack = stack_of(tmp_path, scan, np.where(ball, 400, -1000).astype(np.int16))
    assert stack.is_sheared
    contours = []
    for number in range(12):
        height = scan.points(np.array([[number, 0.0, 0.0]]))[0, 2] - centre[2]
        if abs(height) < 8.9:
            radius = np.sqrt(81 - height**2)
            angle = np.linspace(0, 2 * np.pi, 100, endpoint=False)
            circle = [radius * np.cos(angle), radius * np.sin(angle), np.full(100, height)]
            contours.append(centre + np.column_stack(circle))
    regular = Regular.of(stack)
    image = regular.image(read_pixels(stack))
    labels = regular.labels(mask_of(roi(*contours), stack))
    assert image.array.shape == labels.array.shape
    for volume in (image.array > -300, labels.array):
        found = np.argwhere(volume).mean(axis=0)[::-1]
        point = np.array(regular.place.origin) + found * regular.place.spacing
        assert np.abs(point - centre).max() < 0.5
        assert volume.sum() * 2 == pytest.approx(4 / 3 * np.pi * 9**3, rel=0.05)


def test_irregular_slices(tmp_path: Path) -> None:
    scan = Scan(shape=(6, 20, 20), heights=[0, 2, 4, 5, 8, 10])
    stack = stack_of(tmp_path, scan)
    assert stack.is_irregular
    assert not stack.is_sheared
    assert "3" in stack.describe_gaps()
    mask = mask_of(roi(ellipse(scan, 3, (9, 9), (4, 4))), stack)
    assert np.flatnonzero(mask.any(axis=(1, 2))).tolist() == [3]


def test_contours_on_every_second_slice_are_interpolated_but_gaps_stay(tmp_path: Path) -> None:
    scan = Scan(shape=(16, 24, 20))
    stack = stack_of(tmp_path, scan)
    numbers = [1, 3, 5, 11, 13]
    contours = [ellipse(scan, number, (10, 9), (2 + number / 1.5, 5)) for number in numbers]
    mask = mask_of(roi(*contours), stack)
    drawn = np.flatnonzero(mask.any(axis=(1, 2))).tolist()
    assert drawn == [1, 2, 3, 4, 5, 11, 12, 13]
    sizes = mask.sum(axis=(1, 2))
    assert sizes[1] < sizes[2] < sizes[3]
    assert any("interpolated" in note for note in draw(roi(*contours), stack).notes)


def test_a_missing_contour_among_dense_ones_is_told(tmp_path: Path) -> None:
    scan = Scan(shape=(10, 24, 20))
    stack = stack_of(tmp_path, scan)
    contours = [ellipse(scan, number, (10, 9), (4, 5)) for number in (1, 2, 3, 5, 6)]
    assert not mask_of(roi(*contours), stack)[4].any()
    assert any("left empty" in note for note in draw(roi(*contours), stack).notes)


def test_contours_beside_their_slices(tmp_path: Path) -> None:
    scan = Scan()
    stack = stack_of(tmp_path, scan)
    contours = [ellipse(scan, number + 0.3, (10, 9), (4, 5)) for number in (2, 3, 4)]
    mask = mask_of(roi(*contours), stack)
    assert np.flatnonzero(mask.any(axis=(1, 2))).tolist() == [2, 3, 4]


def test_a_contour_written_twice_is_no_hole(tmp_path: Path) -> None:
    scan = Scan()
    stack = stack_of(tmp_path, scan)
    contour = ellipse(scan, 2, (10, 9), (4, 5))
    assert (mask_of(roi(contour, contour), stack) == mask_of(roi(contour), stack)).all()


@pytest.mark.parametrize("place", [(-4, 10, 9), (12, 10, 9), (3, 200, 9), (3, 10, -90)])
def test_contours_outside_of_the_image_are_an_error(tmp_path: Path, place: tuple) -> None:
    scan = Scan()
    stack = stack_of(tmp_path, scan)
    with pytest.raises(LabelSetError, match="organ"):
        draw(roi(ellipse(scan, place[0], place[1:], (4, 5))), stack)


def test_contours_across_slices_are_an_error(tmp_path: Path) -> None:
    scan = Scan()
    points = scan.points(np.array([[1.0, 5, 9], [6.0, 5, 9], [6.0, 12, 9], [1.0, 12, 9]]))
    with pytest.raises(LabelSetError, match="parallel"):
        draw(roi(points), stack_of(tmp_path, scan))


def test_what_was_drawn_empty_and_what_is_no_area(tmp_path: Path) -> None:
    scan = Scan()
    path = write_structures(
        tmp_path / "rs.dcm",
        scan,
        {
            "empty": RoiSpec(),
            "point": RoiSpec([scan.points(np.array([[1.0, 2, 3]]))], kind="POINT"),
            "body": RoiSpec([ellipse(scan, 1, (9, 9), (5, 5))], interpreted_type="EXTERNAL"),
        },
    )
    empty, point, body = read_structure_set(path)
    assert (empty.is_drawn, point.is_drawn, body.is_drawn) == (True, False, True)
    assert point.skipped == ("POINT",)
    assert body.interpreted_type == "EXTERNAL"
    assert len(body.contours[0]) == 180


@pytest.mark.parametrize("shift", [0.5, -0.5])
def test_contours_halfway_between_slices_fill_one_slice_each(tmp_path: Path, shift: float) -> None:
    scan = Scan(shape=(10, 24, 20))
    stack = stack_of(tmp_path, scan)
    contours = [ellipse(scan, number + shift, (10, 9), (4, 5)) for number in range(2, 7)]
    drawn = np.flatnonzero(mask_of(roi(*contours), stack).any(axis=(1, 2)))
    assert len(drawn) == 5
    assert set(np.diff(drawn)) == {1}


def test_two_contours_far_apart_are_two_structures(tmp_path: Path) -> None:
    scan = Scan(shape=(12, 24, 20))
    stack = stack_of(tmp_path, scan)
    contours = [ellipse(scan, 2, (6, 6), (3, 3)), ellipse(scan, 8, (16, 14), (3, 3))]
    mask = mask_of(roi(*contours), stack)
    assert np.flatnonzero(mask.any(axis=(1, 2))).tolist() == [2, 8]
    assert any("left empty" in note for note in draw(roi(*contours), stack).notes)
