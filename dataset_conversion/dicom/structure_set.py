"""RTSTRUCT: the regions of interest (ROI) of a structure set and their contours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import Tag

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import reason

CLOSED = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR", "INTERPOLATED_PLANAR")
EXTERNAL = "EXTERNAL"
CONTOUR_DATA = Tag("ContourData")


@dataclass(frozen=True)
class Roi:
    """A region of interest. `contours` are closed, each (n, 3) in mm of the patient; `skipped` are
    the geometric types of all others: points and open lines enclose nothing.
    """

    name: str
    interpreted_type: str
    frame_of_reference: str
    contours: tuple[np.ndarray, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def is_drawn(self) -> bool:
        """Whether its annotator looked: also without any contour, but not with points alone."""
        return bool(self.contours) or not self.skipped


def read_structure_set(path: Path, with_points: bool = True) -> list[Roi]:
    """Return the ROIs of an RTSTRUCT file in their order.

    Without points, which take most of the time, contours have their length and no coordinates.
    """
    try:
        content = pydicom.dcmread(path, force=True)
        return list(_read_rois(content, with_points))
    except LabelSetError as error:
        raise LabelSetError(f"{path}: {error}") from None
    except Exception as error:  # parsers of broken bytes raise whatever they stumble over
        why = reason(error).splitlines()[0]
        raise LabelSetError(f"{path}: not readable as a structure set: {why}") from None


def _read_rois(content: Dataset, with_points: bool) -> Iterator[Roi]:
    types = {
        int(item.ReferencedROINumber): str(item.get("RTROIInterpretedType") or "")
        for item in content.get("RTROIObservationsSequence") or []
    }
    drawn: dict[int, list[Dataset]] = {}
    for item in content.get("ROIContourSequence") or []:
        items = drawn.setdefault(int(item.ReferencedROINumber), [])
        items += item.get("ContourSequence") or []
    for item in content.get("StructureSetROISequence") or []:
        number = int(item.ROINumber)
        contours, skipped = _read_contours(drawn.get(number, []), with_points)
        yield Roi(
            name=str(item.get("ROIName") or "").strip(),
            interpreted_type=types.get(number, "").upper(),
            frame_of_reference=str(item.get("ReferencedFrameOfReferenceUID") or ""),
            contours=contours,
            skipped=skipped,
        )


def _read_contours(
    items: list[Dataset], with_points: bool
) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
    contours = []
    skipped = []
    for item in items:
        kind = str(item.get("ContourGeometricType") or "CLOSED_PLANAR").upper()
        points = _points(item, with_points)
        if kind in CLOSED and len(points) > 2:
            contours.append(points)
        elif len(points):
            skipped.append(kind if kind not in CLOSED else f"{kind} of {len(points)} points")
    return tuple(contours), tuple(skipped)


def _points(item: Dataset, with_points: bool) -> np.ndarray:
    """Return the points (n, 3) of a contour; decimal texts are parsed by NumPy for speed."""
    if CONTOUR_DATA not in item:
        return np.empty((0, 3))
    element = item.get_item(CONTOUR_DATA)
    raw = element.value if isinstance(element, RawDataElement) else None
    if isinstance(raw, bytes) and not with_points:
        return np.full(((raw.count(b"\\") + 1) // 3, 3), np.nan)
    if isinstance(raw, bytes):
        numbers = np.array(raw.strip(b" \0").split(b"\\"), dtype=np.float64)
    else:
        numbers = np.array(item.ContourData, dtype=np.float64)
    if len(numbers) % 3 or not np.isfinite(numbers).all():
        raise LabelSetError(f"a contour has {len(numbers)} numbers: expected x, y, z of each point")
    return numbers.reshape(-1, 3)
