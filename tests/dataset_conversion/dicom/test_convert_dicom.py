"""`convert` from folders of DICOM, as hospitals export them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.dataset_conversion.dicom.index import read_index
from nnunet_labelset.dataset_conversion.dicom.pixels import read_pixels
from nnunet_labelset.dataset_conversion.dicom.stack import sorted_stack
from tests.helpers.conversion import contract_of, convert, label_sets_of, names, read_array
from tests.helpers.dicom import (
    RoiSpec,
    Scan,
    ellipse,
    write_enhanced,
    write_segmentation,
    write_series,
    write_structures,
)

MANIFEST = """
leaves = ["background", "cord", "parotid_left", "parotid_right"]
channels = ["CT"]

[sources.clinic]
kind = "dicom"
{keys}

[sources.clinic.labels]
"(?i)^(spinal ?)?cord$" = "cord"
"(?i)^parotid.*l" = "parotid_left"
"(?i)^parotid.*r$" = "parotid_right"
"""


def run(tmp_path: Path, *arguments: str, keys: str = "", channel: str = "CT") -> int:
    manifest = tmp_path / "clinic.toml"
    text = MANIFEST.replace("{keys}", keys).replace('"CT"', f'"{channel}"')
    manifest.write_text(text)
    source = f"clinic={tmp_path / 'dicom'}"
    return convert(tmp_path, "-m", str(manifest), "--source", source, *arguments)


def write_patient(folder: Path, scan: Scan, rois: dict[str, RoiSpec] | None = None) -> Scan:
    rng = np.random.default_rng(1)
    array = 2 * rng.integers(-500, 500, scan.shape)
    write_series(folder / "images" / "deep", array.astype(np.int16), scan)
    if rois is None:
        rois = {"Cord": RoiSpec([ellipse(scan, n, (10, 9), (4, 3)) for n in (2, 3, 4)])}
    write_structures(folder / "RS.dcm", scan, rois)
    return scan


def dataset(tmp_path: Path) -> Path:
    return tmp_path / "Dataset027_Fetal"


def test_absent_is_not_annotated_and_empty_is(tmp_path: Path) -> None:
    scan = Scan()
    body = [ellipse(scan, n, (11, 10), (9, 8)) for n in range(8)]
    rois = {
        "BODY": RoiSpec(body, interpreted_type="EXTERNAL"),
        "Spinal Cord": RoiSpec([ellipse(scan, n, (10, 9), (4, 3)) for n in (2, 3, 4)]),
        "Parotid L": RoiSpec(),
        "PTV": RoiSpec([ellipse(scan, 2, (10, 9), (4, 3))]),
    }
    write_patient(tmp_path / "dicom", scan, rois)
    assert run(tmp_path) == 0
    contract = contract_of(dataset(tmp_path))
    annotated = {name for name, count in contract.coverage(["p1"]).items() if count}
    assert annotated == {"cord", "parotid_left"}
    sets = label_sets_of(dataset(tmp_path), "p1")
    assert sets[3, 10, 9] == {"cord"}
    assert sets[3, 4, 9] == {"background", "parotid_right"}  # in the body
    assert sets[3, 0, 0] == {"background"}  # outside of it
    assert sets[0, 10, 9] == {"background", "parotid_right"}


def test_without_body_nothing_is_certainly_background(tmp_path: Path) -> None:
    write_patient(tmp_path / "dicom", Scan())
    assert run(tmp_path) == 0
    sets = label_sets_of(dataset(tmp_path), "p1")
    assert sets[0, 0, 0] == {"background", "parotid_left", "parotid_right"}
    assert names(contract_of(dataset(tmp_path)), [1]) == {"cord"}


def test_cases_by_attributes(tmp_path: Path) -> None:
    for patient in ("a b", "c"):
        write_patient(tmp_path / "dicom" / patient, Scan(patient=patient))
    assert run(tmp_path, keys='case = "{PatientID}_{StudyDate}"') == 0
    assert set(contract_of(dataset(tmp_path)).cases) == {"a_b_20200102", "c_20200102"}


def test_several_structure_sets(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    scan = write_patient(tmp_path / "dicom", Scan())
    left = {"Parotid L": RoiSpec([ellipse(scan, 3, (10, 9), (4, 3))])}
    write_structures(
        tmp_path / "dicom" / "b.dcm", scan, left, "other", "20210101", approval="APPROVED"
    )
    assert run(tmp_path) == 1
    error = capsys.readouterr().err
    assert "RS.dcm" in error
    assert "structure_sets" in error
    for keys in ('structure_sets = "newest"', 'structure_sets = "approved"'):
        assert run(tmp_path, "--overwrite", keys=keys) == 0
        assert (label_sets_of(dataset(tmp_path), "p1") == {"parotid_left"}).any()
    assert run(tmp_path, "--overwrite", keys='structure_set = "pla"') == 0
    assert not (label_sets_of(dataset(tmp_path), "p1") == {"parotid_left"}).any()


def test_two_rois_of_one_label(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    scan = Scan()
    rois = {
        "Parotid L": RoiSpec([ellipse(scan, 3, (6, 6), (3, 3))]),
        "Parotid L opt": RoiSpec([ellipse(scan, 3, (15, 6), (3, 3))]),
    }
    write_patient(tmp_path / "dicom", scan, rois)
    assert run(tmp_path) == 1
    assert "Parotid L opt" in capsys.readouterr().err
    assert run(tmp_path, keys='several_rois = "union"') == 0
    sets = label_sets_of(dataset(tmp_path), "p1")
    assert sets[3, 6, 6] == sets[3, 15, 6] == {"parotid_left"}


def test_overlap(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    scan = Scan()
    rois = {
        "Parotid L": RoiSpec([ellipse(scan, 3, (10, 9), (5, 5))]),
        "Cord": RoiSpec([ellipse(scan, 3, (10, 9), (3, 3))]),
    }
    write_patient(tmp_path / "dicom", scan, rois)
    assert run(tmp_path) == 1
    assert "overlap" in capsys.readouterr().err
    assert run(tmp_path, keys='overlap = "last"') == 0
    assert label_sets_of(dataset(tmp_path), "p1")[3, 10, 9] == {"parotid_left"}


def irregular(folder: Path) -> None:
    heights = [0.0, 3, 6, 9, 15, 18, 21, 24]
    write_patient(folder, Scan(patient="bad", heights=heights))


def truncated(folder: Path) -> None:
    write_patient(folder, Scan(patient="bad"))
    path = folder / "images" / "deep" / "003.dcm"
    path.write_bytes(path.read_bytes()[:-300])


def broken_header(folder: Path) -> None:
    write_patient(folder, Scan(patient="bad"))
    path = folder / "images" / "deep" / "001.dcm"
    path.write_bytes(path.read_bytes()[:200])


def broken_headers(folder: Path) -> None:
    write_patient(folder, Scan(patient="bad"))
    for number in (1, 2, 3):
        path = folder / "images" / "deep" / f"00{number}.dcm"
        path.write_bytes(path.read_bytes()[:200])


def change_slices(folder: Path, **attributes: object) -> None:
    write_patient(folder, Scan(patient="bad"))
    for path in (folder / "images" / "deep").iterdir():
        content = pydicom.dcmread(path)
        for keyword, value in attributes.items():
            setattr(content, keyword, value)
        content.save_as(path)


def without_extent(folder: Path) -> None:
    change_slices(folder, PixelSpacing=["1.5", "0"])


def without_place(folder: Path) -> None:
    change_slices(folder, ImagePositionPatient=["nan", "0", "0"])


def modality_table(folder: Path) -> None:
    table = pydicom.Dataset()
    table.ModalityLUTType = "HU"
    change_slices(folder, ModalityLUTSequence=[table])


def two_volumes(folder: Path) -> None:
    scan = write_patient(folder, Scan(patient="bad"))
    again = Scan(patient="bad", series=scan.series, frame=scan.frame)
    write_series(folder / "more", np.zeros(scan.shape, np.int16), again)


def mixed_orientation(folder: Path) -> None:
    scan = write_patient(folder, Scan(patient="bad"))
    axes = np.array([[0.0, 1, 0], [0, 0, -1], [-1, 0, 0]])
    other = Scan(patient="bad", series=scan.series, frame=scan.frame, axes=axes)
    write_series(folder / "more", np.zeros(scan.shape, np.int16), other)


def other_frame(folder: Path) -> None:
    scan = write_patient(folder, Scan(patient="bad"))
    stranger = Scan(patient="bad", series=scan.series, uids=scan.uids)
    rois = {"Cord": RoiSpec([ellipse(scan, 3, (10, 9), (4, 3))])}
    write_structures(folder / "RS.dcm", stranger, rois)


def other_image(folder: Path) -> None:
    rois = {"Cord": RoiSpec([ellipse(Scan(origin=(900, 0, 0)), 3, (10, 9), (4, 3))])}
    write_patient(folder, Scan(patient="bad"), rois)


def anonymised(folder: Path) -> None:
    write_patient(folder, Scan(patient="bad"))
    rois = {"Cord": RoiSpec([ellipse(Scan(), 3, (10, 9), (4, 3))])}
    write_structures(folder / "RS.dcm", Scan(patient="bad"), rois)


def multiframe(folder: Path) -> None:
    write_patient(folder, Scan(patient="bad"))
    path = folder / "images" / "deep" / "003.dcm"
    content = pydicom.dcmread(path)
    content.NumberOfFrames = 4
    content.save_as(path)


def undecodable(folder: Path) -> None:
    write_patient(folder, Scan(patient="bad"))
    path = folder / "images" / "deep" / "003.dcm"
    content = pydicom.dcmread(path)
    content.file_meta.TransferSyntaxUID = pydicom.uid.JPEG2000Lossless
    content.PixelData = pydicom.encaps.encapsulate([b"not a picture!"])
    content["PixelData"].VR = "OB"
    content.save_as(path)


def two_sizes(folder: Path) -> None:
    scan = write_patient(folder, Scan(patient="bad"))
    other = Scan(patient="bad", series=scan.series, frame=scan.frame, shape=(3, 16, 16))
    write_series(folder / "images" / "deep", np.zeros(other.shape, np.int16), other, "x{}.dcm")


def two_series(folder: Path) -> None:
    write_patient(folder / "a", Scan(patient="bad"))
    write_patient(folder / "b", Scan(patient="bad"))


def nothing_matches(folder: Path) -> None:
    write_patient(folder, Scan(patient="bad"), {"Lens": RoiSpec()})


def four_dimensions(folder: Path) -> None:
    """Two time points of an enhanced file: two frames in every place."""
    scan = write_patient(folder, Scan(patient="bad"))
    shutil.rmtree(folder / "images")
    array = np.zeros(scan.shape, np.int16)
    write_enhanced(folder / "images" / "movie.dcm", np.concatenate([array, array]), scan)


def compressed_enhanced(folder: Path) -> None:
    scan = write_patient(folder, Scan(patient="bad"))
    shutil.rmtree(folder / "images")
    path = folder / "images" / "movie.dcm"
    write_enhanced(path, np.zeros(scan.shape, np.int16), scan)
    content = pydicom.dcmread(path)
    content.file_meta.TransferSyntaxUID = pydicom.uid.JPEG2000Lossless
    frames = [b"not a picture!"] * scan.shape[0]
    content.PixelData = pydicom.encaps.encapsulate(frames)
    content["PixelData"].VR = "OB"
    content.save_as(path)


def broken_contour(folder: Path) -> None:
    write_patient(folder, Scan(patient="bad"))
    content = pydicom.dcmread(folder / "RS.dcm")
    contour = content.ROIContourSequence[0].ContourSequence[0]
    contour.ContourData = list(contour.ContourData)[:-1]
    content.save_as(folder / "RS.dcm")


def truncated_structures(folder: Path) -> None:
    write_patient(folder, Scan(patient="bad"))
    path = folder / "RS.dcm"
    path.write_bytes(path.read_bytes()[:-2000])


def without_images(folder: Path) -> None:
    write_patient(folder, Scan(patient="bad"))
    shutil.rmtree(folder / "images")


def empty_names(folder: Path) -> None:
    scan = Scan(patient="bad")
    write_patient(folder, scan, {"": RoiSpec([ellipse(scan, 3, (10, 9), (4, 3))])})


def two_structure_sets(folder: Path) -> None:
    scan = write_patient(folder, Scan(patient="bad"))
    rois = {"Cord": RoiSpec([ellipse(scan, 3, (10, 9), (4, 3))])}
    write_structures(folder / "RS2.dcm", scan, rois, "plan 2", "20200104")


BAD = {
    irregular: "irregular",
    truncated: "003.dcm",
    broken_header: "001.dcm",
    broken_headers: "2 more",
    without_extent: "spacing",
    without_place: "position",
    modality_table: "LUT",
    two_volumes: "4D",
    mixed_orientation: "orientation",
    other_frame: "frame of reference",
    other_image: "outside",
    anonymised: "match",
    multiframe: "multi-frame",
    undecodable: "003.dcm",
    two_sizes: "size",
    two_series: "series",
    nothing_matches: "Lens",
    four_dimensions: "4D",
    compressed_enhanced: "movie.dcm",
    broken_contour: "RS.dcm",
    truncated_structures: "RS.dcm",
    without_images: "RS.dcm",
    empty_names: "RS.dcm",
    two_structure_sets: "RS2.dcm",
}


@pytest.mark.parametrize("write_bad", BAD, ids=lambda function: function.__name__)
def test_bad_cases_are_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture, write_bad
) -> None:
    write_patient(tmp_path / "dicom" / "good", Scan(patient="good"))
    write_bad(tmp_path / "dicom" / "bad")
    assert run(tmp_path) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 3, lines  # the count, the case, what to do
    assert BAD[write_bad] in lines[1]
    assert str(tmp_path / "dicom" / "bad") in lines[1]
    assert not dataset(tmp_path).exists()
    assert run(tmp_path, "--skip-bad-cases") == 0
    assert set(contract_of(dataset(tmp_path)).cases) == {"good"}


@pytest.mark.parametrize("compressor", ["RLE", "JPEG", "JPEG2000"])
def test_compressed_slices(tmp_path: Path, compressor: str) -> None:
    """RLE by pydicom, JPEG lossless and JPEG 2000 by ITK."""
    write_patient(tmp_path / "dicom", Scan())
    assert run(tmp_path) == 0
    plain = read_array(dataset(tmp_path) / "imagesTr" / "p1_0000.nii.gz")
    for path in (tmp_path / "dicom" / "images" / "deep").iterdir():
        compress(path, compressor, tmp_path / "scratch.dcm")
    assert run(tmp_path, "--overwrite") == 0
    image = read_array(dataset(tmp_path) / "imagesTr" / "p1_0000.nii.gz")
    assert np.array_equal(image, plain)


def compress(path: Path, compressor: str, scratch: Path) -> None:
    """Replace the pixels of a file by compressed ones, lossless."""
    content = pydicom.dcmread(path)
    if compressor == "RLE":
        content.compress(pydicom.uid.RLELossless, generate_instance_uid=False)
    else:
        writer = sitk.ImageFileWriter()
        writer.SetImageIO("GDCMImageIO")
        writer.SetFileName(str(scratch))
        writer.SetCompressor(compressor)
        writer.UseCompressionOn()
        writer.Execute(sitk.GetImageFromArray(content.pixel_array[None]))
        compressed = pydicom.dcmread(scratch)
        content.file_meta.TransferSyntaxUID = compressed.file_meta.TransferSyntaxUID
        content.PixelData = compressed.PixelData
        content["PixelData"].is_undefined_length = True
        content["PixelData"].VR = "OB"
    assert content.file_meta.TransferSyntaxUID.is_compressed
    content.save_as(path)


def test_series_that_are_left_out_are_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Two series of a patient in one folder; the structures were drawn on one of them."""
    scan = write_patient(tmp_path / "dicom", Scan())
    other = Scan(frame=scan.frame, study=scan.study)
    folder = tmp_path / "dicom" / "images" / "deep"
    write_series(folder, np.zeros(other.shape, np.int16), other, "other_{}.dcm")
    assert run(tmp_path) == 0
    output = capsys.readouterr().out
    assert "left out" in output
    assert other.series[-12:] in output


