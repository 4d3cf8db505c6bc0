"""DICOM series, structure sets and their patients, written as scanners and planning systems do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import highdicom
import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.sequence import Sequence as Items
from pydicom.uid import ExplicitVRLittleEndian, generate_uid
from skimage.measure import find_contours

CT_CLASS = "1.2.840.10008.5.1.4.1.1.2"
EMPTY = (
    "PatientBirthDate",
    "PatientSex",
    "StudyTime",
    "StudyID",
    "AccessionNumber",
    "ReferringPhysicianName",
    "PositionReferenceIndicator",
)
RTSTRUCT_CLASS = "1.2.840.10008.5.1.4.1.1.481.3"


@dataclass
class Scan:
    """Where a series lies: rows and columns of the identity are those of an axial CT."""

    shape: tuple[int, int, int] = (8, 24, 20)  # (slices, rows, columns)
    spacing: tuple[float, float, float] = (3.0, 1.5, 1.0)  # (slices, rows, columns)
    origin: tuple[float, float, float] = (-10.0, 5.0, 30.0)
    axes: np.ndarray = field(default_factory=lambda: np.eye(3))  # rows: x, y, z of the array
    patient: str = "p1"
    series: str = field(default_factory=generate_uid)
    frame: str = field(default_factory=generate_uid)
    study: str = field(default_factory=generate_uid)
    heights: Sequence[float] | None = None  # of slices along the third axis
    shear: tuple[float, float, float] = (0.0, 0.0, 0.0)  # mm of the patient from slice to slice
    uids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.uids = self.uids or [generate_uid() for _ in range(self.shape[0])]

    def points(self, index: np.ndarray) -> np.ndarray:
        """Return (slice, row, column) (n, 3) as mm of the patient."""
        heights = self.heights or [self.spacing[0] * number for number in range(self.shape[0])]
        height = np.interp(index[:, 0], range(len(heights)), heights)
        beyond = np.clip(index[:, 0] - len(heights) + 1, 0, None) + np.clip(index[:, 0], None, 0)
        height = height + beyond * self.spacing[0]
        offset = np.column_stack(
            [index[:, 2] * self.spacing[2], index[:, 1] * self.spacing[1], height]
        )
        return self.origin + offset @ self.axes + index[:, :1] * np.array(self.shear)


def new_file(path: Path, sop_class: str, scan: Scan, modality: str, series: str) -> FileDataset:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = sop_class
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    content = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    content.SOPClassUID = sop_class
    content.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
    content.Modality = modality
    content.PatientID = scan.patient
    content.PatientName = "Nobody"
    content.StudyDate = "20200102"
    for keyword in EMPTY:
        setattr(content, keyword, "")
    content.StudyInstanceUID = scan.study
    content.SeriesInstanceUID = series
    return content


def write_series(folder: Path, array: np.ndarray, scan: Scan, names: str = "{:03d}.dcm") -> None:
    """Write one file per slice; file names run against the positions."""
    folder.mkdir(parents=True, exist_ok=True)
    places = scan.points(np.array([[number, 0, 0] for number in range(scan.shape[0])]))
    for number, (position, pixels) in enumerate(zip(places, array, strict=True)):
        path = folder / names.format(scan.shape[0] - number)
        content = new_file(path, CT_CLASS, scan, "CT", scan.series)
        content.SOPInstanceUID = scan.uids[number]
        content.file_meta.MediaStorageSOPInstanceUID = scan.uids[number]
        content.FrameOfReferenceUID = scan.frame
        content.InstanceNumber = number * 7 % 5
        content.ImagePositionPatient = [f"{value:.6f}" for value in position]
        content.ImageOrientationPatient = [f"{value:.9f}" for value in scan.axes[:2].ravel()]
        content.PixelSpacing = [str(scan.spacing[1]), str(scan.spacing[2])]
        content.SliceThickness = "9"  # often wrong
        content.Rows, content.Columns = pixels.shape
        content.SamplesPerPixel = 1
        content.PhotometricInterpretation = "MONOCHROME2"
        content.BitsAllocated = content.BitsStored = 16
        content.HighBit = 15
        content.PixelRepresentation = 1
        content.RescaleSlope = "2" if number % 2 else "1"  # belongs to the slice
        content.RescaleIntercept = "-1000"
        stored = (pixels.astype(np.int32) + 1000) // (2 if number % 2 else 1)
        content.PixelData = stored.astype("<i2").tobytes()
        content.save_as(path, enforce_file_format=True)


ENHANCED_CLASS = "1.2.840.10008.5.1.4.1.1.2.1"


def write_enhanced(path: Path, array: np.ndarray, scan: Scan) -> None:
    """Write one enhanced multi-frame CT; frames run against the positions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = new_file(path, ENHANCED_CLASS, scan, "CT", scan.series)
    content.SOPInstanceUID = content.file_meta.MediaStorageSOPInstanceUID = scan.uids[0]
    content.FrameOfReferenceUID = scan.frame
    content.NumberOfFrames = len(array)
    content.Rows, content.Columns = array.shape[1:]
    content.SamplesPerPixel = 1
    content.PhotometricInterpretation = "MONOCHROME2"
    content.BitsAllocated, content.BitsStored, content.HighBit = 16, 12, 11
    content.PixelRepresentation = 0
    shared = Dataset()
    shared.PixelMeasuresSequence = Items([Dataset()])
    shared.PixelMeasuresSequence[0].PixelSpacing = [str(scan.spacing[1]), str(scan.spacing[2])]
    shared.PlaneOrientationSequence = Items([Dataset()])
    directions = [f"{value:.9f}" for value in scan.axes[:2].ravel()]
    shared.PlaneOrientationSequence[0].ImageOrientationPatient = directions
    shared.PixelValueTransformationSequence = Items([Dataset()])
    shared.PixelValueTransformationSequence[0].RescaleSlope = "1"
    shared.PixelValueTransformationSequence[0].RescaleIntercept = "-1000"
    content.SharedFunctionalGroupsSequence = Items([shared])
    numbers = [[number % scan.shape[0], 0, 0] for number in range(len(array))]
    places = scan.points(np.array(numbers))[::-1]
    content.PerFrameFunctionalGroupsSequence = Items([_frame(place) for place in places])
    content.PixelData = (array[::-1] + 1000).astype("<u2").tobytes()
    content.save_as(path, enforce_file_format=True)


