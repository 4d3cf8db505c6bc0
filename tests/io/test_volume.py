"""Volumes that do not hold what their headers promise, and places that programs read
differently.
"""

from __future__ import annotations

import contextlib
import gzip
import locale
import zlib

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import tifffile

from nnunet_labelset import LabelSetError
from nnunet_labelset.io.place import Place, geometry_difference
from nnunet_labelset.io.volume import Volume, integer_array, oriented, read_voxels, write_voxels
from tests.helpers.errors import refusal

VOXELS = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)  # (z, y, x)
AFFINE = np.diag([-1.0, -2.0, 3.0, 1.0])  # spacing 1, 2, 3 without rotation, as ITK counts


def test_the_place_is_that_of_itk(tmp_path):
    """ITK is asked about the header alone, once for files of one place: the answer is that about
    the whole file.
    """
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(120):
        affine = np.eye(4)
        affine[:3, :3] = np.linalg.qr(rng.normal(size=(3, 3)))[0] * rng.uniform(0.5, 3, 3)
        affine[:3, 3] = rng.normal(0, 100, 3)
        # not quite orthonormal
        affine[:3, :3] += rng.normal(0, 10.0 ** -rng.integers(2, 8), (3, 3))
        shape = tuple(rng.integers(1, 5, rng.choice([2, 3, 4])))
        header = nibabel.Nifti1Header(endianness=str(rng.choice(["<", ">"])))
        header.set_data_dtype(str(rng.choice(["u1", "i2", "f4", "f8"])))
        header.set_data_shape(shape)
        header.set_qform(affine, int(rng.integers(0, 3)))
        header.set_sform(affine, int(rng.integers(0, 3)))
        header["qoffset_x"] += rng.choice([0, 0.001, 5])
        # nibabel mends this when it reads
        header["pixdim"][rng.integers(1, 4)] *= rng.choice([1, 1, 1, -1])
        header["vox_offset"] = 352
        path = tmp_path / f"{number}.nii"
        path.write_bytes(
            header.binaryblock + bytes(4 + int(np.prod(shape)) * header.get_data_dtype().itemsize)
        )
        reader = sitk.ImageFileReader()
        reader.SetFileName(str(path))
        try:
            reader.ReadImageInformation()
        except RuntimeError:
            refused += 1
            with contextlib.suppress(LabelSetError):  # far from right angles
                assert read_voxels(path)[1].refused
            continue
        place = read_voxels(path)[1]
        assert (place.size, place.spacing) == (reader.GetSize(), reader.GetSpacing())
        assert (place.origin, place.direction) == (reader.GetOrigin(), reader.GetDirection())
        assert not place.refused
    assert 0 < refused < 60


def write(path, voxels=VOXELS, affine=AFFINE, kind=nibabel.Nifti1Image, qform=None):
    image = kind(voxels.T, affine)
    image.header.set_sform(affine, 1)
    image.header.set_qform(qform, 0 if qform is None else 1)
    nibabel.save(image, path)
    return path