def test_choices_for_bad_cases(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    irregular(tmp_path / "dicom")
    assert run(tmp_path, keys='irregular = "resample"') == 0
    labels = read_array(dataset(tmp_path) / "labelsTr" / "bad.nii.gz")
    assert labels.shape[0] == 9  # 24 mm in steps of 3
    shutil.rmtree(tmp_path / "dicom")
    anonymised(tmp_path / "dicom")
    shutil.copytree(tmp_path / "dicom" / "images" / "deep", tmp_path / "dicom", dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "dicom" / "images")
    capsys.readouterr()
    assert run(tmp_path, "--overwrite", keys='match = "folder"') == 0
    assert "RS.dcm" in capsys.readouterr().out  # paired by folder: told
    assert (label_sets_of(dataset(tmp_path), "bad") == {"cord"}).any()


@pytest.mark.parametrize("charset", ["ISO_IR 100", "ISO_IR 192", None])
def test_names_with_umlauts(tmp_path: Path, charset: str | None) -> None:
    """Latin-1, UTF-8, and Latin-1 in a file that does not say so."""
    scan = Scan()
    rois = {
        "Rückenmark": RoiSpec([ellipse(scan, 3, (10, 9), (4, 3))]),
        "": RoiSpec([ellipse(scan, 3, (3, 3), (1, 1))]),
    }
    write_patient(tmp_path / "dicom", scan, rois)
    path = tmp_path / "dicom" / "RS.dcm"
    content = pydicom.dcmread(path)
    content.SpecificCharacterSet = charset or "ISO_IR 100"
    content.StructureSetROISequence[0].ROIName = "Rückenmark"
    content.save_as(path)
    if charset is None:
        raw = path.read_bytes()
        assert b"ISO_IR 100" in raw
        path.write_bytes(raw.replace(b"ISO_IR 100", b"ISO_IR 6  "))
    manifest = tmp_path / "clinic.toml"
    text = MANIFEST.replace("(?i)^(spinal ?)?cord$", "^R.ckenmark$").replace("{keys}", "")
    manifest.write_text(text, encoding="utf-8")
    source = f"clinic={tmp_path / 'dicom'}"
    assert convert(tmp_path, "-m", str(manifest), "--source", source) == 0
    assert (label_sets_of(dataset(tmp_path), "p1") == {"cord"}).any()
    if charset:
        manifest.write_text(text.replace("R.ckenmark", "Rückenmark"), encoding="utf-8")
        assert convert(tmp_path, "-m", str(manifest), "--source", source, "--overwrite") == 0


def test_duplicates_and_files_that_are_not_dicom(tmp_path: Path) -> None:
    write_patient(tmp_path / "dicom", Scan())
    folder = tmp_path / "dicom" / "images" / "deep"
    shutil.copy(folder / "002.dcm", folder / "copy_of_002.dcm")
    (folder / "README").write_text("exported on Monday")
    (folder / "notes.txt").write_text("exported on Monday")
    assert run(tmp_path) == 0
    image = read_array(dataset(tmp_path) / "imagesTr" / "p1_0000.nii.gz")
    assert image.shape == (8, 24, 20)


def test_pixels_and_place_agree_with_itk(tmp_path: Path) -> None:
    write_patient(tmp_path / "dicom", Scan(axes=np.diag([-1.0, -1.0, 1.0])))
    assert run(tmp_path) == 0
    reader = sitk.ImageSeriesReader()
    folder = str(tmp_path / "dicom" / "images" / "deep")
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(folder))
    expected = reader.Execute()
    image = sitk.ReadImage(str(dataset(tmp_path) / "imagesTr" / "p1_0000.nii.gz"))
    assert np.allclose(image.GetOrigin(), expected.GetOrigin(), atol=1e-3)
    assert np.allclose(image.GetDirection(), expected.GetDirection(), atol=1e-5)
    assert np.array_equal(sitk.GetArrayFromImage(image), sitk.GetArrayFromImage(expected))


