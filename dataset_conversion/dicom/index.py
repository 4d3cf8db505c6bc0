"""What lies in a folder of DICOM files, however nested: image series, and the structure sets and
segmentations that refer to them. UIDs decide, never file names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import BinaryIO

import pydicom
from pydicom.dataset import Dataset

from nnunet_labelset.dataset_conversion.dicom.slices import Slice, read_slices
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import list_files, reason
from nnunet_labelset.io.progress import progress

IMAGE_MODALITIES = ("CT", "MR", "PT")
# What a case can be named after.
NAMING_KEYWORDS = (
    "PatientID",
    "PatientName",
    "StudyDate",
    "StudyID",
    "StudyDescription",
    "StudyInstanceUID",
    "AccessionNumber",
    "Modality",
    "SeriesNumber",
    "SeriesDescription",
    "SeriesInstanceUID",
)
DICOM_ENDINGS = (".dcm", ".ima", ".dicom")


class DrawingKind(Enum):
    """The kinds of DICOM objects that hold annotations, by their SOP class."""

    RTSTRUCT = "1.2.840.10008.5.1.4.1.1.481.3"
    SEG = "1.2.840.10008.5.1.4.1.1.66.4"
    LABEL_MAP = "1.2.840.10008.5.1.4.1.1.66.7"


DRAWING_CLASSES = {kind.value for kind in DrawingKind}


@dataclass
class Series:
    """An image series: its files in no order."""

    uid: str
    frame_of_reference: str
    names: Mapping[str, str]  # by NAMING_KEYWORDS
    slices: list[Slice] = field(default_factory=list)

    @property
    def modality(self) -> str:
        return self.names["Modality"]

    @property
    def folder(self) -> Path:
        return self.slices[0].path.parent

    def __str__(self) -> str:
        about = self.names["SeriesDescription"] or f"...{self.uid[-12:]}"
        return f"{self.modality} series '{about}' ({len(self.slices)} files)"


@dataclass(frozen=True)
class Drawing:
    """A structure set or a segmentation, and the images that it refers to."""

    path: Path
    uid: str
    kind: DrawingKind
    label: str
    date: str  # with time; empty if unknown
    approved: bool
    series: frozenset[str]
    slices: frozenset[str]
    frames_of_reference: frozenset[str]
    names: Mapping[str, str]


@dataclass
class Index:
    """All image series and drawings below a folder."""

    folder: Path
    series: dict[str, Series] = field(default_factory=dict)
    drawings: list[Drawing] = field(default_factory=list)
    unreadable: dict[Path, str] = field(default_factory=dict)


def read_index(folder: Path, exclude: Sequence[re.Pattern] = ()) -> Index:
    """Return what lies below a folder, but for files whose relative path `exclude` matches; files
    that are not DICOM are left out.
    """
    index = Index(folder)
    names = list_files(folder)
    files = [name for name in names if not any(text.fullmatch(name) for text in exclude)]
    for name in progress(files, "reading headers", unit="file"):
        _add_file(index, folder / name)
    if not index.series and not index.drawings:
        raise LabelSetError(f"{folder}: no DICOM images or structure sets below this folder")
    return index


def _add_file(index: Index, path: Path) -> None:
    try:
        with open(path, "rb") as file:
            header = _read_header(file, path)
            if header is None:
                return
            if header.get("SOPClassUID") in DRAWING_CLASSES:
                index.drawings.append(_read_drawing(path, header))
            elif header.get("Modality") in IMAGE_MODALITIES:
                _add_slices(index, header, list(read_slices(path, header, file)))
    except Exception as error:  # parsers of broken bytes raise whatever they stumble over
        index.unreadable[path] = reason(error).splitlines()[0]


def _read_header(file: BinaryIO, path: Path) -> Dataset | None:
    """Return what comes before the pixels, or None for files that are not DICOM."""
    start = file.read(132)
    # Some planning systems write no preamble.
    standard = start[128:] == b"DICM"
    if not standard and path.suffix.lower() not in (*DICOM_ENDINGS, ""):
        return None
    file.seek(0)
    header = pydicom.dcmread(file, stop_before_pixels=True, force=True)
    if header.get("SOPClassUID") and header.get("SOPInstanceUID"):
        return header
    if standard and header.file_meta.get("MediaStorageSOPClassUID", "").endswith("1.3.10"):
        return None  # DICOMDIR
    if standard or path.suffix:
        raise LabelSetError("not a complete DICOM file")
    return None


def _add_slices(index: Index, header: Dataset, images: Sequence[Slice]) -> None:
    uid = str(header.SeriesInstanceUID)
    if uid not in index.series:
        frame_of_reference = str(header.get("FrameOfReferenceUID") or "")
        index.series[uid] = Series(uid, frame_of_reference, _names(header))
    index.series[uid].slices += images


def _read_drawing(path: Path, header: Dataset) -> Drawing:
    frames = header.get("ReferencedFrameOfReferenceSequence") or []
    series = _referenced_series(frames) or list(header.get("ReferencedSeriesSequence") or [])
    images: list[Dataset] = []
    for item in series:
        images += item.get("ContourImageSequence") or item.get("ReferencedInstanceSequence") or []
    date = _first_text(header, "StructureSetDate", "ContentDate")
    time = _first_text(header, "StructureSetTime", "ContentTime")
    return Drawing(
        path=path,
        uid=str(header.SOPInstanceUID),
        kind=DrawingKind(header.SOPClassUID),
        label=_first_text(header, "StructureSetLabel", "ContentLabel"),
        date=f"{date} {time}".strip() if date else "",
        approved=header.get("ApprovalStatus") == "APPROVED",
        series=frozenset(str(item.SeriesInstanceUID) for item in series),
        slices=frozenset(str(item.ReferencedSOPInstanceUID) for item in images),
        frames_of_reference=_frames_of_reference(frames, header),
        names=_names(header),
    )


def _first_text(header: Dataset, *keywords: str) -> str:
    """Return the first of these attributes that is there and not empty."""
    texts = [str(header.get(keyword) or "").strip() for keyword in keywords]
    return next(filter(None, texts), "")


def _referenced_series(frames: Iterable[Dataset]) -> list[Dataset]:
    studies: list[Dataset] = []
    for frame in frames:
        studies += frame.get("RTReferencedStudySequence") or []
    series: list[Dataset] = []
    for study in studies:
        series += study.get("RTReferencedSeriesSequence") or []
    return series


def _frames_of_reference(frames: Iterable[Dataset], header: Dataset) -> frozenset[str]:
    uids = [str(frame.get("FrameOfReferenceUID") or "") for frame in frames]
    return frozenset([*uids, str(header.get("FrameOfReferenceUID") or "")]) - {""}


def _names(header: Dataset) -> dict[str, str]:
    return {keyword: str(header.get(keyword) or "").strip() for keyword in NAMING_KEYWORDS}
