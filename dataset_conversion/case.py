"""Convert one case: every file is read once, checked, and written once. Runs in the worker
processes.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy  # loads submodules on first use: most cases need none

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.dataset_conversion.meaning import (
    BACKGROUND,
    UNLABELLED,
    Interpretation,
    Mask,
    SourceProtocol,
    interpret,
)
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.raters import count_said
from nnunet_labelset.dataset_conversion.reading import CaseReader, counted
from nnunet_labelset.datasets.normalisation import measure_air
from nnunet_labelset.io.files import link_file, new_file, reason
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import Volume, count_values, write_voxels

# Masks are drawn or computed a little too large. More than this is not a rim, but tissue that
# nobody labelled.
LARGEST_UNLABELLED_SHARE = 0.05


def convert_case(job: CaseJob, folder: Path | None) -> CaseResult:
    """Read, check and write one case into the data set folder.

    With problems, or without folder, nothing is written. Whatever is wrong with a file is a problem
    of its case. What cannot be written ends the run.
    """
    conversion = _Conversion(job)
    try:
        volumes = conversion.read()
    except Exception as error:  # one odd file must not end the run of all the others
        why = f"{type(error).__name__}: {reason(error).strip()}".splitlines()[0]
        path = conversion.current or job.inputs[0]
        conversion.result.problems.append(f"{path}: not converted: {why}")
        return conversion.result
    if volumes and folder is not None:
        conversion.write(folder, *volumes)
    return conversion.result


class _Conversion(CaseReader):
    def read(self) -> tuple[list[Volume], Volume | None] | None:
        """Return the images and the label map to write, or None after noting the problems."""
        images = self.read_images()
        reference = images[0] if images else None
        labels = self.read_labels(reference) if self.job.labels else None
        mask = self.read_mask(reference) if self.job.mask else None
        values = self.convert_values(labels, mask) if labels is not None else None
        if self.result.problems or reference is None:
            return None
        self.check_mask_file()
        if self.job.mask_images is not None:
            images = self.mask_images(images, labels, mask)
        if self.result.problems:
            return None
        self.result.is_flat = reference.place.size[2:] in ((), (1,))
        if values is None:
            return images, None
        self.look_for_air(images, values)
        return images, Volume(values, replace(reference.place, components=1))

    def look_for_air(self, images: list[Volume], values: np.ndarray) -> None:
        arrays = [image.array for image in images]
        if self.job.looks_for_air and all(array.shape == values.shape for array in arrays):
            self.result.air = measure_air(arrays, values)

    def read_images(self) -> list[Volume]:
        """Return the images that can be read, after comparing their places."""
        images: list[Volume] = []
        for path in self.job.images:
            image = self.read_volume(path, image=True)
            if image is None:
                continue
            if images:
                self.check_geometry(image, path, images[0])
            images.append(image)
        return images

    def check_mask_file(self) -> None:
        if self.job.mask is not None or self.job.protocol.mask is not Mask.FILE:
            return
        if self.job.mask_images is not None:
            self.result.problems.append(f"{self.job.images[0]}: --mask-images: no mask file")
        else:
            self.result.notes.append(Note("no mask file"))

    def mask_images(
        self, images: list[Volume], labels: np.ndarray | None, mask: np.ndarray | None
    ) -> list[Volume]:
        """Return the images with 0 around the mask or, without mask, around what is labelled."""
        if mask is None and labels is not None:
            mask = labels != UNLABELLED
        if mask is None:
            self.result.problems.append(
                f"{self.job.images[0]}: --mask-images: this case has no mask"
            )
            return []
        assert self.job.mask_images is not None
        kept = dilate(mask, self.job.mask_images, images[0].place.spacing[::-1])
        pairs = zip(self.job.images, images, strict=True)
        return [self.masked(image, path, kept) for path, image in pairs]

    def convert_values(self, labels: np.ndarray, mask: np.ndarray | None) -> np.ndarray | None:
        """Return the values to write, or None after noting what contradicts the protocol."""
        job, result = self.job, self.result
        path = self.first_label_file
        counts = count_values(labels)
        said = count_said(counts, self.disputed) if self.disputed else counts
        meaning = interpret(replace(job.protocol, disputed=self.disputed), {*counts, *said}, counts)
        self.check_values(said, meaning, path)
        if mask is not None and mask.shape != labels.shape:
            return None  # the geometry problem has been noted
        if UNLABELLED in job.protocol.values and not job.protocol.is_final:
            mask = None  # the source says what an unlabelled voxel is
        if mask is not None:
            self.check_mask(labels, mask, meaning, path)
        if result.problems:
            return None
        result.protocol = meaning.protocol
        self.tell(meaning, counts)
        table = {value: meaning.values[value] for value in {*counts, UNLABELLED}}
        values = remap(labels, table, len(job.leaves))
        result.values = _written_counts(counts, table)
        if mask is not None and meaning.outside != table[UNLABELLED]:
            is_outside = ~mask & (labels == UNLABELLED)
            np.copyto(values, values.dtype.type(meaning.outside), where=is_outside)
            result.values = count_values(values)
        return values

    def check_values(self, counts: dict[int, int], meaning: Interpretation, path: Path) -> None:
        problems = self.result.problems
        known = {UNLABELLED, *self.job.protocol.values}
        undeclared = {value: count for value, count in counts.items() if value not in known}
        if undeclared:
            hint = "" if self.job.protocol.is_final else self.value_hint(next(iter(undeclared)))
            problems.append(f"{path}: undeclared values {counted(undeclared)}{hint}")
        for value in sorted(meaning.contradicted.keys() & counts.keys()):
            labels = meaning.contradicted[value]
            names = some(self.job.leaves[leaf] for leaf in sorted(labels))
            problems.append(
                f"{path}: {names} is declared unannotated but has {counts[value]} voxels"
            )
        background = _background_value(counts, self.job.protocol)
        if background is not None and meaning.not_drawn:
            problems.append(self.denial(background, meaning.not_drawn))
        if meaning.needs_mask and self.job.mask is None:
            problems.append(f"{path}: no mask file, but unannotated labels need one")

    def value_hint(self, value: int) -> str:
        """Return where an undeclared value is declared."""
        return f": say in [sources.{self.job.source}.labels] what they are: {value} = ..."

    def denial(self, background: int, not_drawn: LabelSet) -> str:
        """Return why unlabelled voxels, which have this value, are not certainly background."""
        names = [self.job.leaves[leaf] for leaf in sorted(not_drawn)]
        possible = ", ".join(f'"{name}"' for name in (self.job.leaves[0], *names))
        fix = "remove that line from" if background == UNLABELLED else f"write [{possible}] in"
        return (
            f"source '{self.job.source}': {background} = \"background\" says that unlabelled "
            f"voxels are certainly background, but {some(names, 10)} was not drawn: {fix} "
            f"[sources.{self.job.source}.labels]"
        )

    def check_mask(
        self, labels: np.ndarray, mask: np.ndarray, meaning: Interpretation, path: Path
    ) -> None:
        """Note labels outside of the mask, which are kept, and unlabelled voxels inside.

        Many of them mean that the case was not annotated completely.
        """
        unlabelled = labels == UNLABELLED
        outside = unlabelled.size - int(np.count_nonzero(unlabelled | mask))
        if outside:
            self.result.notes.append(
                Note("labelled voxels outside the mask, kept", detail=str(outside))
            )
        share = int(np.count_nonzero(unlabelled & mask)) / max(1, int(np.count_nonzero(mask)))
        too_many = share > LARGEST_UNLABELLED_SHARE and not self.job.fully_annotated
        if meaning.is_complete and too_many:
            self.result.problems.append(
                f"{path}: {share:.0%} of the mask of case '{self.job.case}' is unlabelled, "
                "although all labels were declared annotated: list those that are "
                "(--annotated FILE.csv), or confirm that the rest is background "
                "(--fully-annotated)"
            )
        elif share and self.job.protocol.mask is not Mask.BODY:
            is_background = meaning.inside == BACKGROUND
            what = "taken for background" if is_background else "not annotated"
            self.result.notes.append(
                Note("unlabelled inside the mask", what, f"{max(share, 0.0001):.2%}")
            )

    def tell(self, meaning: Interpretation, counts: dict[int, int]) -> None:
        """Note what happened to label-sets, and annotated labels without a voxel."""
        notes = self.result.notes
        for labels, whole in sorted(meaning.enlarged.items(), key=lambda pair: sorted(pair[0])):
            about = f"{self.names(labels)} as {self.names(whole)}"
            notes.append(Note("label-set stored as a larger one", about))
        if meaning.background_added:
            about = f"stored as {self.names(meaning.inside)}, because masks are not exact"
            notes.append(Note("one unannotated label", about))
        present = (meaning.label_set(value) for value in counts)
        seen = frozenset().union(*(labels for labels in present if len(labels) == 1))
        for leaf in sorted(meaning.protocol.annotated - seen - BACKGROUND):
            notes.append(Note("declared annotated, but without a voxel", self.job.leaves[leaf]))

    def names(self, labels: LabelSet) -> str:
        return "{" + ", ".join(self.job.leaves[leaf] for leaf in sorted(labels)) + "}"

    def masked(self, image: Volume, path: Path, kept: np.ndarray) -> Volume:
        """Return the image with 0 outside of `kept`; one that was masked before is copied."""
        if image.place.components > 1:
            kept = kept[..., None]
        array = np.where(kept, image.array, image.array.dtype.type(0))
        if np.array_equal(array, image.array):
            return image
        self.changed.add(path)
        return Volume(array, image.place)

    def write(self, folder: Path, images: list[Volume], labels: Volume | None) -> None:
        """Write the files; each is read back before it gets its name."""
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


def remap(labels: np.ndarray, table: Mapping[int, int], highest: int) -> np.ndarray:
    """Return `table[value]` for every voxel; every value that occurs must be in `table`.

    The result has the smallest unsigned type that holds `highest`.
    """
    dtype = np.min_scalar_type(highest)
    changed = {value: target for value, target in table.items() if value != target}
    if len(changed) <= 3:  # faster than a table, as most files hold the target values already
        result = labels.astype(dtype)
        for value, target in changed.items():
            np.copyto(result, dtype.type(target), where=labels == value)
        return result
    lookup = np.zeros(max(table) + 1, dtype)
    lookup[list(table)] = list(table.values())
    return lookup.take(labels, mode="clip")  # the mode that needs no second look at the values


def _written_counts(counts: Mapping[int, int], table: Mapping[int, int]) -> dict[int, int]:
    """Return the voxels of every new value, from those of the old ones."""
    written = Counter[int]()
    for value, count in counts.items():
        written[table[value]] += count
    return dict(written)


def dilate(inside: np.ndarray, distance: float, spacing: tuple[float, ...]) -> np.ndarray:
    """Return the voxels (z, y, x) that are at most `distance` mm away from what is inside."""
    result = np.zeros_like(inside)
    if inside.any():
        box = []  # what is inside, and its surroundings
        for axis, step in enumerate(spacing):
            occupied = np.flatnonzero(inside.any(axis=tuple({*range(inside.ndim)} - {axis})))
            radius = int(min(distance / step, inside.shape[axis])) + 1
            box.append(slice(max(0, int(occupied[0]) - radius), int(occupied[-1]) + radius + 1))
        away = scipy.ndimage.distance_transform_edt(~inside[tuple(box)], sampling=spacing)
        result[tuple(box)] = away <= distance + 1e-5
    return result


def _background_value(counts: Mapping[int, int], protocol: SourceProtocol) -> int | None:
    """Return the value of unlabelled voxels if the source says that it is background only.

    That is 0, or the most frequent value of a file without 0, such as 100 where somebody added 100
    to all values.
    """
    values = protocol.values
    value = UNLABELLED
    if UNLABELLED not in counts and UNLABELLED not in values:
        value = max(counts, key=lambda value: counts[value], default=UNLABELLED)
    return value if values.get(value) == BACKGROUND else None