@pytest.mark.parametrize("fractional", [False, True])
@pytest.mark.parametrize("axes", [np.eye(3), np.diag([-1.0, 1.0, -1.0])])
def test_segmentations(tmp_path: Path, fractional: bool, axes: np.ndarray) -> None:
    scan = Scan(axes=axes)
    cord, parotid = np.zeros((2, *scan.shape))
    cord[2:5, 3:9, 4:7] = 1.0
    parotid[4:6, 8:12, 5:15] = 0.7 if fractional else 1.0
    parotid[6, 8:12, 5:15] = 0.3 if fractional else 0.0
    folder = tmp_path / "dicom" / "images"
    write_series(folder, np.zeros(scan.shape, np.int16), scan)
    write_segmentation(
        tmp_path / "dicom" / "seg.dcm",
        folder,
        {"Cord": cord, "Parotid R": parotid},
        "FRACTIONAL" if fractional else "BINARY",
    )
    assert run(tmp_path) == 1  # they overlap
    assert run(tmp_path, keys='overlap = "last"') == 0
    sets = label_sets_of(dataset(tmp_path), "p1")
    expected = np.where(parotid > 0.5, 3, np.where(cord > 0.5, 1, 0))
    assert ((sets == {"cord"}) == (expected == 1)).all()
    assert ((sets == {"parotid_right"}) == (expected == 3)).all()
    assert sets[0, 0, 0] == {"background", "parotid_left"}


