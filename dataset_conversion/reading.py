"""Read and check the files of one case; every problem is noted, so that a run can report all of
them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.dataset_conversion.notes import OVERLAP, Note
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.place import geometry_difference
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import (
    Volume,
    count_not_finite,
    count_values,
    integer_array,
    read_voxels,
)

if TYPE_CHECKING:  # pydicom is an extra
    from nnunet_labelset.dataset_conversion.dicom.drawing import DicomReader


class CaseReader:
    """Reads the files of a job; problems and notes go to `result`, changed images (4D, NaN) to
    `changed`.
    """

    def __init__(self, job: CaseJob) -> None:
        self.job, self.result = job, CaseResult(notes=list(job.notes))
        self.changed: set[Path] = set()
        self.dicom = _dicom_reader(job, self.result.notes)
        self.current: Path | None = (
            None  # the file at work, to be named when something unexpected happens
        )

    def read_volume(self, path: Path, image: bool = False) -> Volume | None:
        """A 3D volume of finite values, or None after noting the problem."""
        self.current = path
        try:
            array, place = read_voxels(path) if self.dicom is None else self.dicom.image()
            if np.iscomplexobj(array) or place.components != 1:
                raise LabelSetError(
                    f"{path}: expected one number per voxel, but got colours, vectors or complex "
                    "ones"
                )
            if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # no writer writes them
                array = array.astype(np.float64)
            if array.ndim == 4:
                if len(array) > 1 and not self.job.first_volume:
                    raise LabelSetError(
                        f"{path}: 4D, size {place.size}: 'first_volume = true' takes volume 0"
                    )
                array, place = self.note(path, "4D file, volume 0 taken", array[0]), place.spatial()
            if array.ndim != 3:
                raise LabelSetError(f"{path}: expected a 3D volume, but got {array.ndim}D")
            if place.refused:  # by the reader of nnU-Net
                array = self.note(
                    path, "header rewritten, as ITK does not read it", array, about=place.refused
                )
            if place.ambiguous and image:
                self.result.notes.append(
                    Note("qform and sform differ, programs may see the volume elsewhere")
                )
            return Volume(self.finite(array, path, image), place)
        except LabelSetError as error:
            self.result.problems.append(str(error))
            return None

    def note(self, path: Path, kind: str, array: np.ndarray, about: str = "") -> np.ndarray:
        """Tell that the file at `path` is not written as it was; returns what will be written."""
        self.result.notes.append(Note(kind, about))
        self.changed.add(path)
        return array

    def finite(self, array: np.ndarray, path: Path, image: bool) -> np.ndarray:
        count = count_not_finite(array)
        if not count:
            return array
        if not self.job.replace_nan:
            raise LabelSetError(
                f"{path}: {count} voxels are NaN or infinite: 'replace_nan = true' makes them 0"
            )
        kind = f"NaN {'in the image' if image else 'among the labels'} replaced by 0"
        return self.note(path, kind, np.nan_to_num(array, nan=0.0, posinf=0.0, neginf=0.0))

    def check_geometry(self, volume: Volume | None, path: Path, reference: Volume | None) -> bool:
        """Whether a file lies where the first image does; what cannot be read has been noted as a
        problem.
        """
        if volume is None or reference is None:
            return True
        difference = geometry_difference(volume.place, reference.place)
        if difference:
            self.result.problems.append(
                f"{path}: geometry differs from {self.job.images[0].name}: {difference}"
            )
        return not difference

    def read_labels(self, reference: Volume | None) -> np.ndarray | None:
        """The values of the label file, or the structures' files painted into one array."""
        if self.dicom is not None:
            return self.read_dicom(lambda reader: reader.labels(self.job.overlap))
        painted: np.ndarray | None = None
        for number, path in enumerate(self.job.labels, start=1):
            volume = self.read_volume(path) if path is not None else None
            if path is None or volume is None:
                continue
            self.check_geometry(volume, path, reference)
            try:
                array = integer_array(volume.array, path)
            except LabelSetError as error:
                self.result.problems.append(str(error))
                continue
            if not self.job.per_structure:
                return array
            if painted is None:
                painted = np.zeros(array.shape, dtype=np.uint16)
            if array.shape == painted.shape:
                self.paint(painted, array, number, path)
        return painted

    def paint(self, painted: np.ndarray, array: np.ndarray, number: int, path: Path) -> None:
        counts = {value: count for value, count in count_values(array).items() if value}
        if len(counts) > 1:
            self.result.problems.append(
                f"{path}: expected one value besides 0, but got {counted(counts)}"
            )
        inside = array != 0
        overlap = int(np.count_nonzero(painted[inside]))
        if overlap and not self.job.overlap:
            self.result.problems.append(
                f"{path}: {overlap} voxels belong to another structure too: 'overlap = \"last\"' "
                "lets later ones win"
            )
        elif overlap:
            leaves = sorted(self.job.protocol.values[number])
            about = " or ".join(self.job.leaves[leaf] for leaf in leaves)
            self.result.notes.append(Note(OVERLAP, about, f"{overlap} voxels"))
        painted[inside] = number

    def read_dicom(self, read: Callable[[DicomReader], np.ndarray]) -> np.ndarray | None:
        """Return what `read` draws, or None after noting the problem."""
        assert self.dicom is not None
        try:
            return read(self.dicom)
        except LabelSetError as error:
            self.result.problems.append(str(error))
            return None

    def read_mask(self, reference: Volume | None) -> np.ndarray | None:
        assert self.job.mask is not None
        if self.dicom is not None:
            return self.read_dicom(lambda reader: reader.mask())
        volume = self.read_volume(self.job.mask)
        if volume is None or not self.check_geometry(volume, self.job.mask, reference):
            return None
        mask = volume.array > 0.5  # 1.00000006 after header scaling
        if not mask.any():
            self.result.problems.append(f"{self.job.mask}: the mask is empty")
        return mask


def _dicom_reader(job: CaseJob, notes: list[Note]) -> DicomReader | None:
    if job.dicom is None:
        return None
    from nnunet_labelset.dataset_conversion.dicom.drawing import DicomReader

    return DicomReader(job.dicom, notes)


def counted(counts: Mapping[int, int]) -> str:
    """Values and their voxels for a message."""
    return some(f"{value} ({count} voxels)" for value, count in sorted(counts.items()))
