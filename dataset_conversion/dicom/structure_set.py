"""RTSTRUCT: the regions of interest (ROI) of a structure set and their contours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import Dataset
from pydicom.tag import Tag

from nnunet_labelset.dataset_conversion.dicom.values import numbers
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import reason

CLOSED = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR", "INTERPOLATED_PLANAR")
EXTERNAL = "EXTERNAL"
CONTOUR_DATA = Tag("ContourData")
GEOMETRIC_TYPE = Tag("ContourGeometricType")


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

    Without points, which take most of the time, an ROI has one contour at most.
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
        kind = _kind(item)
        points = _points(item)
        if kind in CLOSED and len(points) > 2:
            contours.append(points)
            if not with_points:
                break
        elif len(points):
            skipped.append(kind if kind not in CLOSED else f"{kind} of {len(points)} points")
    return tuple(contours), tuple(skipped)


def _kind(item: Dataset) -> str:
    element = item.get_item(GEOMETRIC_TYPE) if GEOMETRIC_TYPE in item else None
    kind = element.value if element is not None else None
    text = kind.decode("latin-1") if isinstance(kind, bytes) else str(kind or "")
    return text.strip(" \0").upper() or "CLOSED_PLANAR"


def _points(item: Dataset) -> np.ndarray:
    """Return the points (n, 3) of a contour."""
    values = numbers(item, CONTOUR_DATA)
    if len(values) % 3 or not np.isfinite(values).all():
        raise LabelSetError(f"a contour has {len(values)} numbers: expected x, y, z of each point")
    return values.reshape(-1, 3)