def test_label_map_segmentations(tmp_path: Path) -> None:
    """The type that came with DICOM 2024: a value for each segment."""
    scan = Scan(axes=np.diag([-1.0, 1.0, -1.0]))
    cord, parotid = np.zeros((2, *scan.shape))
    cord[2:5, 3:9, 4:7] = 1
    parotid[4:6, 9:12, 5:15] = 1
    folder = tmp_path / "dicom" / "images"
    write_series(folder, np.zeros(scan.shape, np.int16), scan)
    segments = {"Cord": cord, "Parotid R": parotid}
    write_segmentation(tmp_path / "dicom" / "seg.dcm", folder, segments, "LABELMAP")
    assert run(tmp_path) == 0
    sets = label_sets_of(dataset(tmp_path), "p1")
    assert ((sets == {"cord"}) == (cord > 0)).all()
    assert ((sets == {"parotid_right"}) == (parotid > 0)).all()


@pytest.mark.parametrize("compressed", [False, True])
def test_enhanced_multi_frame(tmp_path: Path, compressed: bool) -> None:
    """All slices in one file: the same data set as from a file per slice."""
    scan = Scan(axes=np.diag([-1.0, 1.0, -1.0]))
    array = 2 * np.random.default_rng(3).integers(-500, 500, scan.shape)
    rois = {"Cord": RoiSpec([ellipse(scan, n, (10, 9), (4, 3)) for n in (2, 3, 4)])}
    write_series(tmp_path / "dicom" / "images", array.astype(np.int16), scan)
    write_structures(tmp_path / "dicom" / "RS.dcm", scan, rois)
    assert run(tmp_path) == 0
    expected = sitk.ReadImage(str(dataset(tmp_path) / "imagesTr" / "p1_0000.nii.gz"))
    sets = label_sets_of(dataset(tmp_path), "p1")
    shutil.rmtree(tmp_path / "dicom" / "images")
    path = tmp_path / "dicom" / "enhanced.dcm"
    write_enhanced(path, array, scan)
    if compressed:
        content = pydicom.dcmread(path)
        content.compress(pydicom.uid.RLELossless, generate_instance_uid=False)
        content.save_as(path)
    assert run(tmp_path, "--overwrite") == 0
    image = sitk.ReadImage(str(dataset(tmp_path) / "imagesTr" / "p1_0000.nii.gz"))
    assert np.array_equal(sitk.GetArrayFromImage(image), sitk.GetArrayFromImage(expected))
    assert image.GetOrigin() == expected.GetOrigin()
    assert image.GetDirection() == expected.GetDirection()
    assert (label_sets_of(dataset(tmp_path), "p1") == sets).all()


