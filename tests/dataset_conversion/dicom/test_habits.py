"""Habits of planning systems and of those who export from them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.uid import generate_uid

from tests.dataset_conversion.dicom.test_convert_dicom import dataset, run, write_patient
from tests.helpers.conversion import contract_of, label_sets_of
from tests.helpers.dicom import (
    RoiSpec,
    Scan,
    ellipse,
    write_segmentation,
    write_series,
    write_structures,
)


def cord(scan: Scan) -> RoiSpec:
    return RoiSpec([ellipse(scan, number, (10, 9), (4, 3)) for number in (2, 3, 4)])


def edit(path: Path, change: Callable[[pydicom.Dataset], None]) -> None:
    content = pydicom.dcmread(path)
    change(content)
    content.save_as(path)


def annotated(tmp_path: Path) -> set[str]:
    coverage = contract_of(dataset(tmp_path)).coverage(["p1"])
    return {name for name, count in coverage.items() if count}


def test_slices_without_body_contour_tell_nothing(tmp_path: Path) -> None:
    """The body was drawn where the dose was computed, and the patient goes on."""
    scan = Scan()
    body = [ellipse(scan, number, (11, 10), (9, 8)) for number in range(2, 6)]
    rois = {"Cord": cord(scan), "BODY": RoiSpec(body, interpreted_type="EXTERNAL")}
    write_patient(tmp_path / "dicom", scan, rois)
    assert run(tmp_path) == 0
    sets = label_sets_of(dataset(tmp_path), "p1")
    unknown = {"background", "parotid_left", "parotid_right"}
    assert sets[3, 0, 0] == {"background"}
    assert sets[3, 4, 9] == unknown
    assert (sets[[0, 1, 6, 7]] == unknown).all()


def test_rois_in_another_frame_of_reference_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """One structure set for CT and MR: each ROI says in whose coordinates it was drawn."""
    scan = Scan()
    other = RoiSpec([ellipse(scan, 3, (15, 14), (2, 2))])
    rois = {"Cord": cord(scan), "Parotid L": other, "Cord MR": other}
    write_patient(tmp_path / "dicom", scan, rois)

    def change(content: pydicom.Dataset) -> None:
        frame = pydicom.Dataset()
        frame.FrameOfReferenceUID = generate_uid()
        content.ReferencedFrameOfReferenceSequence.append(frame)
        for roi in content.StructureSetROISequence[1:]:
            roi.ReferencedFrameOfReferenceUID = frame.FrameOfReferenceUID
        content.StructureSetROISequence[2].ROIName = "Cord"

    edit(tmp_path / "dicom" / "RS.dcm", change)
    assert run(tmp_path) == 0
    assert annotated(tmp_path) == {"cord"}
    assert "Parotid L" in capsys.readouterr().out
    sets = label_sets_of(dataset(tmp_path), "p1")
    assert sets[3, 10, 9] == {"cord"}
    assert sets[3, 15, 14] == {"background", "parotid_left", "parotid_right"}


@pytest.mark.parametrize("state", ["absent", "unknown"])
def test_rois_that_a_template_made(
    tmp_path: Path, capsys: pytest.CaptureFixture, state: str
) -> None:
    scan = Scan()
    write_patient(tmp_path / "dicom", scan, {"Cord": cord(scan), "Parotid L": RoiSpec()})
    keys = f'empty_rois = "{state}"'
    assert run(tmp_path, "--dry-run", keys=keys) == 0
    output = capsys.readouterr().out
    assert "Parotid L (1)" in output
    assert ("not annotated: Parotid L (1)" in output) == (state == "unknown")
    assert run(tmp_path, keys=keys) == 0
    assert "Parotid L" in capsys.readouterr().out
    assert annotated(tmp_path) == ({"cord", "parotid_left"} if state == "absent" else {"cord"})


def test_segments_are_no_empty_rois(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    scan = Scan()
    cord_mask = np.zeros(scan.shape)
    cord_mask[2:5, 3:9, 4:7] = 1
    images = tmp_path / "dicom" / "images"
    write_series(images, np.zeros(scan.shape, np.int16), scan)
    write_segmentation(tmp_path / "dicom" / "seg.dcm", images, {"Cord": cord_mask})
    for keys in ("", 'empty_rois = "unknown"'):
        assert run(tmp_path, "--overwrite", keys=keys) == 0
        assert annotated(tmp_path) == {"cord"}
        assert "without contours" not in capsys.readouterr().out


def test_one_uid_for_all_slices(tmp_path: Path) -> None:
    scan = write_patient(tmp_path / "dicom", Scan())

    def change(content: pydicom.Dataset) -> None:
        content.SOPInstanceUID = content.file_meta.MediaStorageSOPInstanceUID = scan.uids[0]

    for path in (tmp_path / "dicom" / "images").rglob("*.dcm"):
        edit(path, change)
    assert run(tmp_path) == 0
    assert label_sets_of(dataset(tmp_path), "p1").shape == scan.shape


def test_structure_sets_that_name_only_a_frame_of_reference(tmp_path: Path) -> None:
    write_patient(tmp_path / "dicom", Scan())

    def change(content: pydicom.Dataset) -> None:
        del content.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence

    edit(tmp_path / "dicom" / "RS.dcm", change)
    assert run(tmp_path) == 0
    assert annotated(tmp_path) == {"cord"}


def test_patients_without_an_id(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for folder in ("a", "b"):
        write_patient(tmp_path / "dicom" / folder, Scan(patient=""))
    assert run(tmp_path) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 4
    assert str(tmp_path / "dicom" / "a") in "".join(lines)
    assert "{PatientID}" in lines[1]
    assert run(tmp_path, keys='case = "{StudyInstanceUID}"') == 0
    assert len(contract_of(dataset(tmp_path)).cases) == 2


def test_a_broken_structure_set_in_a_folder_of_its_own_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """It may be the newest one."""
    write_patient(tmp_path / "dicom", Scan())
    path = tmp_path / "dicom" / "plans" / "RS2.dcm"
    path.parent.mkdir()
    path.write_bytes((tmp_path / "dicom" / "RS.dcm").read_bytes()[:300])
    assert run(tmp_path) == 1
    assert str(path) in capsys.readouterr().err
    assert run(tmp_path, "--skip-bad-cases") == 0


def test_structure_sets_of_images_that_were_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A note for patients who have another one, an error for those who do not."""
    scan = write_patient(tmp_path / "dicom", Scan())
    old = Scan(study=scan.study)
    write_structures(tmp_path / "dicom" / "RS_old.dcm", old, {"Cord": cord(old)}, "old plan")
    assert run(tmp_path) == 0
    assert "RS_old.dcm" in capsys.readouterr().out
    lost = Scan(patient="p2")
    write_structures(tmp_path / "dicom" / "RS_lost.dcm", lost, {"Cord": cord(lost)}, "plan of p2")
    assert run(tmp_path, "--overwrite") == 1
    assert "RS_lost.dcm" in capsys.readouterr().err