def _frame(place: np.ndarray) -> Dataset:
    position = Dataset()
    position.ImagePositionPatient = [f"{value:.6f}" for value in place]
    frame = Dataset()
    frame.PlanePositionSequence = Items([position])
    return frame


@dataclass
class RoiSpec:
    """An ROI to write: contours (n, 3) in mm, or of other types."""

    contours: Sequence[np.ndarray] = ()
    kind: str = "CLOSED_PLANAR"
    interpreted_type: str = "ORGAN"


def write_structures(
    path: Path,
    scan: Scan,
    rois: Mapping[str, RoiSpec] | Sequence[tuple[str, RoiSpec]],
    label: str = "plan",
    date: str = "20200103",
    approval: str = "UNAPPROVED",
) -> Path:
    """Write an RTSTRUCT that refers to the series of the scan."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = new_file(path, RTSTRUCT_CLASS, scan, "RTSTRUCT", generate_uid())
    content.StructureSetLabel = label
    content.StructureSetDate = date
    content.StructureSetTime = "120000"
    content.ApprovalStatus = approval
    series = Dataset()
    series.SeriesInstanceUID = scan.series
    series.ContourImageSequence = Items([_reference(uid) for uid in scan.uids])
    study = Dataset()
    study.RTReferencedSeriesSequence = Items([series])
    frame = Dataset()
    frame.FrameOfReferenceUID = scan.frame
    frame.RTReferencedStudySequence = Items([study])
    content.ReferencedFrameOfReferenceSequence = Items([frame])
    entries = list(rois.items()) if isinstance(rois, Mapping) else list(rois)
    content.StructureSetROISequence = Items([])
    content.ROIContourSequence = Items([])
    content.RTROIObservationsSequence = Items([])
    for number, (name, roi) in enumerate(entries, start=1):
        _add_roi(content, number, name, roi, scan)
    content.save_as(path, enforce_file_format=True)
    return path


def _add_roi(content: Dataset, number: int, name: str, roi: RoiSpec, scan: Scan) -> None:
    item = Dataset()
    item.ROINumber = number
    item.ROIName = name
    item.ReferencedFrameOfReferenceUID = scan.frame
    content.StructureSetROISequence.append(item)
    observation = Dataset()
    observation.ReferencedROINumber = number
    observation.RTROIInterpretedType = roi.interpreted_type
    content.RTROIObservationsSequence.append(observation)
    drawn = Dataset()
    drawn.ReferencedROINumber = number
    if roi.contours:
        drawn.ContourSequence = Items([_contour(points, roi.kind) for points in roi.contours])
    content.ROIContourSequence.append(drawn)


def _contour(points: np.ndarray, kind: str) -> Dataset:
    item = Dataset()
    item.ContourGeometricType = kind
    item.NumberOfContourPoints = len(points)
    item.ContourData = [f"{value:.6f}"[:16] for value in points.ravel()]
    return item


def _reference(uid: str) -> Dataset:
    item = Dataset()
    item.ReferencedSOPClassUID = CT_CLASS
    item.ReferencedSOPInstanceUID = uid
    return item


def ellipse(scan: Scan, number: float, centre: Sequence[float], radii: Sequence[float]):
    """Return a contour (n, 3) in mm around (row, column) in pixels of a slice."""
    angle = np.linspace(0, 2 * np.pi, 180, endpoint=False)
    row = centre[0] + radii[0] * np.sin(angle)
    column = centre[1] + radii[1] * np.cos(angle)
    return scan.points(np.column_stack([np.full_like(row, number), row, column]))


def write_segmentation(
    path: Path, folder: Path, segments: Mapping[str, np.ndarray], kind: str = "BINARY"
) -> Path:
    """Write a DICOM-SEG for the series in a folder; arrays (slices, rows, columns) by position."""
    images = [pydicom.dcmread(file) for file in folder.glob("*.dcm")]
    normal = np.cross(*np.reshape(images[0].ImageOrientationPatient, (2, 3)).astype(float))
    images.sort(key=lambda image: float(np.dot(normal, image.ImagePositionPatient)))
    code = highdicom.sr.CodedConcept("123037004", "SCT", "Anatomical Structure")
    descriptions = [
        highdicom.seg.SegmentDescription(
            segment_number=number,
            segment_label=name,
            segmented_property_category=code,
            segmented_property_type=code,
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.MANUAL,
        )
        for number, name in enumerate(segments, start=1)
    ]
    array = np.stack(list(segments.values()), axis=-1)
    content = highdicom.seg.Segmentation(
        source_images=images,
        pixel_array=array.astype(np.float32 if kind == "FRACTIONAL" else np.uint8),
        segmentation_type=kind,
        segment_descriptions=descriptions,
        series_instance_uid=generate_uid(),
        series_number=3,
        sop_instance_uid=generate_uid(),
        instance_number=1,
        manufacturer="test",
        manufacturer_model_name="test",
        software_versions="1",
        device_serial_number="1",
        omit_empty_frames=True,
    )
    content.save_as(path)
    return path


def mask_contours(scan: Scan, mask: np.ndarray) -> list[np.ndarray]:
    """Return the outlines (n, 3) in mm of a mask (slices, rows, columns), holes as their own."""
    contours = []
    for number, inside in enumerate(mask):
        for points in find_contours(np.pad(inside.astype(float), 1), 0.5):
            points = points[:-1] - 1  # closed, and padded
            layer = np.full((len(points), 1), float(number))
            contours.append(scan.points(np.hstack([layer, points])))
    return contours
