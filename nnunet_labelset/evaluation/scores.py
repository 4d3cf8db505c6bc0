"""The scores of one case: what is annotated, counted and measured, leaf by leaf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import find_objects

from nnunet_labelset.contract import Contract, LabelSet
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.counts import hard_confusion, label_set_counts, membership_matrix
from nnunet_labelset.evaluation.surface import hd95
from nnunet_labelset.io.files import case_files
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import geometry_difference, integer_array, read_voxels

OUTCOMES = ("scored", "missed", "absent_in_reference", "absent_in_both", "unannotated")


@dataclass(frozen=True)
class Pair:
    """A reference and its prediction, with what the values of the reference stand for."""

    case: str
    protocol: str
    reference_file: str
    prediction_file: str
    leaf_names: tuple[str, ...]
    sets: tuple[LabelSet, ...]
    annotated: LabelSet
    unions: bool = True
    surfaces: bool = True

    def region(self, leaf: int) -> LabelSet:
        """What is scored under a leaf: itself, or the label-set that its value stands for."""
        labels = self.sets[leaf]
        is_union = leaf in labels and 0 not in labels  # what may be background is no structure
        return labels if self.unions and is_union else frozenset([leaf])


def find_pairs(
    folder_ref: str | Path,
    folder_pred: str | Path,
    contract: Contract,
    file_ending: str,
    chill: bool,
    **options: bool,
) -> tuple[list[Pair], list[str], list[str]]:
    """Pairs in the order of their names, then the cases without prediction and the predictions without reference."""
    for folder in (folder_ref, folder_pred):
        if not Path(folder).is_dir():
            raise LabelSetError(f"{folder}: no such folder")
    references, predictions = case_files(folder_ref, file_ending), case_files(folder_pred, file_ending)
    for folder, files in ((folder_ref, references), (folder_pred, predictions)):
        if not files:
            raise LabelSetError(f"{folder}: no *{file_ending} files")
    missing, extra = sorted(references.keys() - predictions), sorted(predictions.keys() - references)
    cases = sorted(references.keys() & predictions)
    if not cases:
        raise LabelSetError(f"{folder_ref} and {folder_pred} have no case in common: for example {some(missing, 2)}")
    problems = [f"{len(missing)} missing: {some(missing)}"] if missing else []
    problems += [f"{len(extra)} without reference: {some(extra)}"] if extra else []
    if problems and not chill:
        raise LabelSetError(f"{folder_pred}: {', and '.join(problems)}; --chill scores the others")
    contract.require_cases(cases)
    pairs = [
        Pair(
            case,
            contract.protocol_of(case),
            str(references[case]),
            str(predictions[case]),
            contract.leaf_names,
            contract.sets_of(case),
            contract.annotated_leaves(contract.protocol_of(case)),
            **options,
        )
        for case in cases
    ]
    return pairs, missing, extra


def score_pair(pair: Pair, reader: Any = None) -> dict[str, Any]:
    """Read both images and score them; the layout is that of `cases` in metrics.json.

    With a reader of nnU-Net, the files are read as nnU-Net reads them: any format, and only the shape must agree.
    """
    reference, prediction, spacing = _read(pair, reader)
    return {
        "case": pair.case,
        "protocol": pair.protocol,
        "reference_file": pair.reference_file,
        "prediction_file": pair.prediction_file,
        "shape": list(reference.shape),
        "spacing": spacing,
        "leaves": score_arrays(pair, reference, prediction, spacing),
    }


def score_arrays(
    pair: Pair, reference: np.ndarray, prediction: np.ndarray, spacing: Sequence[float]
) -> dict[str, dict[str, Any]]:
    """The scores of all foreground leaves by name; undefined scores are None."""
    num_leaves = len(pair.leaf_names)
    leaves = range(1, num_leaves)
    membership = membership_matrix(pair.sets, num_leaves)  # (K, C)
    regions = membership_matrix([pair.region(leaf) for leaf in leaves], num_leaves)  # (R, C)
    confusion = hard_confusion(reference, prediction, len(pair.sets), num_leaves)  # (K, C)
    counts = label_set_counts(confusion, membership, regions)
    volume = float(np.prod(spacing)) / 10 ** len(spacing)  # ml, or cm² in 2D
    boxes = (
        (_value_boxes(reference, len(pair.sets)), _value_boxes(prediction, num_leaves)) if pair.surfaces else ([], [])
    )
    scores = {}
    for row, leaf in enumerate(leaves):
        tp, fp, fn, tn = (int(count[row]) for count in counts)
        n_ref, n_pred = tp + fn, tp + fp
        union = sorted(pair.region(leaf)) if regions[row].sum() > 1 else None
        if union is None and leaf not in pair.annotated and n_ref == 0:
            outcome = "unannotated"
        elif n_ref:
            outcome = "scored" if n_pred else "missed"
        else:
            outcome = "absent_in_reference" if n_pred else "absent_in_both"
        defined = outcome not in ("unannotated", "absent_in_both")
        distance = None
        if pair.surfaces and outcome == "scored":
            distance = _region_hd95((reference, prediction), boxes, membership, regions[row], spacing)
        scores[pair.leaf_names[leaf]] = {
            "outcome": outcome,
            "union": None if union is None else [pair.leaf_names[member] for member in union],
            "dice": 2 * tp / (n_ref + n_pred) if defined else None,
            "iou": tp / (tp + fp + fn) if defined else None,
            "hd95": distance,
            "tp": tp,
            "fp": fp,
            "fn": fn,
            "tn": tn,
            "n_ref": n_ref,
            "n_pred": n_pred,
            "volume_ref": n_ref * volume,
            "volume_pred": int((confusion @ regions[row]).sum()) * volume,
        }
    return scores


def _read(pair: Pair, reader: Any) -> tuple[np.ndarray, np.ndarray, list[float]]:
    files = (pair.reference_file, pair.prediction_file)
    if reader is None:
        (reference, header), (prediction, other) = (read_voxels(file) for file in files)
        difference = geometry_difference(header, other)
        spacing = header.GetSpacing()[::-1]
    else:
        ((reference,), properties), ((prediction,), _) = (reader.read_seg(file) for file in files)
        same = reference.shape == prediction.shape
        difference = None if same else f"shape {reference.shape} and {prediction.shape}"
        spacing = properties["spacing"]
    if difference:
        raise LabelSetError(f"{files[0]} and {files[1]} differ in {difference}")
    if reference.ndim not in (2, 3):
        raise LabelSetError(f"{files[0]}: expected 2 or 3 dimensions, got {reference.ndim}")
    arrays = []
    expected = (len(pair.sets), len(pair.leaf_names))
    for voxels, path, num_values in zip((reference, prediction), files, expected, strict=True):
        array = integer_array(voxels, path, allow_nan=False)
        if array.min(initial=0) < 0 or array.max(initial=0) >= num_values:
            unknown = np.unique(array[(array < 0) | (array >= num_values)])
            raise LabelSetError(f"{path}: values {some(unknown)} are not labels: expected 0..{num_values - 1}")
        arrays.append(array.astype(np.uint8 if num_values <= 256 else np.int32, copy=False))
    return arrays[0], arrays[1], [float(size) for size in spacing]


def _value_boxes(array: np.ndarray, num_values: int) -> list[tuple[slice, ...] | None]:
    """The box of every value, None where it does not occur; the whole image for value 0, which is not searched."""
    whole = tuple(slice(0, size) for size in array.shape)
    return [whole, *find_objects(array, max_label=num_values - 1)]


def _region_hd95(
    images: tuple[np.ndarray, np.ndarray],
    boxes: tuple[Sequence[tuple[slice, ...] | None], Sequence[tuple[slice, ...] | None]],
    membership: np.ndarray,
    region: np.ndarray,
    spacing: Sequence[float],
) -> float:
    """HD95 of a leaf or union; voxels that count nowhere for it are taken out of both masks."""
    inside = np.logical_not(membership[:, ~region].any(axis=1))  # (K,)
    uncertain = np.logical_and(membership[:, region].any(axis=1), ~inside)  # (K,)
    used = [
        box
        for rows, found in zip((inside, region), boxes, strict=True)
        for row, box in enumerate(found)
        if rows[row] and box
    ]
    crop = tuple(
        slice(min(box.start for box in axis), max(box.stop for box in axis)) for axis in zip(*used, strict=True)
    )
    reference, prediction = images[0][crop], images[1][crop]
    reference_mask, prediction_mask = inside[reference], region[prediction]
    if uncertain.any():
        prediction_mask &= ~uncertain[reference]
    return hd95(reference_mask, prediction_mask, spacing)
