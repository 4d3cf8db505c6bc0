"""`convert` from 3D Slicer: segments by name, layers, cropped extents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from scipy.spatial.transform import Rotation

from tests.helpers.conversion import (
    SHAPE,
    contract_of,
    convert,
    label_sets_of,
    random_image,
    write_volume,
)
from tests.helpers.slicer import write_segmentation

MANIFEST = """
leaves = ["background", "liver", "tumour", "spleen"]

[sources.clinic]
like = "slicer"
folder = "slicer"
overlap = "error"
{keys}

[sources.clinic.labels]
"(?i)liver" = "liver"
"(?i)^tumou?r" = "tumour"
"(?i)^spleen$" = "spleen"
"""


def box(z: slice, y: slice, x: slice) -> np.ndarray:
    inside = np.zeros(SHAPE, dtype=bool)
    inside[z, y, x] = True
    return inside


LIVER = box(slice(1, 4), slice(2, 5), slice(3, 7))
TUMOUR = box(slice(2, 3), slice(3, 5), slice(4, 6))
NOTHING = np.zeros(SHAPE, dtype=bool)


def run(tmp_path: Path, *arguments: str, keys: str = "") -> int:
    manifest = tmp_path / "clinic.toml"
    manifest.write_text(MANIFEST.replace("{keys}", keys))
    return convert(tmp_path / "raw", "-m", str(manifest), *arguments)


def write_case(tmp_path: Path, segments: dict[str, np.ndarray], case: str = "a", **options) -> Path:
    write_volume(tmp_path / "slicer" / f"{case}.nrrd", random_image())
    return write_segmentation(tmp_path / "slicer" / f"{case}.seg.nrrd", segments, **options)


def dataset(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "Dataset027_Fetal"


@pytest.mark.parametrize("version", ["4.10", "4.13", "5"])
def test_absent_is_not_annotated_and_empty_is(tmp_path, version):
    segments = {"my liver": LIVER & ~TUMOUR, "Tumor": NOTHING, "x": TUMOUR}
    write_case(tmp_path, segments, version=version)
    assert run(tmp_path) == 0
    contract = contract_of(dataset(tmp_path))
    annotated = {name for name, count in contract.coverage(["a"]).items() if count}
    assert annotated == {"liver", "tumour"}
    sets = label_sets_of(dataset(tmp_path), "a")
    assert ((sets == {"liver"}) == (LIVER & ~TUMOUR)).all()
    assert sets[0, 0, 0] == {"background", "spleen"}


def test_overlapping_segments_lie_in_layers(tmp_path, capsys):
    write_case(tmp_path, {"liver": LIVER, "tumour": TUMOUR})
    assert run(tmp_path) == 1
    assert "a.seg.nrrd" in (error := capsys.readouterr().err)
    assert "overlap" in error
    text = MANIFEST.replace('overlap = "error"', 'overlap = "last"').replace("{keys}", "")
    (tmp_path / "clinic.toml").write_text(text)
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "clinic.toml")) == 0
    sets = label_sets_of(dataset(tmp_path), "a")
    assert ((sets == {"tumour"}) == TUMOUR).all()
    assert ((sets == {"liver"}) == (LIVER & ~TUMOUR)).all()


@pytest.mark.parametrize("encoding", ["gzip", "raw"])
@pytest.mark.parametrize("version", ["4.10", "5"])
def test_an_oblique_master(tmp_path, encoding, version):
    """Layers, a cropped extent and directions that no axis has."""
    axes = Rotation.from_euler("xyz", [14, -9, 25], degrees=True).as_matrix()
    spacing, origin = (0.8, 0.7, 0.9), (-3.0, 4.0, 5.5)
    segments = {"liver": LIVER, "tumour": TUMOUR}
    place = {"spacing": spacing, "origin": origin}
    write_case(tmp_path, segments, axes=axes, version=version, encoding=encoding, **place)
    image = sitk.GetImageFromArray(random_image())
    image.SetSpacing(spacing)
    image.SetOrigin(origin)
    image.SetDirection(axes.T.ravel().tolist())
    sitk.WriteImage(image, str(tmp_path / "slicer" / "a.nrrd"))
    text = MANIFEST.replace("{keys}", "").replace('"error"', '"last"')
    (tmp_path / "clinic.toml").write_text(text)
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "clinic.toml")) == 0
    sets = label_sets_of(dataset(tmp_path), "a")
    assert ((sets == {"tumour"}) == TUMOUR).all()
    assert ((sets == {"liver"}) == (LIVER & ~TUMOUR)).all()


def test_nothing_drawn_at_all(tmp_path):
    """Slicer has nothing to crop to, and writes one voxel that lies in no image."""
    write_case(tmp_path, {"liver": NOTHING, "tumour": NOTHING}, origin=(40.0, 4.0, 5.5))
    write_case(tmp_path, {"liver": LIVER}, "b")
    assert run(tmp_path) == 0
    contract = contract_of(dataset(tmp_path))
    annotated = {name for name, count in contract.coverage(["a"]).items() if count}
    assert annotated == {"liver", "tumour"}
    assert (label_sets_of(dataset(tmp_path), "a") == {"background", "spleen"}).all()


@pytest.mark.parametrize("charset", ["utf-8", "latin-1"])
def test_names_with_umlauts(tmp_path, charset):
    write_case(tmp_path, {"Tumor-Rückbildung": LIVER, "Übrig": TUMOUR}, charset=charset)
    manifest = MANIFEST.replace("(?i)^tumou?r", "Rückbildung$").replace("{keys}", "")
    (tmp_path / "clinic.toml").write_text(manifest, encoding="utf-8")
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "clinic.toml")) == 0
    assert ((label_sets_of(dataset(tmp_path), "a") == {"tumour"}) == LIVER).all()


def test_a_segment_without_name_has_its_id(tmp_path):
    path = write_case(tmp_path, {"liver": LIVER})
    header = path.read_bytes().replace(b"Segment0_Name:=liver\n", b"")
    path.write_bytes(header.replace(b"Segment0_ID:=Segment_1", b"Segment0_ID:=Liver_1"))
    assert run(tmp_path) == 0
    assert ((label_sets_of(dataset(tmp_path), "a") == {"liver"}) == LIVER).all()


def test_several_segments_of_a_label(tmp_path, capsys):
    write_case(tmp_path, {"liver": LIVER & ~TUMOUR, "caudate liver lobe": TUMOUR})
    assert run(tmp_path) == 1
    assert "caudate liver lobe" in capsys.readouterr().err
    assert run(tmp_path, keys='several_rois = "union"') == 0
    assert ((label_sets_of(dataset(tmp_path), "a") == {"liver"}) == LIVER).all()


def test_bad_files_are_one_line(tmp_path, capsys):
    write_case(tmp_path, {"liver": LIVER}, "good")
    write_case(tmp_path, {"lens": LIVER}, "names")
    write_case(tmp_path, {"liver": LIVER}, "elsewhere", origin=(-3.3, 4.0, 5.5))
    write_case(tmp_path, {"liver": LIVER}, "far", origin=(797.0, 4.0, 5.5))
    path = write_case(tmp_path, {"liver": LIVER}, "cut")
    path.write_bytes(path.read_bytes()[:-20])
    path = write_case(tmp_path, {"liver": LIVER}, "layer")
    path.write_bytes(path.read_bytes().replace(b"Layer:=0", b"Layer:=7"))
    path = write_case(tmp_path, {"liver": LIVER}, "share")
    path.write_bytes(path.read_bytes().replace(b"Binary labelmap\n", b"Fractional labelmap\n"))
    write_volume(tmp_path / "slicer" / "plain.nrrd", random_image())
    write_volume(tmp_path / "slicer" / "plain.seg.nrrd", LIVER.astype(np.uint8))
    assert run(tmp_path) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    for case in ("names", "elsewhere", "far", "cut", "layer", "share", "plain"):
        assert sum(f"/{case}.seg.nrrd: " in line for line in error.splitlines()) == 1, error
    assert 'resample = "to image"' in error
    assert run(tmp_path, "--skip-bad-cases") == 0
    assert set(contract_of(dataset(tmp_path)).cases) == {"good"}


def test_dry_run_and_preset(tmp_path, capsys):
    write_case(tmp_path, {"Liver": LIVER, "Left Kidney": ~LIVER, "bladder": NOTHING})
    source = f"--source=slicer={tmp_path / 'slicer'}"
    assert convert(tmp_path / "raw", source, "--dry-run") == 0
    output = capsys.readouterr().out
    assert "liver in 1 of 1" in output
    assert "spleen in 0 of 1" in output
    assert "bladder (1)" in output
    assert convert(tmp_path / "raw", source) == 0
    sets = label_sets_of(dataset(tmp_path), "a")
    assert ((sets == {"liver"}) == LIVER).all()
    assert ((sets == {"kidney_left"}) == ~LIVER).all()
