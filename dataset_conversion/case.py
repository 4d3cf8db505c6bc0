"""Convert one case: every file is read once, checked, and written once. Runs in the worker processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.dataset_conversion.meaning import interpret
from nnunet_labelset.dataset_conversion.reading import CaseReader, counted
from nnunet_labelset.dataset_conversion.storage import count_values, remap
from nnunet_labelset.dataset_conversion.volumes import Volume, dilate, write_volume
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.raw import TRAINING


def convert_case(job: CaseJob, folder: Path | None) -> CaseResult:
    """Read, check and write one case into the data set folder; with problems, or without folder, nothing is written."""
    return _Conversion(job, folder).run()


class _Conversion:
    def __init__(self, job: CaseJob, folder: Path | None) -> None:
        self.job, self.folder, self.result = job, folder, CaseResult()
        self.reader = CaseReader(job, self.result)

    def run(self) -> CaseResult:
        job, result = self.job, self.result
        images = [self.reader.read(path, image=True) for path in job.images]
        reference = next((image for image in images if image is not None), None)
        for path, image in zip(job.images[1:], images[1:], strict=True):
            self.reader.check_geometry(image, path, reference, job.images[0])
        labels = self.reader.read_labels(reference) if job.labels else None
        mask = self.reader.read_mask(reference) if job.mask else None
        values = self.remap(labels, mask) if labels is not None else None
        if result.problems or reference is None:
            return result
        if job.scheme.mask == "file" and job.mask is None:
            if job.mask_images is not None:
                result.problems.append(f"{job.images[0]}: --mask-images: no mask file")
                return result
            result.notes.append("no mask file")
        if job.mask_images is not None:
            region = mask if mask is not None else labels != 0 if labels is not None else None
            if region is None:
                result.problems.append(f"{job.images[0]}: --mask-images: this case has no mask")
                return result
            kept = dilate(region, job.mask_images, reference.spacing[::-1])
            images = [self.masked(image, path, kept) for path, image in zip(job.images, images, strict=True) if image]
        if self.folder is None:
            return result
        if values is not None:
            self.write(replace(reference, array=values), "labels", job.case)
        for channel, (path, image) in enumerate(zip(job.images, images, strict=True)):
            self.write_image(path, image, f"{job.case}_{channel:04d}")
        return result

    def remap(self, labels: np.ndarray, mask: np.ndarray | None) -> np.ndarray | None:
        """The target values, after checks of the values against the scheme."""
        job, result = self.job, self.result
        path = next(path for path in job.labels if path is not None)
        counts = count_values(labels)
        known = {0, *job.scheme.values}
        undeclared = {value: count for value, count in counts.items() if value not in known}
        if undeclared:
            result.problems.append(f"{path}: undeclared values {counted(undeclared)}")
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
            labelled, outside = labels != 0, ~mask
            lost = int(np.count_nonzero(labelled & outside))
            if lost:
                result.notes.append(f"labelled voxels outside the mask, kept ({lost} in {job.case})")
            if meaning.inside != meaning.outside and 0 not in meaning.values:
                np.copyto(values, values.dtype.type(storage.value_of(meaning.outside)), where=outside & ~labelled)
        result.protocol, result.uses_ignore = storage.protocol(), storage.uses_ignore
        return values

    def names(self, labels: LabelSet) -> str:
        return "{" + ", ".join(self.job.leaves[leaf] for leaf in sorted(labels)) + "}"

    def masked(self, image: Volume, path: Path, kept: np.ndarray) -> Volume:
        """The image with 0 outside of `kept`; one that was masked before is left as it is, and copied."""
        array = np.where(kept, image.array, image.array.dtype.type(0))
        if np.array_equal(array, image.array):
            return image
        self.reader.changed.add(path)
        return replace(image, array=array)

    def write_image(self, path: Path, image: Volume | None, name: str) -> None:
        if path in self.reader.changed or not path.name.endswith(self.job.ending):
            assert image is not None
            self.write(image, "images", name)
            return
        with self.target("images", name) as temporary:
            if self.job.link:
                os.symlink(path.resolve(), temporary)
            else:
                shutil.copyfile(path, temporary)

    def write(self, volume: Volume, kind: str, name: str) -> None:
        with self.target(kind, name) as temporary:
            write_volume(volume, temporary)

    @contextmanager
    def target(self, kind: str, name: str) -> Iterator[Path]:
        """A temporary name beside the file, which then takes its place; a leftover of a killed run is removed."""
        assert self.folder is not None
        part = self.folder / (kind + ("Tr" if self.job.part == TRAINING else "Ts"))
        temporary = part / f".{name}{self.job.ending}"
        try:
            part.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            yield temporary
            os.replace(temporary, part / f"{name}{self.job.ending}")
        except (OSError, RuntimeError) as error:  # SimpleITK raises RuntimeError
            temporary.unlink(missing_ok=True)
            reason = str(error).strip().splitlines()[-1].strip()
            raise LabelSetError(f"{part / name}{self.job.ending}: not written: {reason}") from None
