"""A case of DICOM files for a worker: its image, its structures and its mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nnunet_labelset.dataset_conversion.dicom.contours import DrawnVoxels, draw
from nnunet_labelset.dataset_conversion.dicom.index import Drawing, DrawingKind
from nnunet_labelset.dataset_conversion.dicom.pixels import read_pixels
from nnunet_labelset.dataset_conversion.dicom.polygons import TOLERATED_VOLUME, Raster
from nnunet_labelset.dataset_conversion.dicom.stack import Regular, Stack
from nnunet_labelset.dataset_conversion.dicom.structure_set import Roi, read_structure_set
from nnunet_labelset.dataset_conversion.notes import OVERLAP, VOLUME, Note
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.volume import Volume

Box = tuple[slice, slice, slice]


@dataclass(frozen=True)
class DicomCase:
    """The files of a case; `structures` maps numbers of the job's structures to ROI names."""

    stack: Stack
    drawing: Drawing | None = None
    structures: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    external: tuple[str, ...] = ()
    frame_of_reference: str = ""  # of ROIs that count; empty if all of them do

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(image.path for image in self.stack.slices)


class DicomReader:
    """Reads a case and adds to `notes` what it notices."""

    def __init__(self, case: DicomCase, notes: list[Note]) -> None:
        self.case = case
        self.notes = notes
        self.regular = None if case.stack.is_regular else Regular.of(case.stack)
        self._drawn: dict[str, list[Roi]] | None = None

    def image(self) -> Volume:
        """Return the image, on a regular grid."""
        stack = self.case.stack
        self.notes += [Note(text) for text in stack.notes]
        array = read_pixels(stack)
        if self.regular is None:
            return Volume(array, stack.place)
        why = "tilted gantry" if stack.is_sheared else stack.describe_gaps()
        self.notes.append(Note("resampled to a regular grid", why))
        return self.regular.image(array)

    def labels(self, overlap: bool) -> np.ndarray:
        """Return the numbers of the structures, later ones over earlier ones."""
        painted = np.zeros(self.case.stack.shape, dtype=np.uint8)
        if len(self.case.structures) > 255:
            painted = painted.astype(np.uint16)
        for number, names in sorted(self.case.structures.items()):
            for name in names:
                self._paint(painted, number, name, overlap)
        return painted if self.regular is None else self.regular.labels(painted).array

    def _paint(self, painted: np.ndarray, number: int, name: str, overlap: bool) -> None:
        for raster in self._rasters(name):
            inside = painted[raster.box]
            values = inside[raster.mask]
            covered = int(np.count_nonzero((values != 0) & (values != number)))
            if covered and not overlap:
                raise LabelSetError(
                    f"{self._path}: {covered} voxels of ROI '{name}' belong to another one too: "
                    "'overlap = \"last\"' lets later ones win"
                )
            if covered:
                self.notes.append(Note(OVERLAP, name, f"{covered} voxels"))
            inside[raster.mask] = number

    def mask(self) -> np.ndarray:
        """Return what lies inside the EXTERNAL contour. Slices without it tell nothing: there, all
        may be inside.
        """
        mask = np.zeros(self.case.stack.shape, dtype=bool)
        for name in self.case.external:
            for raster in self._rasters(name):
                mask[raster.box] |= raster.mask
        untold = ~mask.any(axis=(1, 2))
        mask[untold] = True
        if count := int(np.count_nonzero(untold)):
            about = "nothing follows outside of it there"
            detail = f"{count} of {mask.shape[0]}"
            self.notes.append(Note("slices without EXTERNAL contour", about, detail))
        return mask if self.regular is None else self.regular.labels(mask).array

    @property
    def _path(self) -> Path:
        assert self.case.drawing is not None
        return self.case.drawing.path

    def _rasters(self, name: str) -> list[Raster]:
        """Return the voxels of the ROIs of this name."""
        assert self.case.drawing is not None
        if self.case.drawing.kind is not DrawingKind.RTSTRUCT:
            from nnunet_labelset.dataset_conversion.dicom.segmentation import read_segment

            return [read_segment(self._path, name, self.case.stack)]
        if self._drawn is None:
            self._drawn = {}
            for roi in read_structure_set(self._path):
                if roi.lies_in(self.case.frame_of_reference):
                    self._drawn.setdefault(roi.name, []).append(roi)
        rasters = []
        for roi in self._drawn[name]:
            try:
                voxels = draw(roi, self.case.stack)
            except LabelSetError as error:
                raise LabelSetError(f"{self._path}: {error}") from None
            self.notes += [Note("contours", f"{roi.name}: {text}") for text in voxels.notes]
            if voxels.raster is not None:
                stored = self._as_stored(voxels, voxels.raster, roi.name)
                self.notes.append(Note(VOLUME, roi.name, stored.describe_volume()))
                rasters.append(voxels.raster)
        return rasters

    def _as_stored(self, voxels: DrawnVoxels, raster: Raster, name: str) -> DrawnVoxels:
        """Return the voxels with their volume after resampling; a note tells what it changed."""
        if self.regular is None:
            return voxels
        counts = np.zeros(self.case.stack.shape[0])
        counts[raster.box[0]] = np.count_nonzero(raster.mask, axis=(1, 2))
        stored = self.regular.volume(counts)
        if abs(stored - voxels.volume) > TOLERATED_VOLUME * voxels.volume:
            about = f"{name}: {stored:.4g} ml after resampling, {voxels.volume:.4g} ml before"
            self.notes.append(Note("contours", about))
        return replace(voxels, volume=stored)
