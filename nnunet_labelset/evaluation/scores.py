"""The scores of one case: what is annotated, counted and measured, leaf by leaf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.contract.protocol import membership_matrix, relation
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.counts import hard_confusion, label_set_counts
from nnunet_labelset.evaluation.instances import match_instances
from nnunet_labelset.evaluation.metric import METRICS, Measured
from nnunet_labelset.evaluation.results import (
    ABSENT,
    INVENTED,
    MISSED,
    SCORED,
    UNANNOTATED,
    Case,
    Score,
)
from nnunet_labelset.evaluation.surface import Mask, surface_distances
from nnunet_labelset.io.place import geometry_difference
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import integer_array, read_voxels

Boxes = Sequence[tuple[slice, ...] | None]


@dataclass(frozen=True)
class Structure:
    """What is scored under a name: a leaf, a region, or a union of leaves that count as one."""

    name: str
    members: LabelSet
    annotated: bool
    tolerance: float | None = (
        None  # mm, of NSD; None is the larger of 1 mm and the diagonal of a voxel
    )
    instances: bool = False
    is_region: bool = (
        False  # of the data set: its leaves are one by definition, not for want of a reference
    )

    @property
    def is_union(self) -> bool:
        return len(self.members) > 1 and not self.is_region


@dataclass(frozen=True)
class Pair:
    """A reference and its prediction, with what the values of the reference stand for."""

    case: str
    protocol: str
    reference_file: str
    prediction_file: str
    leaf_names: tuple[str, ...]
    sets: tuple[LabelSet, ...]
    structures: tuple[Structure, ...]
    surfaces: bool = True


def meaning_of(leaf_names: Sequence[str], sets: Sequence[LabelSet]) -> str:
    """What the values of a reference stand for, as a text to compare."""
    return ";".join("+".join(leaf_names[leaf] for leaf in sorted(labels)) for labels in sets)


def score_pair(pair: Pair, reader: Any = None) -> Case:
    """Read both images and score them.

    With a reader of nnU-Net, the files are read as nnU-Net reads them: any format, and only the
    shape must agree.
    """
    files = file_states(pair.reference_file, pair.prediction_file)
    reference, prediction, spacing = _read(pair, reader)
    return score_arrays(pair, reference, prediction, spacing, files)


def file_states(*paths: str) -> tuple[tuple[int, ...], ...]:
    """Size and time of files: what changes when one is replaced."""
    found = [Path(path).stat() for path in paths]
    return tuple((file.st_size, file.st_mtime_ns) for file in found)


def score_arrays(
    pair: Pair,
    reference: np.ndarray,
    prediction: np.ndarray,
    spacing: Sequence[float],
    files: tuple[tuple[int, ...], ...] = (),
) -> Case:
    """The scores of all structures; undefined ones are None, and distances of missed ones, which
    have no image.
    """
    num_leaves = len(pair.leaf_names)
    membership = membership_matrix(pair.sets, num_leaves)  # (K, C)
    members = tuple(structure.members for structure in pair.structures)
    regions = membership_matrix(members, num_leaves)  # (R, C)
    confusion = hard_confusion(reference, prediction, len(pair.sets), num_leaves)  # (K, C)
    counts = label_set_counts(confusion, membership, regions)
    volume = float(np.prod(spacing)) / 10 ** len(spacing)  # ml, or cm² in 2D
    shape, sizes = (
        reference.shape,
        [size for size, n in zip(spacing, reference.shape, strict=True) if n > 1],
    )
    reference, prediction = (
        np.squeeze(reference),
        np.squeeze(prediction),
    )  # an axis of one voxel is none
    boxes: tuple[Boxes, Boxes] = ([], [])
    if sizes and (pair.surfaces or any(structure.instances for structure in pair.structures)):
        boxes = (_value_boxes(reference, len(pair.sets)), _value_boxes(prediction, num_leaves))
    scores = {}
    for row, structure in enumerate(pair.structures):
        tp, fp, fn, tn = (int(count[row]) for count in counts)
        outcome = _outcome(structure, tp + fn, tp + fp)
        surfaces, instances = None, None
        if boxes[0] and (
            outcome == SCORED or (structure.instances and outcome in (MISSED, INVENTED))
        ):
            masks = _masks((reference, prediction), boxes, membership, regions[row])
            surfaces = (
                surface_distances(masks[0], masks[1], sizes, masks[2]) if pair.surfaces else None
            )
            instances = match_instances(masks[0][:], masks[1][:]) if structure.instances else None
        tolerance = (
            max(1.0, float(np.linalg.norm(sizes)))
            if structure.tolerance is None
            else structure.tolerance
        )
        measured = Measured(
            tp,
            fp,
            fn,
            int((confusion @ regions[row]).sum()),
            volume,
            tolerance,
            surfaces,
            instances,
        )
        scores[structure.name] = Score(
            outcome,
            tuple(pair.leaf_names[leaf] for leaf in sorted(structure.members))
            if structure.is_union
            else None,
            *(tp, fp, fn, tn, tp + fn, tp + fp),
            _values(measured, outcome, pair.surfaces),
        )
    wrong = int(confusion[~membership].sum())
    return Case(
        *(pair.case, pair.protocol, pair.reference_file, pair.prediction_file),
        shape=tuple(shape),
        spacing=tuple(float(size) for size in spacing),
        known=int(confusion[~membership.all(axis=1)].sum()),
        known_wrong=wrong,
        known_wrong_volume=wrong * volume,
        files=files,
        meaning=meaning_of(pair.leaf_names, pair.sets),
        groups={},
        leaves=scores,
    )


def _outcome(structure: Structure, n_ref: int, n_pred: int) -> str:
    if not structure.annotated:
        return UNANNOTATED
    if n_ref:
        return SCORED if n_pred else MISSED
    return INVENTED if n_pred else ABSENT


def _values(measured: Measured, outcome: str, surfaces: bool) -> dict[str, float | None]:
    """All metrics. What is undefined, or not asked for, is None; volumes are known in any case."""
    values: dict[str, float | None] = {}
    for name, metric in METRICS.items():
        of_surface = metric.worst is not None
        if outcome in (UNANNOTATED, ABSENT) and metric.better:
            values[name] = None
        elif of_surface and outcome in (MISSED, INVENTED):
            values[name] = None if metric.is_distance or not surfaces else metric.worst
        else:
            values[name] = metric.compute(measured)
    return values


def _read(pair: Pair, reader: Any) -> tuple[np.ndarray, np.ndarray, list[float]]:
    files = (pair.reference_file, pair.prediction_file)
    arrays: list[np.ndarray] = []
    headers: list[Any] = []
    for path, num_values in zip(files, (len(pair.sets), len(pair.leaf_names)), strict=True):
        if reader is None:
            voxels, header = read_voxels(path)
        else:
            (voxels,), header = reader.read_seg(path)
        if voxels.ndim not in (2, 3):
            raise LabelSetError(f"{path}: expected 2 or 3 dimensions, got {voxels.ndim}")
        arrays.append(checked_labels(voxels, path, num_values))
        headers.append(header)
    if reader is None:
        difference = geometry_difference(*headers)
        spacing = headers[0].spacing[::-1]
    else:
        shapes = [array.shape for array in arrays]
        difference = None if shapes[0] == shapes[1] else f"shape {shapes[0]} and {shapes[1]}"
        spacing = headers[0]["spacing"]
    if difference:
        raise LabelSetError(f"{files[0]} and {files[1]} differ in {difference}")
    return arrays[0], arrays[1], [float(size) for size in spacing]


def checked_labels(voxels: np.ndarray, path: str, num_values: int) -> np.ndarray:
    """Small integers, because a volume may be large; other values than labels are an error."""
    array = integer_array(voxels, path, allow_nan=False)
    if array.min(initial=0) < 0 or array.max(initial=0) >= num_values:
        unknown = np.unique(array[(array < 0) | (array >= num_values)])
        raise LabelSetError(
            f"{path}: values {some(unknown)} are not labels: expected 0..{num_values - 1}"
        )
    return array.astype(np.uint8 if num_values <= 256 else np.int32, copy=False)


def _value_boxes(array: np.ndarray, num_values: int) -> list[tuple[slice, ...] | None]:
    """The box of every value, None where it does not occur; the whole image for value 0, which is
    not searched.
    """
    whole = tuple(slice(0, size) for size in array.shape)
    return [whole, *scipy.ndimage.find_objects(array, max_label=num_values - 1)]


def _masks(
    images: tuple[np.ndarray, np.ndarray],
    boxes: tuple[Boxes, Boxes],
    membership: np.ndarray,
    region: np.ndarray,
) -> tuple[Mask, Mask, Mask | None]:
    """A leaf or union in reference and prediction, cropped; voxels that count nowhere for it are in
    neither mask.
    """
    inside, outside = (side[:, 0] for side in relation(membership, region[None]))  # (K,)
    uncertain = ~inside & ~outside  # (K,)
    used = [
        box
        for rows, found in zip((inside, region), boxes, strict=True)
        for row, box in enumerate(found)
        if rows[row] and box
    ]
    crop = tuple(
        slice(max(min(box.start for box in axis) - 1, 0), max(box.stop for box in axis) + 1)
        for axis in zip(*used, strict=True)
    )
    reference, prediction = images[0][crop], images[1][crop]
    occurs = any(box for row, box in enumerate(boxes[0]) if uncertain[row])
    unknown = Mask(uncertain, reference) if occurs else None
    return Mask(inside, reference), Mask(region, prediction, unknown), unknown
