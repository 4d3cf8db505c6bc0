"""Convert one case: every file is read once, checked, and written once. Runs in the worker
processes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import edt
import numpy as np

from nnunet_labelset.contract import LabelSet, Protocol
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.dataset_conversion.meaning import Mask, Meaning, SourceProtocol, interpret
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.reading import CaseReader, counted
from nnunet_labelset.dataset_conversion.storage import Storage, remap
from nnunet_labelset.io.files import link_file, new_file
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import Volume, count_values, write_voxels

# Masks are drawn or computed a little too large; more than this is not a rim but tissue that nobody
# labelled.
LARGEST_UNLABELLED_SHARE = 0.05


def convert_case(job: CaseJob, folder: Path | None) -> CaseResult:
    """Read, check and write one case into the data set folder; with problems, or without folder,
    nothing is written.

    Whatever is wrong with a file is a problem of its case. What cannot be written ends the run.
    """
    conversion = _Conversion(job)
    try:
        volumes = conversion.read()
    except (
        Exception
    ) as error:  # a file in which nobody expected this must not end the run of all the others
        reason = f"{type(error).__name__}: {str(error).strip() or 'no reason given'}".splitlines()[
            0
        ]
        conversion.result.problems.append(
            f"{conversion.current or job.inputs[0]}: not converted: {reason}"
        )
        return conversion.result
    if volumes and folder is not None:
        conversion.write(folder, *volumes)
    return conversion.result


class _Conversion(CaseReader):
    def read(self) -> tuple[list[Volume], Volume | None] | None:
        """The images and the label map as they will be written, or None after noting the problems."""
        job, result = self.job, self.result
        images = [self.read_volume(path, image=True) for path in job.images]
        reference = next((image for image in images if image is not None), None)
        for path, image in zip(job.images[1:], images[1:], strict=True):
            self.check_geometry(image, path, reference)
        labels = self.read_labels(reference) if job.labels else None
        mask = self.read_mask(reference) if job.mask else None
        values = self.remap(labels, mask) if labels is not None else None
        good = [image for image in images if image is not None]
        if result.problems or reference is None:
            return None
        if (
            isinstance(job.protocol, SourceProtocol)
            and job.protocol.mask is Mask.FILE
            and job.mask is None
        ):
            if job.mask_images is not None:
                result.problems.append(f"{job.images[0]}: --mask-images: no mask file")
                return None
            result.notes.append(Note("no mask file"))
        if job.mask_images is not None:
            inside = mask if mask is not None else labels != 0 if labels is not None else None
            if inside is None:
                result.problems.append(f"{job.images[0]}: --mask-images: this case has no mask")
                return None
            kept = dilate(inside, job.mask_images, reference.place.spacing[::-1])
            good = [
                self.masked(image, path, kept) for path, image in zip(job.images, good, strict=True)
            ]
        return good, Volume(values, reference.place) if values is not None else None

    def remap(self, labels: np.ndarray, mask: np.ndarray | None) -> np.ndarray | None:
        """The target values, after checks of the values against the protocol."""
        job, result = self.job, self.result
        path = next(path for path in job.labels if path is not None)
        counts = count_values(labels)
        known = {0, *job.protocol.values}
        undeclared = {value: count for value, count in counts.items() if value not in known}
        if undeclared:
            result.problems.append(f"{path}: undeclared values {counted(undeclared)}")
        meaning = interpret(job.protocol, counts)
        for value, leaves in meaning.contradicted.items():
            if value in counts:
                names = some(job.leaves[leaf] for leaf in sorted(leaves))
                result.problems.append(
                    f"{path}: {names} is declared unannotated but has {counts[value]} voxels"
                )
        if meaning.needs_mask and job.mask is None:
            result.problems.append(f"{path}: no mask file, but unannotated leaves need one")
        if mask is not None and mask.shape != labels.shape:
            return None  # the geometry problem has been noted
        if mask is not None and 0 not in meaning.values:
            self.check_mask(labels, mask, meaning, path)
        if result.problems:
            return None
        storage = meaning.storage(len(job.leaves), counts)
        result.sets = storage.sets(singletons_are_annotated=True)
        result.uses_ignore, result.vouched = storage.uses_ignore, meaning.vouched
        self.tell(storage, result.sets, meaning, counts)
        table = {
            value: storage.value_of(meaning.values[value])
            for value in counts
            if value in meaning.values
        }
        table.setdefault(0, storage.value_of(meaning.inside))
        values = remap(labels, table, len(job.leaves))
        if mask is not None and meaning.inside != meaning.outside and 0 not in meaning.values:
            outside = values.dtype.type(storage.value_of(meaning.outside))
            np.copyto(values, outside, where=~mask & (labels == 0))
        return values

    def check_mask(
        self, labels: np.ndarray, mask: np.ndarray, meaning: Meaning, path: Path
    ) -> None:
        """Labels outside of the mask are kept; much that is unlabelled inside it was not annotated
        completely.
        """
        unlabelled = labels == 0
        lost = unlabelled.size - int(np.count_nonzero(unlabelled | mask))
        if lost:
            self.result.notes.append(
                Note("labelled voxels outside the mask, kept", detail=str(lost))
            )
        share = int(np.count_nonzero(unlabelled & mask)) / max(1, int(np.count_nonzero(mask)))
        if meaning.complete and share > LARGEST_UNLABELLED_SHARE and not self.job.fully_annotated:
            self.result.problems.append(
                f"{path}: {share:.0%} of the mask of case '{self.job.case}' is unlabelled, although all is said to be "
                f"annotated: say what is (--annotated FILE.csv), or that the rest is background (--fully-annotated)"
            )
        elif share:
            what = "taken for background" if meaning.complete else "not annotated"
            self.result.notes.append(
                Note("unlabelled inside the mask", what, f"{max(share, 0.0001):.2%}")
            )

    def tell(
        self, storage: Storage, sets: tuple[LabelSet, ...], meaning: Meaning, counts: dict[int, int]
    ) -> None:
        """What the user should know of the label-sets, and the leaves that are declared but nowhere
        to be seen.
        """
        notes, leaves = self.result.notes, self.job.leaves
        for labels, into in sorted(storage.merged.items(), key=lambda pair: sorted(pair[0])):
            notes.append(
                Note(
                    "label-set stored as a larger one",
                    f"{self.names(labels)} as {self.names(into)}",
                )
            )
        if meaning.background_added:
            about = f"stored as {self.names(meaning.inside)}, as masks are not exact"
            notes.append(Note("one unannotated leaf", about))
        annotated = Protocol(sets, len(leaves), meaning.vouched).annotated
        present = (meaning.values[value] for value in counts if value in meaning.values)
        seen = frozenset().union(*(labels for labels in present if len(labels) == 1))
        for leaf in sorted((annotated | meaning.vouched) - seen - {0}):
            notes.append(Note("declared annotated, but without a voxel", leaves[leaf]))

    def names(self, labels: LabelSet) -> str:
        return "{" + ", ".join(self.job.leaves[leaf] for leaf in sorted(labels)) + "}"

    def masked(self, image: Volume, path: Path, kept: np.ndarray) -> Volume:
        """The image with 0 outside of `kept`; one that was masked before is left as it is, and
        copied.
        """
        array = np.where(kept, image.array, image.array.dtype.type(0))
        if np.array_equal(array, image.array):
            return image
        self.changed.add(path)
        return Volume(array, image.place)

    def write(self, folder: Path, images: list[Volume], labels: Volume | None) -> None:
        """Each file is read back before it gets its name; what cannot be written ends the run."""
        if labels is not None:
            write_voxels(folder / self.job.label_file, labels.array, labels.place, flush=False)
        for path, image, name in zip(self.job.images, images, self.job.image_files, strict=True):
            target = folder / name
            if path in self.changed or not path.name.endswith(self.job.ending):
                write_voxels(target, image.array, image.place, flush=False)
            elif self.job.link:
                link_file(target, path.resolve())
            else:
                with new_file(target, flush=False) as temporary:
                    shutil.copyfile(path, temporary)


def dilate(inside: np.ndarray, distance: float, spacing: tuple[float, ...]) -> np.ndarray:
    """Voxels (z, y, x) not farther than `distance` mm from what is inside."""
    result = np.zeros_like(inside)
    if inside.any():
        box = []  # what is inside, and its surroundings
        for axis, step in enumerate(spacing):
            occupied = np.flatnonzero(inside.any(axis=tuple({0, 1, 2} - {axis})))
            radius = int(min(distance / step, inside.shape[axis])) + 1
            box.append(slice(max(0, int(occupied[0]) - radius), int(occupied[-1]) + radius + 1))
        away = edt.edt(np.ascontiguousarray(~inside[tuple(box)]), anisotropy=spacing)
        result[tuple(box)] = away <= distance + 1e-5
    return result