def test_names_and_contours_as_they_come(tmp_path: Path) -> None:
    """Blanks behind a name, contours in descending order, of one or two points, without an item."""
    scan = Scan()
    drawn = cord(scan).contours[::-1]
    stray = ellipse(scan, 3, (2, 2), (1, 1))
    rois = {"Cord  ": RoiSpec([*drawn, stray[:1], stray[:2]]), "Parotid L": RoiSpec()}
    write_patient(tmp_path / "dicom", scan, rois)
    edit(tmp_path / "dicom" / "RS.dcm", lambda content: content.ROIContourSequence.pop())
    assert run(tmp_path) == 0
    assert annotated(tmp_path) == {"cord", "parotid_left"}
    inside = label_sets_of(dataset(tmp_path), "p1") == {"cord"}
    assert np.flatnonzero(inside.any(axis=(1, 2))).tolist() == [2, 3, 4]
    assert not inside[:, 2, 2].any()


def test_the_volume_of_every_roi_is_in_the_table_of_notes(tmp_path: Path) -> None:
    scan = Scan()
    write_series(tmp_path / "dicom" / "images", np.zeros(scan.shape, np.int16), scan)
    write_structures(tmp_path / "dicom" / "RS.dcm", scan, {"Cord": cord(scan)})
    assert run(tmp_path) == 0
    rows = (dataset(tmp_path) / "conversion_notes.csv").read_text(encoding="utf-8").splitlines()
    (row,) = (row for row in rows if "Cord" in row)
    voxels = int((label_sets_of(dataset(tmp_path), "p1") == {"cord"}).sum())
    assert f"{voxels * np.prod(scan.spacing) / 1000:.4g} ml" in row


@pytest.mark.parametrize("key", ["series", "structure_set"])
def test_an_expression_that_leaves_out_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture, key: str
) -> None:
    write_patient(tmp_path / "dicom", Scan())
    assert run(tmp_path, keys=f'{key} = "thorax"') == 1
    error = capsys.readouterr().err
    assert "thorax" in error
    assert key in error
    assert ("'plan'" in error) == (key == "structure_set")


