"""Labels on another grid than their image: refused, or put there on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.dataset_conversion.regrid import Interpolation, move, resample
from nnunet_labelset.io.place import place_of
from nnunet_labelset.io.volume import Volume
from tests.helpers.conversion import convert, label_sets_of, random_image, write_volume

MANIFEST = """
leaves = ["background", "liver", "spleen"]

[sources.clinic]
folder = "clinic"
image = "{case}_image.nii.gz"
label = "{case}_label.nii.gz"
{keys}

[sources.clinic.labels]
1 = "liver"
2 = "spleen"
"""
SHAPE = (10, 12, 14)


def labels() -> np.ndarray:
    array = np.zeros(SHAPE, np.uint8)
    array[3:6, 4:9, 2:7] = 1
    array[4:8, 5:10, 9:12] = 2
    return array


def write_case(tmp_path: Path, change) -> sitk.Image:
    image = write_volume(tmp_path / "clinic" / "a_image.nii.gz", random_image(shape=SHAPE))
    path = write_volume(tmp_path / "clinic" / "a_label.nii.gz", labels())
    sitk.WriteImage(change(sitk.ReadImage(str(path))), str(path))
    return sitk.ReadImage(str(image))


def run(tmp_path: Path, keys: str = "", *arguments: str) -> int:
    manifest = tmp_path / "clinic.toml"
    manifest.write_text(MANIFEST.replace("{keys}", keys))
    return convert(tmp_path / "raw", "-m", str(manifest), *arguments)


def converted(tmp_path: Path) -> np.ndarray:
    return label_sets_of(tmp_path / "raw" / "Dataset027_Fetal", "a")


def same_as_drawn(sets: np.ndarray) -> bool:
    liver = (sets == {"liver"}) == (labels() == 1)
    spleen = (sets == {"spleen"}) == (labels() == 2)
    return bool(liver.all() and spleen.all())


TURNS = {
    "flipped": lambda image: sitk.Flip(image, [True, False, True]),
    "permuted": lambda image: sitk.PermuteAxes(image, [2, 0, 1]),
    "larger": lambda image: sitk.ConstantPad(image, [1, 2, 3], [4, 0, 1], 0),
}


@pytest.mark.parametrize("turn", TURNS)
def test_the_same_voxels_in_another_order(tmp_path, capsys, turn):
    write_case(tmp_path, TURNS[turn])
    assert run(tmp_path) == 1
    error = capsys.readouterr().err
    assert "a_label.nii.gz" in error
    assert 'resample = "to image"' in error
    assert run(tmp_path, 'resample = "to image"') == 0
    assert "grid of the image" in capsys.readouterr().out
    assert same_as_drawn(converted(tmp_path))


def test_a_cropped_file_asks_what_lies_outside(tmp_path, capsys):
    write_case(tmp_path, lambda image: image[1:, 2:, 3:])
    assert run(tmp_path, 'resample = "to image"') == 1
    assert 'outside = "unknown"' in capsys.readouterr().err
    assert run(tmp_path, 'resample = "to image"\noutside = "unlabelled"') == 0
    assert same_as_drawn(converted(tmp_path))
    assert converted(tmp_path)[0, 0, 0] == {"background"}
    assert run(tmp_path, 'resample = "to image"\noutside = "unknown"', "--overwrite") == 0
    sets = converted(tmp_path)
    assert same_as_drawn(sets)
    assert sets[0, 0, 0] == {"background", "liver", "spleen"}
    assert sets[9, 11, 13] == {"background"}


@pytest.mark.parametrize("interpolation", ["nearest", "distance"])
def test_other_voxels(tmp_path, capsys, interpolation):
    def finer(image: sitk.Image) -> sitk.Image:
        size = [2 * number for number in image.GetSize()]
        spacing = [step / 2 for step in image.GetSpacing()]
        origin = image.TransformContinuousIndexToPhysicalPoint([-0.25] * 3)
        arguments = (sitk.Transform(), sitk.sitkNearestNeighbor, origin, spacing)
        return sitk.Resample(image, size, *arguments)

    write_case(tmp_path, finer)
    assert run(tmp_path, f'resample = "to image"\ninterpolation = "{interpolation}"') == 0
    wrong = np.count_nonzero((converted(tmp_path) == {"liver"}) != (labels() == 1))
    assert wrong <= (0 if interpolation == "nearest" else 20)


def test_labels_beside_the_image_are_refused(tmp_path, capsys):
    def away(image: sitk.Image) -> sitk.Image:
        image.SetOrigin((900.0, 0.0, 0.0))
        return image

    write_case(tmp_path, away)
    assert run(tmp_path, 'resample = "to image"\noutside = "unlabelled"') == 1
    assert "outside of the image" in capsys.readouterr().err


def test_a_flat_label_of_a_volume_is_refused(tmp_path, capsys):
    """Whatever was asked for, and without asking for it again."""
    write_case(tmp_path, lambda image: image[:, :, 3])
    assert run(tmp_path, 'resample = "to image"') == 1
    error = capsys.readouterr().err
    assert "a_label.nii.gz" in error
    assert "resample" not in error


@pytest.mark.parametrize("seed", range(20))
def test_moving_agrees_with_itk(seed):
    """Flipped, permuted, cropped and padded at random; `sitk.Resample` is the judge."""
    rng = np.random.default_rng(seed)
    image = sitk.GetImageFromArray(rng.integers(0, 5, rng.integers(3, 8, 3)).astype(np.uint8))
    image.SetSpacing([1.0, 1.5, 2.0])
    image.SetOrigin([3.0, -4.0, 5.0])
    cosine, sine = np.cos(seed), np.sin(seed)
    image.SetDirection([cosine, -sine, 0, sine, cosine, 0, 0, 0, 1])
    moved = sitk.PermuteAxes(image, rng.permutation(3).tolist())
    moved = sitk.Flip(moved, rng.integers(0, 2, 3).astype(bool).tolist())
    x, y, z = rng.integers(0, 2, 3).tolist()
    moved = sitk.ConstantPad(moved[x:, y:, z:], [1, 0, 2], [0, 3, 0], 0)
    volume = Volume(sitk.GetArrayFromImage(moved), place_of(moved))
    result = move(volume, place_of(image))
    expected = sitk.GetArrayFromImage(
        sitk.Resample(moved, image, sitk.Transform(), sitk.sitkNearestNeighbor, 0)
    )
    assert result is not None
    assert np.array_equal(result.array, expected)
    nearest = resample(volume, place_of(image), Interpolation.NEAREST)
    assert np.array_equal(result.covered, nearest.covered)
    shifted = place_of(image)
    shifted = Volume(volume.array, shifted)
    image.SetOrigin([3.4, -4.0, 5.0])
    assert move(shifted, place_of(image)) is None
