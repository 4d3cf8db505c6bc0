"""Read and check the files of one case; every problem is noted, so that a run can report all of
them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.dataset_conversion.notes import OVERLAP, Note
from nnunet_labelset.dataset_conversion.raters import FIRST_DISPUTED, combine_raters
from nnunet_labelset.dataset_conversion.regrid import (
    UNKNOWN,
    Moved,
    Outside,
    Resample,
    move,
    resample,
)
from nnunet_labelset.dataset_conversion.slicer import is_placeholder, paint_segments
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.flat import PICTURES, is_picture, refuse_lossy
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
        self.disputed: dict[int, tuple[int, ...]] = {}  # what raters said, by number
        # The file at work, to be named when something unexpected happens.
        self.current: Path | None = None

    @property
    def first_label_file(self) -> Path:
        return next(path for path in self.job.labels if path is not None)

    def read_volume(self, path: Path, image: bool = False) -> Volume | None:
        """A 2D or 3D volume of finite values, or None after noting the problem."""
        self.current = path
        try:
            if self.dicom is None:
                volume = read_voxels(path, indices=not image)
            else:
                volume = self.dicom.image()
            array, place = self.spatial(self.single_numbers(volume, path, image), path)
            if place.refused:  # by the reader of nnU-Net
                array = self.note(
                    path, "header rewritten, as ITK does not read it", array, about=place.refused
                )
            if place.ambiguous and image:
                self.result.notes.append(
                    Note("qform and sform differ, programs may see the volume elsewhere")
                )
            array = self.finite(array, path, image)
            self.check_can_be_written(array, path, image)
            return Volume(array, place)
        except LabelSetError as error:
            self.result.problems.append(str(error))
            return None

    def single_numbers(self, volume: Volume, path: Path, image: bool) -> Volume:
        """Return a volume of one number per voxel, or of as many colours as there are channels."""
        array, place = volume
        if np.iscomplexobj(array) or (place.components != 1 and not is_picture(path)):
            raise LabelSetError(
                f"{path}: expected one number per voxel, but got colours, vectors or complex ones"
            )
        if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # no writer writes them
            array = array.astype(np.float64)
        if is_picture(path):
            return self.colours(Volume(array, place), path, image)
        return Volume(array, place)

    def colours(self, volume: Volume, path: Path, image: bool) -> Volume:
        """Return a picture with as many colours as there are channels, or fail."""
        array, place = volume
        if not image:
            refuse_lossy(path)
        expected = self.job.colours if image else 1
        if place.components == 4 != expected and (array[..., 3] == array[..., 3].max()).all():
            array = self.note(path, "opaque picture, alpha channel left out", array[..., :3])
        in_colours = place.components > 1 and expected == 1
        if in_colours and (array == array[..., :1]).all():
            array = self.note(path, "grey picture stored as colours", array[..., 0])
        components = _colours(volume._replace(array=array))
        if components != expected:
            hint = ', e.g. channels = ["R", "G", "B"] and one pattern'
            if not image:
                hint = " colours: give every colour a number first (docs/how-to/flat_images.md)"
            raise LabelSetError(
                f"{path}: expected {expected} number(s) per pixel, but got {components}{hint}"
            )
        return Volume(array, replace(place, components=components))

    def spatial(self, volume: Volume, path: Path) -> Volume:
        """Return a 2D or 3D volume: volume 0 of a 4D one, if the user asked for it."""
        array, place = volume
        dimensions = len(place.size)
        if dimensions == 4:
            if len(array) > 1 and not self.job.first_volume:
                raise LabelSetError(
                    f"{path}: 4D, size {place.size}: 'first_volume = true' takes volume 0; if the "
                    f"volumes are channels, write a file for each"
                )
            array = self.note(path, "4D file, volume 0 taken", array[0])
            return Volume(array, place.spatial())
        if dimensions not in (2, 3):
            raise LabelSetError(f"{path}: expected a 2D or 3D image, but got {dimensions}D")
        return volume

    def check_can_be_written(self, array: np.ndarray, path: Path, image: bool) -> None:
        """Fail if a picture must be written anew in a format that cannot hold its numbers."""
        unchanged = path.name.endswith(self.job.ending) and path not in self.changed
        holds_all = self.job.ending not in PICTURES or self.job.ending == ".tif"
        if image and not unchanged and not holds_all and array.dtype not in (np.uint8, np.uint16):
            raise LabelSetError(
                f"{path}: {array.dtype} pixels do not fit into {self.job.ending} files: save all "
                "images of the data set as .tif"
            )

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
            may_move = path not in self.job.images and self.job.grid.resample is Resample.NEVER
            hint = (
                "; 'resample = \"to image\"' puts it on the grid of the image" if may_move else ""
            )
            self.result.problems.append(
                f"{path}: geometry differs from {self.job.images[0].name}: {difference}{hint}"
            )
        return not difference

    def read_labels(self, reference: Volume | None) -> np.ndarray | None:
        """The values of the label file, of several raters, or the structures painted into one."""
        if self.dicom is not None:
            return self.read_dicom(lambda reader: reader.labels(self.job.overlap))
        if self.job.segments is not None:
            return self.read_segments(reference)
        if self.job.per_structure:
            return self.read_structures(reference)
        return self.read_label_maps(reference)

    def read_label_maps(self, reference: Volume | None) -> np.ndarray | None:
        """The values of the label file, or what several raters agree on."""
        arrays = [self.read_label(path, reference) for path in self.job.labels if path is not None]
        readable = [array for array in arrays if array is not None]
        if len(readable) < len(arrays) or len({array.shape for array in readable}) != 1:
            return None
        return self.combine(readable) if len(readable) > 1 else readable[0]

    def combine(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Return what the raters agree on, and numbers of what they said elsewhere."""
        combined, self.disputed = combine_raters(arrays)
        labelled = np.logical_or.reduce([array != 0 for array in arrays])
        disputed = int(np.count_nonzero(combined >= FIRST_DISPUTED)) if self.disputed else 0
        if disputed:
            share = disputed / max(1, int(np.count_nonzero(labelled)))
            self.result.notes.append(
                Note("raters disagree", "of what any labelled", f"{share:.1%}")
            )
        return combined

    def read_segments(self, reference: Volume | None) -> np.ndarray | None:
        """The structures of a file of 3D Slicer, in the extent of the image."""
        assert self.job.segments is not None
        path = self.first_label_file
        self.current = path
        try:
            volume, covered = paint_segments(path, self.job.segments, self.job.overlap)
        except LabelSetError as error:
            self.result.problems.append(str(error))
            return None
        self.result.notes += [Note(OVERLAP, text) for text in covered]
        if reference is not None and is_placeholder(volume):
            return np.zeros(reference.place.size[::-1], volume.array.dtype)
        return self.on_grid(volume, path, reference, self.job.grid.outside)

    def read_structures(self, reference: Volume | None) -> np.ndarray | None:
        painted: np.ndarray | None = None
        for number, path in enumerate(self.job.labels, start=1):
            array = self.read_label(path, reference) if path is not None else None
            if path is None or array is None:
                continue
            if painted is None:
                painted = np.zeros(array.shape, dtype=np.uint16)
            if array.shape == painted.shape:
                self.paint(painted, array, number, path)
        return painted

    def read_label(self, path: Path, reference: Volume | None) -> np.ndarray | None:
        """The values of a label file on the grid of the image, or None after noting the problem."""
        volume = self.read_volume(path)
        if volume is None:
            return None
        try:
            array = integer_array(volume.array, path)
        except LabelSetError as error:
            self.result.problems.append(str(error))
            self.check_geometry(volume, path, reference)
            return None
        return self.on_grid(Volume(array, volume.place), path, reference, self.job.grid.outside)

    def on_grid(
        self, volume: Volume, path: Path, reference: Volume | None, outside: Outside
    ) -> np.ndarray:
        """Return labels on the grid of the image; that they are not there is a problem, unless the
        user asked for it.
        """
        if reference is None or not geometry_difference(volume.place, reference.place):
            return volume.array
        asked = self.job.grid.resample is Resample.TO_IMAGE
        same_dimensions = len(volume.place.size) == len(reference.place.size)
        moved = None
        if asked or self.job.segments is not None:  # files of Slicer have an extent of their own
            moved = move(volume, reference.place)
        if moved is None and asked and same_dimensions:
            moved = resample(volume, reference.place, self.job.grid.interpolation)
        if moved is None:
            self.check_geometry(volume, path, reference)
            return volume.array
        return self.checked_move(moved, volume, path, outside)

    def checked_move(
        self, moved: Moved, volume: Volume, path: Path, outside: Outside
    ) -> np.ndarray:
        share = moved.uncovered_share
        self.result.notes.append(
            Note("labels put on the grid of the image", moved.about, f"{1 - share:.0%} covered")
        )
        if volume.array.any() and not moved.array.any():
            self.result.problems.append(f"{path}: all of its labels lie outside of the image")
        if not share:
            return moved.array
        if outside is Outside.ERROR:
            self.result.problems.append(
                f"{path}: covers {1 - share:.0%} of the image: 'outside = \"unlabelled\"' if the "
                "file was cropped to what was drawn, 'outside = \"unknown\"' if that part was "
                "not examined"
            )
        if outside is Outside.UNKNOWN:
            return np.where(moved.covered, moved.array.astype(np.int32), UNKNOWN)
        return moved.array

    def paint(self, painted: np.ndarray, array: np.ndarray, number: int, path: Path) -> None:
        counts = count_values(array)
        counts = {value: count for value, count in counts.items() if value not in (0, UNKNOWN)}
        if len(counts) > 1:
            self.result.problems.append(
                f"{path}: expected one value besides 0, but got {counted(counts)}"
            )
        inside = (array != 0) & (array != UNKNOWN)
        painted[(array == UNKNOWN) & (painted == 0)] = UNKNOWN
        painted[inside & (painted == UNKNOWN)] = 0
        overlap = int(np.count_nonzero(painted[inside]))
        if overlap and not self.job.overlap:
            self.result.problems.append(
                f"{path}: {overlap} voxels belong to another structure too: if no mask is "
                "inverted, 'overlap = \"last\"' lets later ones win"
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
        if volume is None:
            return None
        inside = (volume.array > 0.5).astype(np.uint8)  # 1.00000006 after header scaling
        known = len(self.result.problems)
        path = self.job.mask
        mask = self.on_grid(Volume(inside, volume.place), path, reference, Outside.UNLABELLED) > 0
        if len(self.result.problems) > known:
            return None
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


def _colours(volume: Volume) -> int:
    """Return how many numbers each pixel of a picture has."""
    is_flat = len(volume.place.size) == 2
    return volume.array.shape[2] if is_flat and volume.array.ndim == 3 else 1