@pytest.mark.parametrize("signed", [False, True])
def test_unused_bits_and_other_encodings(tmp_path: Path, signed: bool) -> None:
    """12 bits with something above them, implicit VR, big numbers: the pixels of pydicom."""
    scan = Scan()
    write_series(tmp_path / "dicom", np.zeros(scan.shape, np.int16), scan)
    rng = np.random.default_rng(4)
    expected = {}
    for number, path in enumerate(sorted((tmp_path / "dicom").iterdir())):
        content = pydicom.dcmread(path)
        content.BitsStored, content.HighBit = 12, 11
        content.PixelRepresentation = int(signed)
        content.RescaleSlope = str(1 + number)
        stored = rng.integers(0, 1 << 16, content.Rows * content.Columns, np.uint16)
        content.PixelData = stored.tobytes()
        if number % 2:
            content.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
        content.save_as(path, enforce_file_format=True)
        values = pydicom.dcmread(path).pixel_array.astype(int) * (1 + number) - 1000
        expected[float(content.ImagePositionPatient[2])] = values
    (series,) = read_index(tmp_path / "dicom").series.values()
    stack = sorted_stack(series)
    assert all(image.stored is not None for image in stack.slices)
    assert np.array_equal(read_pixels(stack), [expected[height] for height in sorted(expected)])


