"""`annotate --mask`: outside of its mask an unlabelled voxel is background; inside it is one of the
missing leaves.

Value 0 cannot say both. Inside of the mask it becomes nnU-Net's `ignore`, which stands for the
missing leaves there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.datasets.annotate import Existing, Values
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import case_files
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.place import geometry_difference
from nnunet_labelset.io.text import listed, some
from nnunet_labelset.io.volume import integer_array, read_voxels, write_voxels
from nnunet_labelset.nnunet.names import LISTED
from nnunet_labelset.nnunet.raw import file_ending


@dataclass(frozen=True)
class Job:
    """A label map, its mask, and the file to write."""

    label_map: Path
    mask: Path
    target: Path


def find_masks(
    data: Existing, folder: Path, missing: Mapping[str, LabelSet], values: Values
) -> dict[str, Path]:
    """The masks of those cases that lack something, by case."""
    if LISTED in data.dataset_json:
        raise LabelSetError(
            "--mask: the label maps are listed in place by dataset.json, and sources are never changed"
        )
    files = case_files(folder, file_ending(data.dataset_json))
    found = {case: files[case] for case, leaves in missing.items() if leaves and case in files}
    if not found:
        named = some(case for case, leaves in missing.items() if leaves)
        raise LabelSetError(
            f"--mask {folder}: no mask of a case that lacks a label: expected files named as {named}"
        )
    ignored = [case for case in found if data.labels.num_leaves in values[case]]
    if ignored:
        raise LabelSetError(
            f"--mask: {some(ignored)}: has 'ignore' voxels, which mean something else already"
        )
    return found


@contextmanager
def masked_maps(
    data: Existing, masks: Mapping[str, Path], processes: int
) -> Iterator[dict[Path, Path]]:
    """New label maps in a folder that is there while the block runs, by the path of the old one."""
    with tempfile.TemporaryDirectory(prefix=".labelset_annotate_", dir=data.folder) as temporary:
        jobs = []
        for number, case in enumerate(case for case in data.cases if case.name in masks):
            assert case.label is not None
            target = Path(temporary, f"{number}{file_ending(data.dataset_json)}")
            jobs.append(Job(case.label, masks[case.name], target))
        work = partial(_write, ignore=data.labels.num_leaves)
        problems = [
            text for _, text in map_parallel(work, jobs, processes, "writing label maps") if text
        ]
        if problems:
            raise LabelSetError(
                listed(f"{len(problems)} problem(s), nothing was written:", problems)
            )
        yield {job.label_map: job.target for job in jobs}


def _write(job: Job, ignore: int) -> str | None:
    """Write a new label map; returns what is wrong with the mask."""
    array, place = read_voxels(job.label_map)
    mask, mask_place = read_voxels(job.mask)
    if difference := geometry_difference(place, mask_place):
        return f"{job.mask}: other geometry than the label map: {difference}"
    inside = mask > 0.5  # 1.00000006 after header scaling
    if not inside.any():
        return f"{job.mask}: the mask is empty"
    values = integer_array(array, job.label_map)
    new = np.where(inside & (values == 0), ignore, values)
    write_voxels(job.target, new.astype(np.min_scalar_type(ignore)), place)
    return None
