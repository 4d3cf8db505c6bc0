"""The contours of a structure set as they are stored: pydicom would make objects of every item,
which takes longer than everything else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import BaseTag, Tag

ROI_CONTOURS = Tag("ROIContourSequence")
CONTOURS = Tag("ContourSequence")
ROI_NUMBER = Tag("ReferencedROINumber")
KIND = Tag("ContourGeometricType")
DATA = Tag("ContourData")
ITEM = Tag(0xFFFEE000)
UNDEFINED_LENGTH = 0xFFFFFFFF
LONG_LENGTHS = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"UC", b"UN", b"UR", b"UT")


class ContourItem(NamedTuple):
    """A contour: its geometric type, and its coordinates as decimal text."""

    kind: bytes
    data: bytes


class _UnusualError(ValueError):
    """Bytes that are left to pydicom."""


def contour_items(content: Dataset) -> dict[int, list[ContourItem]]:
    """Return the contours of a structure set by the number of their ROI."""
    if ROI_CONTOURS not in content:
        return {}
    element = content.get_item(ROI_CONTOURS)
    if isinstance(element, RawDataElement) and element.is_little_endian and element.value:
        try:
            return _walk_rois(element.value, element.is_implicit_VR)
        except (_UnusualError, struct.error, ValueError):
            pass  # lengths that are not stored, or bytes that pydicom has to complain about
    return _ask_pydicom(content)


def _ask_pydicom(content: Dataset) -> dict[int, list[ContourItem]]:
    by_roi: dict[int, list[ContourItem]] = {}
    for roi in content.get("ROIContourSequence") or []:
        items = by_roi.setdefault(int(roi.ReferencedROINumber), [])
        for contour in roi.get("ContourSequence") or []:
            items.append(ContourItem(_raw(contour, KIND), _raw(contour, DATA)))
    return by_roi


def _raw(item: Dataset, tag: BaseTag) -> bytes:
    value = item.get_item(tag).value if tag in item else b""
    if isinstance(value, bytes):
        return value
    values = [] if value is None else [value] if isinstance(value, str) else value
    return b"\\".join(str(number).encode() for number in values)


def _walk_rois(data: bytes, implicit: bool) -> dict[int, list[ContourItem]]:
    by_roi: dict[int, list[ContourItem]] = {}
    for roi in _items(data, implicit):
        items = by_roi.setdefault(int(roi[ROI_NUMBER]), [])
        for contour in _items(roi.get(CONTOURS, b""), implicit):
            items.append(ContourItem(contour.get(KIND, b""), contour.get(DATA, b"")))
    return by_roi


def _items(data: bytes, implicit: bool) -> Iterator[dict[int, bytes]]:
    """Yield the attributes of every item of a sequence."""
    at = 0
    while at < len(data):
        group, element, length = struct.unpack_from("<HHI", data, at)
        end = at + 8 + length
        if group << 16 | element != ITEM or length == UNDEFINED_LENGTH or end > len(data):
            raise _UnusualError
        yield dict(_attributes(data, at + 8, end, implicit))
        at = end


def _attributes(data: bytes, at: int, end: int, implicit: bool) -> Iterator[tuple[int, bytes]]:
    while at < end:
        group, element, kind, length = struct.unpack_from("<HH2sH", data, at)
        start = at + 8
        if implicit:
            length = struct.unpack_from("<I", data, at + 4)[0]
        elif kind in LONG_LENGTHS:
            length = struct.unpack_from("<I", data, start)[0]
            start += 4
        at = start + length
        if length == UNDEFINED_LENGTH or at > end:
            raise _UnusualError
        yield group << 16 | element, data[start:at]