def change_size(path, target, size):
    """The same file with another size in its header."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[42:48] = np.array(size, np.int16).tobytes()
    target.write_bytes(gzip.compress(bytes(content)) if target.suffix == ".gz" else bytes(content))
    return target


@pytest.mark.parametrize("ending", [".nii", ".nii.gz", ".mha", ".nrrd"])
def test_round_trip(tmp_path, ending):
    place = Place(
        (6, 5, 4), (1.0, 2.0, 3.0), (7.0, 8.0, 9.0), (0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, -1.0)
    )
    write_voxels(tmp_path / f"a{ending}", VOXELS, place)
    voxels, found = read_voxels(tmp_path / f"a{ending}")
    np.testing.assert_array_equal(voxels, VOXELS)
    assert geometry_difference(found, place) is None
    assert [path.name for path in tmp_path.iterdir()] == [f"a{ending}"]


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_a_header_that_promises_too_much_is_refused_before_memory_is_asked_for(tmp_path, ending):
    path = change_size(
        write(tmp_path / "a.nii.gz"), tmp_path / f"huge{ending}", (32000, 32000, 32000)
    )
    with refusal(LabelSetError, path, 65536000000352):
        read_voxels(path)


def test_a_size_of_zero_or_less(tmp_path):
    path = change_size(write(tmp_path / "a.nii.gz"), tmp_path / "b.nii.gz", (6, -5, 4))
    with refusal(LabelSetError, path, -5):
        read_voxels(path)


def test_a_gzip_bomb_costs_no_memory(tmp_path, monkeypatch):
    """Behind the voxels the file goes on for 64 megabytes: no more than the header promises is
    unpacked.
    """
    plain = gzip.decompress(write(tmp_path / "a.nii.gz").read_bytes())
    pack = zlib.compressobj(9, wbits=31)
    parts = [
        pack.compress(plain),
        *(pack.compress(bytes(1 << 20)) for _ in range(64)),
        pack.flush(),
    ]
    (tmp_path / "bomb.nii.gz").write_bytes(b"".join(parts))
    taken = []
    make = zlib.decompressobj

    class Counting:
        def __init__(self, *arguments):
            self.inner = make(*arguments)

        def decompress(self, *arguments):
            found = self.inner.decompress(*arguments)
            taken.append(len(found))
            return found

        def __getattr__(self, name):
            return getattr(self.inner, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    np.testing.assert_array_equal(read_voxels(tmp_path / "bomb.nii.gz")[0], VOXELS)
    assert taken
    assert sum(taken) < 10_000


def test_several_parts_of_a_gzip_file_are_one_volume(tmp_path):
    plain = gzip.decompress(write(tmp_path / "a.nii.gz").read_bytes())
    (tmp_path / "b.nii.gz").write_bytes(gzip.compress(plain[:400]) + gzip.compress(plain[400:]))
    np.testing.assert_array_equal(read_voxels(tmp_path / "b.nii.gz")[0], VOXELS)


@pytest.mark.parametrize("ending", [".hdr", ".img", ".mhd", ".nhdr"])
def test_pairs_of_files_are_not_written(tmp_path, ending):
    """Only the first of the two would get its name."""
    place = Place(
        VOXELS.shape[::-1], (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), tuple(np.eye(3).ravel().tolist())
    )
    with refusal(LabelSetError, tmp_path / f"a{ending}"):
        write_voxels(tmp_path / f"a{ending}", VOXELS, place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "ending", [".nii", ".nii.gz", ".hdr", ".img", ".gipl", ".gipl.gz", ".mha", ".nrrd"]
)
def test_what_is_cut_off_is_not_read_as_zeros(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    sitk.WriteImage(sitk.GetImageFromArray(VOXELS), str(path))
    np.testing.assert_array_equal(read_voxels(path)[0], VOXELS)
    data = path.with_suffix(".img") if ending == ".hdr" else path
    data.write_bytes(data.read_bytes()[:-20])
    with pytest.raises(LabelSetError, match=r"a\.\w+.*: (cut off|not readable)"):
        read_voxels(path)


@pytest.mark.parametrize(
    "layout", ["itk", "itk, zipped", "tifffile", "big", "zipped", "big-endian"]
)
def test_no_slice_of_a_tif_is_lost(tmp_path, layout):
    """Wherever a file of several pages is cut: all of it is read, or nothing."""
    whole, cut = tmp_path / "whole.tif", tmp_path / "cut.TIF"
    voxels = VOXELS.astype(np.uint16)
    if layout.startswith("itk"):
        sitk.WriteImage(
            sitk.GetImageFromArray(voxels), str(whole), useCompression=layout.endswith("zipped")
        )
    else:
        options = {
            "big": {"bigtiff": True},
            "zipped": {"compression": "zlib"},
            "big-endian": {"byteorder": ">"},
        }
        tifffile.imwrite(whole, voxels, photometric="minisblack", **options.get(layout, {}))
    np.testing.assert_array_equal(read_voxels(whole)[0], voxels)
    content = whole.read_bytes()
    refused = []
    for length in range(0, len(content), 3):
        cut.write_bytes(content[:length])
        try:
            np.testing.assert_array_equal(read_voxels(cut)[0], voxels)
        except LabelSetError as error:
            refused.append(str(error))
    assert all(text.startswith(f"{cut}: ") for text in refused)
    assert len(refused) > 0.8 * len(content) / 3


def test_a_cut_tif_is_named_with_its_page(tmp_path):
    sitk.WriteImage(sitk.GetImageFromArray(VOXELS), str(tmp_path / "a.tif"))
    content = (tmp_path / "a.tif").read_bytes()
    (tmp_path / "a.tif").write_bytes(content[: len(content) // 2])
    with refusal(LabelSetError, tmp_path / "a.tif", "page", len(content) // 2):
        read_voxels(tmp_path / "a.tif")


def test_a_format_that_says_nothing_when_it_is_cut_off_is_refused(tmp_path):
    sitk.WriteImage(sitk.GetImageFromArray(VOXELS), str(tmp_path / "a.vtk"))
    before = locale.setlocale(locale.LC_ALL)
    with refusal(LabelSetError, tmp_path / "a.vtk", ".nii.gz"):
        read_voxels(tmp_path / "a.vtk")
    assert locale.setlocale(locale.LC_ALL) == before  # ITK's reader changes it


def test_changed_voxels_are_noticed_by_the_checksum(tmp_path):
    path = write(tmp_path / "a.nii.gz")
    content = bytearray(path.read_bytes())
    content[-7] ^= 1  # in the checksum
    path.write_bytes(content)
    with refusal(LabelSetError, path, "data check"):
        read_voxels(path)


def test_links_and_folders(tmp_path):
    (tmp_path / "loop.nii.gz").symlink_to(tmp_path / "loop.nii.gz")
    with refusal(LabelSetError, tmp_path / "loop.nii.gz", "link"):
        read_voxels(tmp_path / "loop.nii.gz")
    (tmp_path / "folder.nii.gz").mkdir()
    with refusal(LabelSetError, tmp_path / "folder.nii.gz", "no such file"):
        read_voxels(tmp_path / "folder.nii.gz")


@pytest.mark.parametrize("shape", [(4, 5, 6), (3, 4, 5, 6)])
def test_nifti_2(tmp_path, shape):
    voxels = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    first, second = (
        read_voxels(write(tmp_path / f"{kind.__name__}.nii.gz", voxels, kind=kind))
        for kind in (nibabel.Nifti1Image, nibabel.Nifti2Image)
    )
    np.testing.assert_array_equal(second[0], voxels)
    assert geometry_difference(*(place for _, place in (first, second))) is None
    assert (first[1].refused, second[1].refused) == ("", "NIfTI-2")


def test_axes_that_are_almost_at_right_angles(tmp_path):
    affine = AFFINE.copy()
    affine[0, 1] = 0.004
    voxels, place = read_voxels(write(tmp_path / "a.nii.gz", affine=affine))
    np.testing.assert_array_equal(voxels, VOXELS)
    assert place.refused == "axes not quite at right angles (0.001 off)"
    direction = np.reshape(place.direction, (3, 3))
    np.testing.assert_allclose(direction @ direction.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(direction, np.eye(3), atol=2e-3)
    affine[0, 1] = 0.4
    with refusal(LabelSetError, tmp_path / "b.nii.gz", "axes"):
        read_voxels(write(tmp_path / "b.nii.gz", affine=affine))


def test_qform_and_sform_that_disagree(tmp_path):
    moved = AFFINE.copy()
    moved[0, 3] = 5
    assert read_voxels(write(tmp_path / "a.nii.gz", qform=AFFINE))[1].ambiguous == ""
    assert "up to 5 mm apart" in read_voxels(write(tmp_path / "b.nii.gz", qform=moved))[1].ambiguous


def test_numbers_that_are_no_labels(tmp_path):
    with refusal(LabelSetError, "a.nii.gz", "1e+12"):
        integer_array(np.array([1e12]), "a.nii.gz")
    with refusal(LabelSetError, "a.nii.gz", "complex128"):
        integer_array(np.array([1j]), "a.nii.gz")


def test_oriented(tmp_path):
    """Voxels move with their place: each is where it was."""
    write(tmp_path / "a.nii", affine=np.diag([2.0, 3.0, 4.0, 1.0]))  # right, front, up
    before = read_voxels(tmp_path / "a.nii")
    after = oriented(before, "LPS")
    assert after.place.direction == (1, 0, 0, 0, 1, 0, 0, 0, 1)
    assert after.place.spacing == (2, 3, 4)
    np.testing.assert_array_equal(after.array, before.array[:, ::-1, ::-1])
    last = np.array(before.place.origin) - np.array([2, 3, 0]) * (np.array(before.place.size) - 1)
    np.testing.assert_allclose(after.place.origin, last)
    flat = Volume(before.array[0], Place((1, 2), (1.0, 1.0), (0.0, 0.0), (1.0, 0.0, 0.0, 1.0)))
    assert oriented(flat, "LPS") is flat