def test_dry_run_tells_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for patient in ("a", "b", "c"):
        scan = Scan(patient=patient)
        rois = {"Cord": RoiSpec(), "PTV 66": RoiSpec()}
        if patient == "a":
            rois["Parotid_L"] = RoiSpec([ellipse(scan, 2, (10, 9), (4, 3))])
        write_patient(tmp_path / "dicom" / patient, scan, rois)
    irregular(tmp_path / "dicom" / "bad")
    assert run(tmp_path, "--dry-run") == 1
    output, error = capsys.readouterr()
    assert "cord in 3 of 3" in output
    assert "parotid_left in 1 of 3" in output
    assert "parotid_right in 0 of 3" in output
    assert "PTV 66 (3)" in output
    assert str(tmp_path / "dicom" / "bad") in error
    assert run(tmp_path, "--dry-run", "--skip-bad-cases") == 0
    assert not dataset(tmp_path).exists()


def test_dry_run_counts_rois_that_say_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    scan = Scan(patient="a")
    cord = RoiSpec([ellipse(scan, 2, (10, 9), (4, 3))])
    write_patient(tmp_path / "dicom", scan, {"Cord": cord, "Parotid_L": RoiSpec()})
    assert run(tmp_path, "--dry-run", keys='empty_rois = "unknown"') == 0
    assert "Parotid_L (1)" in capsys.readouterr().out


