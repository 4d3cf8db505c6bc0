"""New label maps for knowledge that value 0 cannot hold: `--mask`, `--field-of-view`, `--slices`.

Outside of a mask an unlabelled voxel is background, inside it is one of the missing labels. Outside
of a field of view, or of the slices that were drawn, it may be anything. Such voxels become
nnU-Net's `ignore`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from nnunet_labelset.contract.annotated_table import IMAGE_ENDINGS
from nnunet_labelset.datasets.annotate.declaration import (
    BEFORE,
    NOT_NAMED,
    Declaration,
    Declarations,
)
from nnunet_labelset.datasets.annotate.history import NEW_MAPS, check_folders
from nnunet_labelset.datasets.annotate.labelled import LabelledDataset, Values
from nnunet_labelset.errors import LabelSetError, near_miss
from nnunet_labelset.io.files import case_files, list_files
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.place import geometry_difference
from nnunet_labelset.io.text import listed, some
from nnunet_labelset.io.volume import integer_array, read_voxels, write_voxels
from nnunet_labelset.nnunet.names import LISTED
from nnunet_labelset.nnunet.raw import file_ending, raw_cases


@dataclass(frozen=True)
class MapJob:
    """A label map, the file to write, and what says which unlabelled voxels become `ignore`.

    Those inside `mask`, outside of `field_of_view`, or outside of `slices` (first, last; from 0).
    """

    label_map: Path
    target: Path
    mask: Path | None = None
    field_of_view: Path | None = None
    slices: tuple[int, int] | None = None

    @property
    def changes_voxels(self) -> bool:
        return bool(self.mask or self.field_of_view or self.slices)


def _masks(
    data: LabelledDataset, folder: Path, declarations: Declarations, values: Values
) -> dict[str, Path]:
    """Return the masks of the cases that lack a label."""
    lacking = [case for case, declaration in declarations.items() if declaration.missing]
    masks = _mask_files(data, folder, lacking, "--mask", "lacks a label")
    obstacles = {
        "has 'ignore' voxels, which mean something else already": [
            case for case in masks if data.labels.num_leaves in values[case]
        ],
        "by --scribbles an unlabelled voxel may be anything, by --mask a missing label only: "
        "choose one, or take the mask out of the folder": [
            case for case in masks if declarations[case].scribbles
        ],
        "has labels that are wrong, and its unlabelled voxels may be one of them: declare it in "
        "a call without --mask": [case for case in masks if declarations[case].wrong],
    }
    for text, cases in obstacles.items():
        if cases:
            raise LabelSetError(f"--mask: {some(cases)}: {text}")
    return masks


def _mask_files(
    data: LabelledDataset, folder: Path, cases: list[str], option: str, condition: str
) -> dict[str, Path]:
    _check_changeable(data, option)
    files = case_files(folder, file_ending(data.dataset_json))
    masks = {case: files[case] for case in cases if case in files}
    if not masks:
        raise LabelSetError(
            f"{option} {folder}: no mask of a case that {condition}: expected files named as "
            f"{some(cases)}"
        )
    return masks


def _check_changeable(data: LabelledDataset, option: str) -> None:
    if LISTED in data.dataset_json:
        raise LabelSetError(
            f"{option}: dataset.json lists label maps in other folders, which are never changed"
        )
    check_folders(data.folder)


def apply_masks(
    data: LabelledDataset,
    declarations: Declarations,
    values: Values,
    mask_folder: Path | None,
    view_folder: Path | None,
) -> tuple[Declarations, dict[str, MapJob]]:
    """Return the declarations with what masks say, and the label maps to write."""
    if mask_folder and (view_folder or _has_slices(declarations)):
        raise LabelSetError(
            "--mask and --field-of-view or --slices: `ignore` can mean only one of them in a case: "
            "choose one"
        )
    masks: dict[str, Path] = {}
    views: dict[str, Path] = {}
    if mask_folder:
        masks = _masks(data, mask_folder, declarations, values)
    if view_folder:
        _check_names(data, view_folder)
        cases = list(declarations)
        views = _mask_files(data, view_folder, cases, "--field-of-view", "is declared")
        _check_views(view_folder, declarations, views)
    if _has_slices(declarations):
        _check_changeable(data, "--slices")
    result = dict(declarations)
    jobs: dict[str, MapJob] = {}
    for case, declaration in declarations.items():
        target = data.folder / NEW_MAPS / f"{len(jobs)}{file_ending(data.dataset_json)}"
        mask = masks.get(case)
        view = views.get(case)
        job = MapJob(data.label_maps[case], target, mask, view, declaration.slices)
        if job.changes_voxels:
            jobs[case] = job
            result[case] = _with_masks(declaration, mask, view)
    return result, jobs


def _check_names(data: LabelledDataset, folder: Path) -> None:
    """Refuse image files that belong to no case: the case that was meant would lack its mask."""
    ending = file_ending(data.dataset_json)
    cases = [case.name for case in raw_cases(data.folder, data.dataset_json)]
    expected = {case + ending for case in cases}
    endings = (ending.lower(), *IMAGE_ENDINGS)
    problems = []
    for name in list_files(folder, depth=0):
        used = next((text for text in endings if name.lower().endswith(text)), None)
        if used is not None and name not in expected:
            problems.append(name + _meant_file(name[: -len(used)], cases, ending))
    if problems:
        raise LabelSetError(
            listed(
                f"--field-of-view {folder}: {len(problems)} file(s) that are named like no case, "
                f"which is CASE{ending}: rename them, or take them out of the folder:",
                problems,
            )
        )


def _meant_file(stem: str, cases: list[str], ending: str) -> str:
    """Return a hint at the case whose name starts or ends the name of a file, or is close to it."""
    word = stem.casefold()
    within = [case for case in cases if word.startswith(case.casefold())]
    within += [case for case in cases if word.endswith(case.casefold())]
    if within:
        return f"; did you mean '{max(within, key=len)}{ending}'?"
    return near_miss(stem, cases)


def view_remarks(
    data: LabelledDataset, folder: Path, declarations: Declarations, values: Values
) -> Iterator[str]:
    """Yield which masks of a folder are not used, and which cases count as examined everywhere."""
    files = case_files(folder, file_ending(data.dataset_json))
    if unused := [case for case in files if case not in declarations]:
        yield (
            f"--field-of-view {folder}: masks of {some(unused)} are not used: these cases are not "
            f"declared by this call"
        )
    unseen = [
        case
        for case, declaration in declarations.items()
        if declaration.reason == NOT_NAMED and case not in files
    ]
    # `ignore` may come from an earlier call
    if everywhere := [case for case in unseen if data.labels.num_leaves not in values[case]]:
        yield (
            f"--field-of-view {folder}: no mask of {some(everywhere)}, which no option names: "
            f"they count as examined everywhere"
        )


def _check_views(folder: Path, declarations: Declarations, views: Mapping[str, Path]) -> None:
    """Refuse a named case without a mask: it would count as examined completely."""
    unseen = [
        case
        for case, declaration in declarations.items()
        if declaration.reason not in (NOT_NAMED, BEFORE) and case not in views
    ]
    if unseen:
        raise LabelSetError(
            f"--field-of-view {folder}: no mask of case {some(unseen)}: add one, or declare such "
            "cases in a call without --field-of-view"
        )


def _has_slices(declarations: Declarations) -> bool:
    return any(each.slices is not None for each in declarations.values())


def _with_masks(declaration: Declaration, mask: Path | None, view: Path | None) -> Declaration:
    reasons = [declaration.reason, *(f"mask {path}" for path in (mask, view) if path)]
    return replace(
        declaration,
        masked=mask is not None,
        limited=view is not None,
        reason="; ".join(reasons),
    )


@contextmanager
def written_maps(
    data: LabelledDataset, jobs: Mapping[str, MapJob], processes: int
) -> Iterator[dict[Path, Path]]:
    """Write new label maps into a folder that exists while the block runs.

    Yields the new file of every label map.
    """
    folder = data.folder / NEW_MAPS
    try:
        work = partial(_write, ignore=data.labels.num_leaves)
        results = map_parallel(work, list(jobs.values()), processes, "writing label maps")
        problems = [text for _, text in results if text]
        if problems:
            raise LabelSetError(
                listed(f"{len(problems)} problem(s), nothing was written:", problems)
            )
        yield {job.label_map: job.target for job in jobs.values()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _drawn_slices(mask: np.ndarray) -> np.ndarray:
    """Return the numbers of the slices that hold a voxel of the mask."""
    return np.flatnonzero(mask.any(axis=tuple(range(1, mask.ndim))))


def _write(job: MapJob, ignore: int) -> str | None:
    """Write a new label map; return what is wrong with the mask."""
    array, place = read_voxels(job.label_map)
    values = integer_array(array, job.label_map)
    unknown = np.zeros(values.shape, bool)
    for path, is_mask in ((job.mask, True), (job.field_of_view, False)):
        if path is None:
            continue
        mask, mask_place = read_voxels(path)
        if difference := geometry_difference(place, mask_place):
            return f"{path}: other geometry than the label map: {difference}"
        inside = mask > 0.5  # 1.00000006 after header scaling
        if not inside.any():
            return f"{path}: the mask is empty"
        labelled = (values > 0) & (values != ignore)
        if not is_mask and labelled.any() and not (labelled & inside).any():
            return f"{path}: all labels lie outside of this mask: does it belong to another case?"
        unknown |= inside if is_mask else ~inside
    if job.slices is not None:
        first, last = job.slices
        if last >= len(values):
            return f"{job.label_map}: has {len(values)} slices: --slices {first}-{last} is outside"
        unknown[:first] = True
        unknown[last + 1 :] = True
        if (drawn := _drawn_slices(unknown & (values > 0) & (values != ignore))).size:
            return (
                f"{job.label_map}: labels in {drawn.size} slice(s) outside of --slices "
                f"{first}-{last}, the first is {drawn[0]}: slices are counted from 0"
            )
    new = np.where(unknown & (values == 0), ignore, values)
    write_voxels(job.target, new.astype(np.min_scalar_type(ignore)), place)
    return None
