"""RTSTRUCT: the regions of interest (ROI) of a structure set and their contours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import Dataset

from nnunet_labelset.dataset_conversion.dicom.contour_items import ContourItem, contour_items
from nnunet_labelset.dataset_conversion.dicom.values import numbers
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import reason

CLOSED = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR", "INTERPOLATED_PLANAR")
EXTERNAL = "EXTERNAL"


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
    is_segment: bool = False  # of a DICOM-SEG, whose voxels are read later

    @property
    def is_empty(self) -> bool:
        return not (self.contours or self.is_segment)

    @property
    def is_drawn(self) -> bool:
        """Whether its annotator looked: also without any contour, but not with points alone."""
        return bool(self.contours) or not self.skipped

    def lies_in(self, frame_of_reference: str) -> bool:
        """Whether its coordinates are those of an image; unknown ones are taken to be."""
        return not (self.frame_of_reference and frame_of_reference) or (
            self.frame_of_reference == frame_of_reference
        )


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
    drawn = contour_items(content)
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
    items: Sequence[ContourItem], with_points: bool
) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
    contours = []
    skipped = []
    for item in items:
        kind = item.kind.strip(b" \0").decode("latin-1").upper() or "CLOSED_PLANAR"
        points = _points(item.data)
        if kind in CLOSED and len(points) > 2:
            contours.append(points)
            if not with_points:
                break
        elif len(points):
            skipped.append(kind if kind not in CLOSED else f"{kind} of {len(points)} points")
    return tuple(contours), tuple(skipped)


def _points(data: bytes) -> np.ndarray:
    """Return the points (n, 3) of a contour."""
    values = numbers(data)
    if len(values) % 3 or not np.isfinite(values).all():
        raise LabelSetError(f"a contour has {len(values)} numbers: expected x, y, z of each point")
    return values.reshape(-1, 3)
