"""From files to the scores of a case: what is annotated, counted and measured, label by label."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.protocol import Protocol, membership_matrix
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.counts import hard_confusion, label_set_counts
from nnunet_labelset.evaluation.instances import Instances, match_instances
from nnunet_labelset.evaluation.metric import METRICS, VOLUMES, Kind, Measured, Metric
from nnunet_labelset.evaluation.results import (
    DEFAULT_OPTIONS,
    PRESENT,
    Case,
    Outcome,
    Pair,
    Score,
    ScoringOptions,
    Structure,
    structures_of,
)
from nnunet_labelset.evaluation.surface import (
    DIGITS,
    Box,
    Mask,
    SurfaceDistances,
    reference_elements,
    surface_distances,
)
from nnunet_labelset.io.files import case_files, reason
from nnunet_labelset.io.place import geometry_difference
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import integer_array, read_voxels

Boxes = Sequence[Box | None]
FileStates = tuple[tuple[int, ...], ...]
SMALLEST_TOLERANCE = 1.0  # mm


@dataclass(frozen=True)
class Pairs:
    """Pairs in the order of their names, cases without prediction, predictions without
    reference.
    """

    pairs: tuple[Pair, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]


def find_pairs(
    folder_ref: str | Path,
    folder_pred: str | Path,
    contract: Contract,
    file_ending: str,
    chill: bool,
    options: ScoringOptions = DEFAULT_OPTIONS,
) -> Pairs:
    """Return the pairs of two folders; what has no partner is an error unless `chill`."""
    references = _listed(folder_ref, file_ending)
    predictions = _listed(folder_pred, file_ending)
    if os.path.samefile(folder_ref, folder_pred):
        raise LabelSetError(
            f"{folder_pred}: references and predictions are the same folder: name two folders"
        )
    missing = sorted(references.keys() - predictions)
    extra = sorted(predictions.keys() - references)
    cases = sorted(references.keys() & predictions)
    if not cases:
        raise LabelSetError(
            f"{folder_ref} and {folder_pred} have no case in common: for example {some(missing, 2)}"
        )
    if not chill:
        _check_partners(folder_pred, missing, extra)
    contract.require_cases(
        cases, ", or give --annotated FILE.csv with the columns case and annotated"
    )
    structures = {name: structures_of(contract, name, options) for name in contract.protocols}
    pairs = tuple(
        Pair(
            case=case,
            protocol_name=contract.protocol_name(case),
            protocol=contract.protocol(case),
            reference_file=str(references[case]),
            prediction_file=str(predictions[case]),
            label_names=contract.leaf_names,
            structures=structures[contract.protocol_name(case)],
            surfaces=options.surfaces,
            cap=options.cap,
        )
        for case in cases
    )
    return Pairs(pairs, tuple(missing), tuple(extra))


def _check_partners(folder: str | Path, missing: Sequence[str], extra: Sequence[str]) -> None:
    problems = [f"{len(missing)} missing: {some(missing)}"] if missing else []
    problems += [f"{len(extra)} without reference: {some(extra)}"] if extra else []
    if problems:
        raise LabelSetError(f"{folder}: {', and '.join(problems)}; --chill scores the others")


def _listed(folder: str | Path, file_ending: str) -> dict[str, Path]:
    """Return the files of a folder by case; an empty folder or a file that cannot be opened is an
    error.
    """
    try:
        os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise LabelSetError(f"{folder}: no such folder") from None
    except OSError as error:  # no permission, a loop of links
        raise LabelSetError(f"{folder}: not readable: {reason(error)}") from None
    files = case_files(folder, file_ending)
    if not files:
        raise LabelSetError(f"{folder}: no *{file_ending} files")
    if broken := [str(path) for path in files.values() if not os.path.isfile(path)]:
        raise LabelSetError(
            f"{some(broken)}: not a file, or a link that leads nowhere: remove or replace it"
        )
    return files


def meaning_of(label_names: Sequence[str], protocol: Protocol) -> str:
    """Return what the values of a reference stand for, as a text to compare."""
    sets = ("+".join(label_names[leaf] for leaf in sorted(members)) for members in protocol.sets)
    vouched = "+".join(label_names[leaf] for leaf in sorted(protocol.vouched))
    return ";".join(sets) + (f"; vouched {vouched}" if vouched else "")


def score_pair(pair: Pair, reader: Any = None) -> Case:
    """Read both images and score them.

    With a reader of nnU-Net, the files are read as nnU-Net reads them: any format, and only the
    shape must agree.
    """
    files = file_states(pair.reference_file, pair.prediction_file)
    reference, prediction, spacing = _read(pair, reader)
    return score_arrays(pair, reference, prediction, spacing, files)


def file_states(*paths: str) -> FileStates:
    """Return size and time of files: what changes when one is replaced."""
    states = [Path(path).stat() for path in paths]
    return tuple((state.st_size, state.st_mtime_ns) for state in states)


def default_tolerance(spacing: Sequence[float]) -> float:
    """Return the tolerance of NSD in mm: 1 mm, or the smallest voxel size where that is larger."""
    return max(SMALLEST_TOLERANCE, float(min(spacing)))


def score_arrays(
    pair: Pair,
    reference: np.ndarray,
    prediction: np.ndarray,
    spacing: Sequence[float],
    files: FileStates = (),
) -> Case:
    """Return the scores of all structures; undefined ones are None."""
    membership = pair.protocol.membership  # (V, C)
    members = tuple(structure.members for structure in pair.structures)
    regions = membership_matrix(members, len(pair.label_names))  # (R, C)
    confusion = hard_confusion(reference, prediction, *membership.shape)  # (V, C)
    images = _Images(pair, reference, prediction, spacing)
    scores = {
        structure.name: _score(images, structure, regions[row], confusion)
        for row, structure in enumerate(pair.structures)
    }
    wrong = int(confusion[~membership].sum())
    return Case(
        case=pair.case,
        protocol=pair.protocol_name,
        reference_file=pair.reference_file,
        prediction_file=pair.prediction_file,
        shape=tuple(reference.shape),
        spacing=tuple(float(size) for size in spacing),
        known=int(confusion[~membership.all(axis=1)].sum()),
        known_wrong=wrong,
        known_wrong_volume=wrong * images.volume,
        files=files,
        meaning=meaning_of(pair.label_names, pair.protocol),
        reference_digest=_digest(reference),
        worst_distance=images.worst_distance if pair.surfaces else None,
        leaves=scores,
    )


def _digest(reference: np.ndarray) -> str:
    """Return a few letters that differ between references, mirrored ones included."""
    content = hashlib.sha1(np.ascontiguousarray(reference).data, usedforsecurity=False)
    return f"{'x'.join(map(str, reference.shape))}:{content.hexdigest()[:16]}"


class _Images:
    """Both images of a pair, without axes of one voxel, and where each value lies in them."""

    def __init__(
        self,
        pair: Pair,
        reference: np.ndarray,
        prediction: np.ndarray,
        spacing: Sequence[float],
    ) -> None:
        self.pair = pair
        self.volume = float(np.prod(spacing)) / 10 ** len(spacing)  # ml, or cm² in 2D
        sides = zip(spacing, reference.shape, strict=True)
        self.spacing = [float(size) for size, voxels in sides if voxels > 1]
        diagonal = math.hypot(*np.multiply(spacing, reference.shape))
        self.worst_distance = round(pair.cap or diagonal, DIGITS)
        self.tolerance = default_tolerance(spacing)
        self.reference = np.squeeze(reference)
        self.prediction = np.squeeze(prediction)
        self.boxes: tuple[Boxes, Boxes] = ((), ())
        if self.spacing and (pair.surfaces or any(each.instances for each in pair.structures)):
            num_values, num_labels = pair.protocol.membership.shape
            self.boxes = (
                _value_boxes(self.reference, num_values),
                _value_boxes(self.prediction, num_labels),
            )

    def masks(self, region: np.ndarray) -> _Masks | None:
        """Return a structure in both images; None where a picture has no extent."""
        if not self.boxes[0]:
            return None
        inside, outside = (side[:, 0] for side in self.pair.protocol.relation(region[None]))  # (V,)
        uncertain = ~inside & ~outside  # (V,)
        reference_boxes, prediction_boxes = self.boxes
        boxes = [box for row, box in enumerate(reference_boxes) if inside[row] and box]
        boxes += [box for row, box in enumerate(prediction_boxes) if region[row] and box]
        if not boxes:
            return None
        occurs = any(box for row, box in enumerate(reference_boxes) if uncertain[row])
        unknown = Mask(uncertain, self.reference) if occurs else None
        return _Masks(
            reference=Mask(inside, self.reference),
            prediction=Mask(region, self.prediction),
            unknown=unknown,
            crop=_around(boxes, self.reference.shape),
        )


@dataclass(frozen=True)
class _Masks:
    """A structure in reference and prediction, and the voxels that count nowhere for it."""

    reference: Mask
    prediction: Mask
    unknown: Mask | None
    crop: Box  # with a margin of one voxel

    def surfaces(self, spacing: Sequence[float], largest: float) -> SurfaceDistances | None:
        return surface_distances(
            self.reference, self.prediction, spacing, self.unknown, self.crop, largest
        )

    def instances(self) -> Instances:
        prediction = self.prediction.cropped(self.crop)[:]
        if self.unknown is not None:
            prediction &= ~self.unknown.cropped(self.crop)[:]
        return match_instances(self.reference.cropped(self.crop)[:], prediction)

    def reference_has_surface(self) -> bool:
        return len(reference_elements(self.reference, self.unknown, self.crop)[1]) > 0


@dataclass(frozen=True)
class _Counted:
    """The voxels of a structure; `possible` ones may be it or not and were predicted as it,
    `elsewhere` are such voxels that were not. `disputed` ones are those of either that the protocol
    makes a statement about.
    """

    tp: int
    fp: int
    fn: int
    tn: int
    predicted: int
    possible: int
    elsewhere: int
    disputed: int

    @classmethod
    def of(cls, confusion: np.ndarray, protocol: Protocol, region: np.ndarray) -> _Counted:
        """Count a structure, bool `(C,)`, in the confusion matrix `(V, C)`."""
        counts = label_set_counts(confusion, protocol.membership, region[None])
        tp, fp, fn, tn = (int(count[0]) for count in counts)
        inside, outside = protocol.relation(region[None])
        either = ~(inside | outside)[:, 0]  # (V,)
        stated = [value for value in protocol.stated_sets if either[value]]
        predicted = confusion @ region  # (V,)
        possible = int(predicted[either].sum())
        return cls(
            tp=tp,
            fp=fp,
            fn=fn,
            tn=tn,
            predicted=int(predicted.sum()),
            possible=possible,
            elsewhere=int(confusion[either].sum()) - possible,
            disputed=int(confusion[stated].sum()),
        )


def _score(
    images: _Images, structure: Structure, region: np.ndarray, confusion: np.ndarray
) -> Score:
    pair = images.pair
    counted = _Counted.of(confusion, pair.protocol, region)
    outcome = _outcome(structure, counted)
    tolerance = images.tolerance if structure.tolerance is None else structure.tolerance
    surfaces, worst_distance = _surfaces(images, outcome, region)
    instances = None
    if structure.instances and outcome in PRESENT and (masks := images.masks(region)):
        instances = masks.instances()
    measured = Measured(
        tp=counted.tp,
        fp=counted.fp,
        fn=counted.fn,
        predicted=counted.predicted,
        volume=images.volume,
        tolerance=tolerance,
        surfaces=surfaces,
        instances=instances,
    )
    low, high = dice_bounds(counted.tp, counted.fp, counted.fn, counted.possible, counted.elsewhere)
    return Score(
        outcome=outcome,
        tp=counted.tp,
        fp=counted.fp,
        fn=counted.fn,
        tn=counted.tn,
        n_ref=counted.tp + counted.fn,
        n_pred=counted.tp + counted.fp,
        dice_low=low,
        dice_high=high,
        tolerance=tolerance if pair.surfaces else None,
        values={
            name: _value(metric, measured, outcome, structure, worst_distance)
            for name, metric in METRICS.items()
        },
    )


def _surfaces(
    images: _Images, outcome: Outcome, region: np.ndarray
) -> tuple[SurfaceDistances | None, float | None]:
    """Return the distances of a structure that is in both images, and the worst distance; both are
    None where the reference has no known surface.
    """
    if not images.pair.surfaces or not images.spacing:
        return None, None
    masks = images.masks(region) if outcome in (Outcome.SCORED, Outcome.MISSED) else None
    if masks is None:
        return None, images.worst_distance
    if outcome is Outcome.SCORED:
        surfaces = masks.surfaces(images.spacing, images.worst_distance)
        return surfaces, None if surfaces is None else images.worst_distance
    known = masks.unknown is None or masks.reference_has_surface()
    return None, images.worst_distance if known else None


def _outcome(structure: Structure, counted: _Counted) -> Outcome:
    """Return what became of a structure. Plain `ignore` disputes nothing: it is masked out, as in
    nnU-Net.
    """
    predicted = counted.tp + counted.fp
    if not structure.annotated:
        return Outcome.NOT_ANNOTATED
    if counted.tp + counted.fn:
        return Outcome.SCORED if predicted else Outcome.MISSED
    if counted.disputed:
        return Outcome.UNDECIDED
    return Outcome.INVENTED if predicted else Outcome.ABSENT


def _value(
    metric: Metric,
    measured: Measured,
    outcome: Outcome,
    structure: Structure,
    worst_distance: float | None,
) -> float | None:
    """Return a metric; None is undefined or not asked for. `worst_distance` is None without a
    surface in the reference.
    """
    if metric.kind is Kind.VOLUME and (outcome.is_compared or metric.name in VOLUMES):
        return metric.compute(measured)
    if outcome in (Outcome.MISSED, Outcome.INVENTED):
        return _worst(metric, measured, structure, worst_distance)
    if outcome is not Outcome.SCORED:
        return None
    return metric.compute(measured)


def _worst(
    metric: Metric, measured: Measured, structure: Structure, worst_distance: float | None
) -> float | None:
    """Return what a missed or invented structure gets."""
    if metric.is_distance:
        return worst_distance
    if metric.kind is Kind.SURFACE:
        return None if worst_distance is None else 0.0
    if metric.kind is Kind.INSTANCE:
        if not structure.instances:
            return None
        return metric.compute(measured) if not metric.better else 0.0
    return 0.0


def dice_bounds(
    tp: int, fp: int, fn: int, predicted: int, elsewhere: int
) -> tuple[float | None, float | None]:
    """Return the lowest and highest Dice over all references that fit the annotation.

    Of the voxels that may be the structure or not, `predicted` were predicted as it. The highest
    Dice has exactly these in the reference, the lowest has exactly the others.
    """
    size = 2 * tp + fp + fn
    if not size + predicted + elsewhere:
        return None, None  # in neither, whatever the reference is
    low = 2 * tp / (size + predicted + elsewhere)
    if not size + predicted:
        return low, 1.0  # nothing is predicted, and perhaps there is nothing
    return low, 2 * (tp + predicted) / (size + 2 * predicted)


def _read(pair: Pair, reader: Any) -> tuple[np.ndarray, np.ndarray, list[float]]:
    files = (pair.reference_file, pair.prediction_file)
    arrays: list[np.ndarray] = []
    headers: list[Any] = []
    for path, num_values in zip(files, pair.protocol.membership.shape, strict=True):
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
    """Return small integers, because a volume may be large; other values than labels are an
    error.
    """
    array = integer_array(voxels, path, allow_nan=False)
    if array.min(initial=0) < 0 or array.max(initial=0) >= num_values:
        unknown = np.unique(array[(array < 0) | (array >= num_values)])
        raise LabelSetError(
            f"{path}: values {some(unknown)} are not labels: expected 0..{num_values - 1}"
        )
    return array.astype(np.uint8 if num_values <= 256 else np.int32, copy=False)


def _value_boxes(array: np.ndarray, num_values: int) -> list[Box | None]:
    """Return the box of every value, None where it does not occur; the whole image for value 0,
    which is not searched.
    """
    whole = tuple(slice(0, size) for size in array.shape)
    return [whole, *scipy.ndimage.find_objects(array, max_label=num_values - 1)]


def _around(boxes: Sequence[Box], shape: tuple[int, ...]) -> Box:
    """Return the box around all boxes, one voxel wider where the image has one."""
    sides = zip(zip(*boxes, strict=True), shape, strict=True)
    return tuple(
        slice(max(min(box.start for box in side) - 1, 0), min(max(box.stop for box in side) + 1, n))
        for side, n in sides
    )
