"""The slices in an image file: one, or all frames of an enhanced multi-frame file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pydicom.dataset import Dataset
from pydicom.tag import Tag
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

from nnunet_labelset.dataset_conversion.dicom.values import numbers_of

PIXEL_DATA = b"\xe0\x7f\x10\x00"
POSITION = Tag("ImagePositionPatient")
ORIENTATION = Tag("ImageOrientationPatient")
SPACING = Tag("PixelSpacing")
SLOPE = Tag("RescaleSlope")
INTERCEPT = Tag("RescaleIntercept")
# Tag, VR and length of the pixels, without decoder.
PIXELS_AFTER = {ExplicitVRLittleEndian: 12, ImplicitVRLittleEndian: 8}
FRAME_GROUPS = (
    "PlanePositionSequence",
    "PlaneOrientationSequence",
    "PixelMeasuresSequence",
    "PixelValueTransformationSequence",
)


@dataclass(frozen=True)
class StoredPixels:
    """Where a file has its pixels, if they are 16 bit numbers that need no decoder."""

    offset: int
    dtype: str
    unused_bits: int


@dataclass(frozen=True)
class Slice:
    """One image. Positions and directions are in mm of the patient (LPS)."""

    path: Path
    uid: str
    position: tuple[float, ...]
    orientation: tuple[float, ...]
    spacing: tuple[float, ...]  # (between rows, between columns)
    rows: int
    columns: int
    slope: float = 1.0
    intercept: float = 0.0
    frame: int = 0
    refused: str = ""  # why it cannot be a slice of a volume
    localiser: bool = False
    stored: StoredPixels | None = None


def read_slices(path: Path, header: Dataset, file: BinaryIO) -> Iterator[Slice]:
    """Yield the images of a file whose header ends where `file` is."""
    stored = _stored_pixels(header, file)
    shared = list(header.get("SharedFunctionalGroupsSequence") or [])
    groups = list(header.get("PerFrameFunctionalGroupsSequence") or [])
    places = [_flat([*shared, group]) for group in groups] or [header]
    refused = _why_refused(header, len(places))
    image_type = [str(word).upper() for word in header.get("ImageType") or ()]
    for frame, place in enumerate(places):
        yield Slice(
            path=path,
            uid=str(header.SOPInstanceUID),
            position=numbers_of(place, POSITION),
            orientation=numbers_of(place, ORIENTATION),
            spacing=numbers_of(place, SPACING),
            rows=int(header.get("Rows") or 0),
            columns=int(header.get("Columns") or 0),
            slope=(numbers_of(place, SLOPE) or (1.0,))[0] or 1.0,
            intercept=(numbers_of(place, INTERCEPT) or (0.0,))[0],
            frame=frame,
            refused=refused,
            localiser="LOCALIZER" in image_type,
            stored=stored,
        )


def _why_refused(header: Dataset, places: int) -> str:
    if int(header.get("NumberOfFrames") or 1) != places:
        return "is a multi-frame image without a place for each frame: export a file per slice"
    if int(header.get("SamplesPerPixel") or 1) > 1:
        return "is a colour image: leave it out of the folder"
    if "ModalityLUTSequence" in header:
        return "has its values in a table (modality LUT), which is not supported"
    return ""


def _flat(groups: Iterable[Dataset]) -> Dataset:
    """Return the attributes of an enhanced frame: its own ones, and those that all frames share."""
    flat = Dataset()
    for group in groups:
        for keyword in FRAME_GROUPS:
            for item in group.get(keyword) or []:
                flat.update(item)
    return flat


def _stored_pixels(header: Dataset, file: BinaryIO) -> StoredPixels | None:
    syntax = header.file_meta.get("TransferSyntaxUID")
    bits = [header.get(keyword) for keyword in ("BitsAllocated", "BitsStored")]
    is_signed = header.get("PixelRepresentation")
    if syntax not in PIXELS_AFTER or bits[0] != 16 or not bits[1] or is_signed is None:
        return None
    offset = file.tell() + PIXELS_AFTER[syntax]
    element = file.read(PIXELS_AFTER[syntax])
    frames = int(header.get("NumberOfFrames") or 1)
    expected = 2 * frames * int(header.get("Rows") or 0) * int(header.get("Columns") or 0)
    if not element.startswith(PIXEL_DATA) or int.from_bytes(element[-4:], "little") < expected:
        return None
    return StoredPixels(offset, "<i2" if is_signed else "<u2", 16 - int(bits[1]))