@pytest.mark.parametrize(("choice", "date"), [("newest", "20190101"), ("approved", "")])
@pytest.mark.parametrize("is_template", [False, True])
def test_structure_sets_that_a_rule_leaves_out_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture, choice: str, date: str, is_template: bool
) -> None:
    scan = Scan()
    chosen = {"Cord": RoiSpec() if is_template else cord(scan)}
    write_patient(tmp_path / "dicom", scan, chosen)

    def approve(content: pydicom.Dataset) -> None:
        content.ApprovalStatus = "APPROVED"

    edit(tmp_path / "dicom" / "RS.dcm", approve)
    rois = {"Cord": cord(scan), "Parotid L": cord(scan), "Parotid R": RoiSpec()}
    write_structures(tmp_path / "dicom" / "first.dcm", scan, rois, "first plan", date)
    for arguments in (["--dry-run"], []):
        assert run(tmp_path, *arguments, keys=f'structure_sets = "{choice}"') == 0
        output = capsys.readouterr().out
        (left_out,) = (line for line in output.splitlines() if choice in line)
        assert "first.dcm ('first plan'" in left_out
        assert left_out.endswith(": p1")
        assert ("without a date" in left_out) == (not date)
        (lost,) = (line for line in output.splitlines() if "Parotid L" in line)
        assert "first.dcm" in lost
        assert ("Cord" in lost) == is_template
        assert "Parotid R" not in lost


def test_copies_of_a_structure_set(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Some systems keep the UID of an edited structure set: only equal files are copies."""
    write_patient(tmp_path / "dicom", Scan())
    copy = tmp_path / "dicom" / "RS (copy).dcm"
    shutil.copy(tmp_path / "dicom" / "RS.dcm", copy)
    assert run(tmp_path) == 0
    assert "duplicate files left out: RS" in capsys.readouterr().out
    assert annotated(tmp_path) == {"cord"}

    def rename(content: pydicom.Dataset) -> None:
        content.StructureSetROISequence[0].ROIName = "Parotid L"

    edit(copy, rename)
    assert run(tmp_path, "--overwrite") == 1
    assert copy.name in capsys.readouterr().err


@pytest.mark.parametrize(("date", "why"), [("", "none has a date"), ("20200103", "one date")])
def test_structure_sets_without_order(
    tmp_path: Path, capsys: pytest.CaptureFixture, date: str, why: str
) -> None:
    scan = write_patient(tmp_path / "dicom", Scan())
    for name in ("RS.dcm", "RS2.dcm"):
        # Each has a time.
        write_structures(tmp_path / "dicom" / name, scan, {"Cord": cord(scan)}, date=date)
    assert run(tmp_path, keys='structure_sets = "newest"') == 1
    assert why in capsys.readouterr().err


def test_names_that_no_file_can_have(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_patient(tmp_path / "dicom" / "a", Scan(patient="gyn 1.5T"))
    write_patient(tmp_path / "dicom" / "b", Scan(patient="p2"))
    assert run(tmp_path) == 0
    output = capsys.readouterr().out
    assert "'gyn 1.5T' is 'gyn_1.5T'" in output
    assert "'p2' is" not in output
    rows = (dataset(tmp_path) / "renamed_cases.csv").read_text(encoding="utf-8").splitlines()
    assert [row.split(",")[-2:] for row in rows[1:]] == [["gyn 1.5T", "gyn_1.5T"]]
    write_patient(tmp_path / "dicom" / "c", Scan(patient="gyn_1.5T"))
    assert run(tmp_path, "--overwrite") == 1
    error = capsys.readouterr().err
    assert "'gyn 1.5T'" in error
    assert "'gyn_1.5T'" in error


def test_a_date_alone_names_no_patient(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_patient(tmp_path / "dicom", Scan(patient=""))
    assert run(tmp_path, keys='case = "{PatientID}_{StudyDate}"') == 1
    error = capsys.readouterr().err
    assert "no PatientID" in error
    assert str(tmp_path / "dicom") in error


@pytest.mark.parametrize(("modality", "channel"), [("MR", "CT"), ("CT", "T2"), ("CT", "CT")])
def test_channels_that_are_named_after_another_modality(
    tmp_path: Path, capsys: pytest.CaptureFixture, modality: str, channel: str
) -> None:
    write_patient(tmp_path / "dicom", Scan())

    def change(content: pydicom.Dataset) -> None:
        content.Modality = modality

    for path in (tmp_path / "dicom" / "images").rglob("*.dcm"):
        edit(path, change)
    assert run(tmp_path, channel=channel) == 0
    told = f"{modality} series in channel '{channel}'" in capsys.readouterr().out
    assert told == (modality != channel)