def test_dry_run_of_half_a_label(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_patient(tmp_path / "dicom", Scan())
    manifest = tmp_path / "halves.toml"
    text = MANIFEST.replace("{keys}", "") + '"no such part" = "cord"\n'
    manifest.write_text(text)
    source = f"clinic={tmp_path / 'dicom'}"
    convert(tmp_path, "-m", str(manifest), "--source", source, "--dry-run")
    output = capsys.readouterr().out
    assert "every voxel may be anything" in output
    assert "structure 1" not in output


def test_excluded_files_are_overlooked(tmp_path: Path) -> None:
    for patient in ("a", "b"):
        write_patient(tmp_path / "dicom" / f"folder_{patient}", Scan(patient=patient))
    assert run(tmp_path, keys='exclude = ["folder_b/**/*"]') == 0
    assert set(contract_of(dataset(tmp_path)).cases) == {"a"}


def test_the_volume_after_resampling_is_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    heights = [0.0, 3, 6, 9, 15, 18]
    scan = Scan(shape=(6, 20, 20), heights=heights, patient="a")
    cord = RoiSpec([ellipse(scan, n, (10, 9), (4, 3)) for n in (2, 3, 4)])
    write_patient(tmp_path / "dicom", scan, {"Cord": cord})
    assert run(tmp_path, keys='irregular = "resample"') == 0
    image = sitk.ReadImage(str(dataset(tmp_path) / "labelsTr" / "a.nii.gz"))
    voxels = int((label_sets_of(dataset(tmp_path), "a") == {"cord"}).sum())
    stored = f"{voxels * np.prod(image.GetSpacing()) / 1000:.4g} ml"
    assert f"Cord: {stored} after resampling" in capsys.readouterr().out
    assert f'"{stored}, contours' in (dataset(tmp_path) / "conversion_notes.csv").read_text()


def test_preset(tmp_path: Path) -> None:
    scan = Scan()
    rois = {
        name: RoiSpec([ellipse(scan, number, (10, 9), (4, 3))])
        for number, name in enumerate(["BrainStem", "Lt Parotid", "PAROTID_R", "Esophagus"])
    }
    rois["Mandible"] = RoiSpec()  # of a template
    write_patient(tmp_path / "dicom", scan, rois)
    assert convert(tmp_path, "--source", f"rtstruct={tmp_path / 'dicom'}") == 0
    contract = contract_of(dataset(tmp_path))
    annotated = {name for name, count in contract.coverage(["p1"]).items() if count}
    assert annotated == {"brainstem", "parotid_left", "parotid_right", "oesophagus"}


def test_label_maps_written_as_contours_come_back(tmp_path: Path) -> None:
    """Outlines along the edges of voxels: the label map is the same, voxel by voxel."""
    rng = np.random.default_rng(5)
    scan = Scan(shape=(6, 16, 14))
    blobs = rng.random((2, *scan.shape)) > 0.5
    blobs[1] &= ~blobs[0]
    rois = {}
    for name, blob in zip(("Cord", "Parotid R"), blobs, strict=True):
        corners = np.array([[0, -0.5, -0.5], [0, -0.5, 0.5], [0, 0.5, 0.5], [0, 0.5, -0.5]])
        rois[name] = RoiSpec([scan.points(corners + index) for index in np.argwhere(blob)])
    write_patient(tmp_path / "dicom", scan, rois)
    assert run(tmp_path) == 0
    sets = label_sets_of(dataset(tmp_path), "p1")
    assert ((sets == {"cord"}) == blobs[0]).all()
    assert ((sets == {"parotid_right"}) == blobs[1]).all()
