"""Convert one case: every file is read once, checked, and written once. Runs in the worker processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.dataset_conversion.scheme import Scheme, interpret
from nnunet_labelset.dataset_conversion.values import count_values, remap
from nnunet_labelset.dataset_conversion.volumes import Volume, count_not_finite, read_volume, write_volume
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.files import some
from nnunet_labelset.images import geometry_difference, integer_array
from nnunet_labelset.raw_dataset import TRAINING


@dataclass(frozen=True)
class CaseJob:
    """Files and rules of one case. `labels` is one file with the scheme's values, or one file per structure: then
    structure `i` has the value `i + 1` in the scheme, and `None` is a structure that was not drawn in this case.
    """

    case: str
    source: str
    part: str
    images: tuple[Path, ...]
    labels: tuple[Path | None, ...]
    mask: Path | None
    scheme: Scheme
    leaves: tuple[str, ...]
    per_structure: bool = False
    overlap: bool = False
    first_volume: bool = False
    replace_nan: bool = False
    mask_images: float | None = None  # mm around the mask
    link: bool = False
    ending: str = ".nii.gz"

    @property
    def inputs(self) -> tuple[Path, ...]:
        return tuple(path for path in (*self.images, *self.labels, self.mask) if path is not None)


@dataclass
class CaseResult:
    """`protocol` says what each value stands for (None: no label map); `notes` are facts worth telling, by kind."""

    protocol: tuple[LabelSet, ...] | None = None
    uses_ignore: bool = False
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def convert_case(job: CaseJob, folder: Path) -> CaseResult:
    """Read, check and write one case into the data set folder; with problems, nothing is written."""
    return _Conversion(job, folder).run()


class _Conversion:
    def __init__(self, job: CaseJob, folder: Path) -> None:
        self.job, self.folder, self.result = job, folder, CaseResult()
        self.changed: set[Path] = set()  # images that cannot be copied byte for byte

    def run(self) -> CaseResult:
        job, result = self.job, self.result
        images = [self.read(path, image=True) for path in job.images]
        reference = next((image for image in images if image is not None), None)
        for path, image in zip(job.images[1:], images[1:], strict=True):
            self.check_geometry(image, path, reference, job.images[0])
        labels = self.read_labels(reference) if job.labels else None
        mask = self.read_mask(reference) if job.mask else None
        values = self.remap(labels, mask) if labels is not None else None
        if result.problems or reference is None:
            return result
        if job.mask_images is not None:
            region = mask if mask is not None else labels != 0 if labels is not None else None
            if region is None:
                result.problems.append(f"{job.images[0]}: --mask-images: this case has no mask")
                return result
            images = [self.masked(image, region) for image in images if image is not None]
        if values is not None:
            self.write(replace(reference, array=values), "labels", job.case)
        for channel, (path, image) in enumerate(zip(job.images, images, strict=True)):
            self.write_image(path, image, f"{job.case}_{channel:04d}")
        return result

    def read(self, path: Path, image: bool = False) -> Volume | None:
        """A 3D volume of finite values, or None after noting the problem."""
        try:
            volume = read_volume(path)
            if volume.array.ndim == 4:
                if len(volume.array) > 1 and not self.job.first_volume:
                    raise LabelSetError(f"{path}: 4D, size {volume.GetSize()}: 'first_volume = true' takes volume 0")
                self.result.notes.append("4D file, volume 0 taken")
                volume = replace(volume, array=volume.array[0])
                self.changed.add(path)
            if volume.array.ndim != 3:
                raise LabelSetError(f"{path}: expected a 3D volume, but got {volume.array.ndim}D")
            return self.finite(volume, path, image)
        except LabelSetError as error:
            self.result.problems.append(str(error))
            return None

    def finite(self, volume: Volume, path: Path, image: bool) -> Volume:
        count = count_not_finite(volume.array)
        if not count:
            return volume
        if not self.job.replace_nan:
            raise LabelSetError(f"{path}: {count} voxels are NaN or infinite: 'replace_nan = true' makes them 0")
        self.result.notes.append(f"NaN {'in the image' if image else 'among the labels'} replaced by 0")
        self.changed.add(path)
        return replace(volume, array=np.nan_to_num(volume.array, nan=0.0, posinf=0.0, neginf=0.0))

    def check_geometry(self, volume: Volume | None, path: Path, reference: Volume | None, other: Path) -> bool:
        if volume is None or reference is None:
            return False
        difference = geometry_difference(volume, reference)
        if difference:
            self.result.problems.append(f"{path}: geometry differs from {other.name}: {difference}")
        return not difference

    def read_labels(self, reference: Volume | None) -> np.ndarray | None:
        """The values of the label file, or the structures' files painted into one array."""
        painted: np.ndarray | None = None
        for number, path in enumerate(self.job.labels, start=1):
            if path is None:
                continue
            volume = self.read(path)
            if volume is None:
                continue
            if reference is not None:
                self.check_geometry(volume, path, reference, self.job.images[0])
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
            self.result.problems.append(f"{path}: expected one value besides 0, but got {_counted(counts)}")
        inside = array != 0
        overlap = int(np.count_nonzero(painted[inside]))
        if overlap and not self.job.overlap:
            self.result.problems.append(
                f"{path}: {overlap} voxels belong to another structure too: 'overlap = \"last\"' lets later ones win"
            )
        painted[inside] = number

    def read_mask(self, reference: Volume | None) -> np.ndarray | None:
        assert self.job.mask is not None
        volume = self.read(self.job.mask)
        if volume is None:
            return None
        if reference is not None and not self.check_geometry(volume, self.job.mask, reference, self.job.images[0]):
            return None
        mask = volume.array > 0.5  # 1.00000006 after header scaling
        if not mask.any():
            self.result.problems.append(f"{self.job.mask}: the mask is empty")
        return mask

    def remap(self, labels: np.ndarray, mask: np.ndarray | None) -> np.ndarray | None:
        """The target values, after checks of the values against the scheme."""
        job, result = self.job, self.result
        path = next(path for path in job.labels if path is not None)
        counts = count_values(labels)
        known = {0, *job.scheme.values}
        undeclared = {value: count for value, count in counts.items() if value not in known}
        if undeclared:
            result.problems.append(f"{path}: undeclared values {_counted(undeclared)}")
        meaning = interpret(job.scheme, counts)
        for value, leaves in meaning.contradicted.items():
            if value in counts:
                names = some(job.leaves[leaf] for leaf in sorted(leaves))
                result.problems.append(f"{path}: {names} is declared unannotated but has {counts[value]} voxels")
        if meaning.needs_mask and job.mask is None:
            result.problems.append(f"{path}: no mask file, but unannotated leaves need one")
        if mask is not None and mask.shape != labels.shape:
            return None  # the geometry problem has been noted
        if result.problems:
            return None
        storage = meaning.storage(len(job.leaves), counts)
        for labels_set, into in sorted(storage.merged.items(), key=lambda pair: sorted(pair[0])):
            result.notes.append(f"label-set {self.names(labels_set)} stored as the larger {self.names(into)}")
        if meaning.background_added:
            result.notes.append(f"one unannotated leaf: stored as {self.names(meaning.inside)}, as masks are not exact")
        table = {value: storage.value_of(meaning.values[value]) for value in counts if value in meaning.values}
        table.setdefault(0, storage.value_of(meaning.inside))
        values = remap(labels, table, len(job.leaves))
        if mask is not None:
            outside = ~mask
            lost = int(np.count_nonzero(labels[outside]))
            if lost:
                result.notes.append(f"labelled voxels outside the mask, kept ({lost} in {job.case})")
            if meaning.inside != meaning.outside and 0 not in meaning.values:
                values[outside & (labels == 0)] = storage.value_of(meaning.outside)
        result.protocol, result.uses_ignore = storage.protocol(), storage.uses_ignore
        return values

    def names(self, labels: LabelSet) -> str:
        return "{" + ", ".join(self.job.leaves[leaf] for leaf in sorted(labels)) + "}"

    def masked(self, image: Volume, region: np.ndarray) -> Volume:
        import edt  # only here: most runs do not need it

        assert self.job.mask_images is not None
        distance = edt.edt(np.ascontiguousarray(~region), anisotropy=image.spacing[::-1], black_border=False)
        self.changed.update(self.job.images)
        return replace(image, array=np.where(distance > self.job.mask_images, 0, image.array))

    def write_image(self, path: Path, image: Volume | None, name: str) -> None:
        if path in self.changed or not path.name.endswith(self.job.ending):
            assert image is not None
            self.write(image, "images", name)
            return
        target, temporary = self.target("images", name)
        if self.job.link:
            os.symlink(path.resolve(), temporary)
        else:
            shutil.copyfile(path, temporary)
        os.replace(temporary, target)

    def write(self, image: Volume, kind: str, name: str) -> None:
        target, temporary = self.target(kind, name)
        write_volume(image, temporary)
        os.replace(temporary, target)

    def target(self, kind: str, name: str) -> tuple[Path, Path]:
        """The file and a temporary name beside it; a leftover of a killed run is removed."""
        part = self.folder / (kind + ("Tr" if self.job.part == TRAINING else "Ts"))
        part.mkdir(parents=True, exist_ok=True)
        temporary = part / f".{name}{self.job.ending}"
        temporary.unlink(missing_ok=True)
        return part / f"{name}{self.job.ending}", temporary


def _counted(counts: Mapping[int, int]) -> str:
    return some(f"{value} ({count} voxels)" for value, count in sorted(counts.items()))
