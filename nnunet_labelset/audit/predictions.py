"""The cross-validated predictions of a model, each case by the fold that did not train on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnunet_labelset.audit.evidence import Evidence, gather
from nnunet_labelset.contract import Contract, Protocol
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.scores import checked_labels
from nnunet_labelset.io.npz import read_slabs
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.models import held_out, reader_of
from nnunet_labelset.nnunet.names import PROBABILITIES, VALIDATION, fold_name
from nnunet_labelset.nnunet.raw import TRAINING, RawCase, file_ending, raw_cases


@dataclass(frozen=True)
class Prediction:
    """A training case, what the contract claims about it, and the files of its prediction."""

    case: RawCase
    protocol: Protocol
    file: Path
    probabilities: Path | None


@dataclass(frozen=True)
class Predictions:
    """All cases that can be audited, and the training cases that cannot."""

    cases: tuple[Prediction, ...]
    without: tuple[str, ...]
    could_have_probabilities: bool

    @property
    def without_probabilities(self) -> list[str]:
        return [item.case.name for item in self.cases if item.probabilities is None]


def find_predictions(
    folder: Path,
    dataset_json: Mapping[str, Any],
    contract: Contract,
    model: Path,
    splits: Sequence[Mapping[str, Any]],
    has_probabilities: bool = True,
) -> Predictions:
    """Return the predictions in `fold_X/validation` of a model, of its data set in `folder`.

    has_probabilities: read how likely each label is, where the model has stored it.
    """
    ending = file_ending(dataset_json)
    made_by_model = originals(dataset_json)
    folds = held_out(splits)
    items = []
    without = []
    for case in raw_cases(folder, dataset_json):
        if case.part != TRAINING or case.name in made_by_model:
            continue
        target = model / fold_name(folds.get(case.name, "")) / VALIDATION
        file = target / f"{case.name}{ending}"
        if case.name not in folds or not file.is_file():
            without.append(case.name)
            continue
        probabilities = target / f"{case.name}{PROBABILITIES}"
        is_told = has_probabilities and probabilities.is_file()
        items.append(
            Prediction(
                case=case,
                protocol=contract.protocol(case.name),
                file=file,
                probabilities=probabilities if is_told else None,
            )
        )
    if not items:
        raise LabelSetError(
            f"{model}: no predictions in {fold_name('X')}/{VALIDATION}: train all folds, best with "
            f"--npz"
        )
    return Predictions(tuple(items), tuple(without), has_probabilities)


def gather_all(
    predictions: Sequence[Prediction], model: Path, processes: int
) -> dict[str, Evidence]:
    """Return the evidence of every case, in the order of the predictions."""
    read = partial(read_evidence, reader=reader_of(model))
    evidence = {
        item.case.name: result
        for item, result in map_parallel(read, predictions, processes, "reading predictions")
    }
    return {item.case.name: evidence[item.case.name] for item in predictions}


def read_evidence(item: Prediction, reader: Any) -> Evidence:
    """Read the files of a case with nnU-Net's reader, whose axes its probabilities have."""
    values, spacing = _read_labels(reader, item.case.label, len(item.protocol.sets))
    predicted, _ = _read_labels(reader, item.file, item.protocol.num_leaves)
    if values.shape != predicted.shape:
        raise LabelSetError(
            f"{item.file}: shape {predicted.shape}, but the label map has {values.shape}: was the "
            f"case replaced since? Validate again with --val --npz"
        )
    probability = None
    if item.probabilities is not None:
        shape = (item.protocol.num_leaves, *values.shape)
        probability = _read_highest(item.probabilities, shape)
    millilitres = float(np.prod(spacing)) / 1000
    return gather(values, predicted, probability, item.protocol, millilitres)


def _read_highest(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return the probability of the most likely label `(*S)`, from the file of all `(C, *S)`."""
    highest = np.zeros(int(np.prod(shape[1:])), np.float32)
    try:
        for slab in read_slabs(path, "probabilities", shape):
            np.maximum(highest[slab.part], slab.voxels, out=highest[slab.part])
    except LabelSetError as error:
        raise LabelSetError(f"{error}: validate again with --val --npz") from None
    if np.isnan(highest).any():
        raise LabelSetError(f"{path}: has NaN: validate again with --val --npz")
    return highest.reshape(shape[1:])


def _read_labels(
    reader: Any, path: Path | None, num_values: int
) -> tuple[np.ndarray, Sequence[float]]:
    try:
        array, properties = reader.read_seg(str(path))
    except Exception as error:  # readers raise whatever they stumble over
        why = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise LabelSetError(f"{path}: not readable as a label map: {why[0]}") from None
    return checked_labels(array[0], str(path), num_values), properties["spacing"]


def said_about(predictions: Predictions) -> list[str]:
    """Return notes about what could not be read."""
    notes = []
    if predictions.without:
        names = some(predictions.without)
        notes.append(
            f"{len(predictions.without)} training case(s) without a prediction of a fold that did "
            f"not train on them: {names}"
        )
    if hard := predictions.without_probabilities:
        more = "; --npz (or --val --npz) makes the list more precise"
        notes.append(
            f"{len(hard)} case(s) without probabilities of labels: every predicted voxel counts as "
            f"certain{more if predictions.could_have_probabilities else ''}"
        )
    return notes
