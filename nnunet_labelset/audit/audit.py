"""Audit a data set: the steps from its folder to findings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nnunet_labelset.audit.findings import FEW, Finding, blind_labels, find
from nnunet_labelset.audit.predictions import (
    Predictions,
    find_predictions,
    gather_all,
    said_about,
)
from nnunet_labelset.contract import Contract
from nnunet_labelset.dataset_conversion.completions import check_labels
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.model_file import output_names
from nnunet_labelset.nnunet.models import read_splits
from nnunet_labelset.nnunet.names import DATASET
from nnunet_labelset.nnunet.raw import read_dataset
from nnunet_labelset.nnunet.recommendation import paired_labels


@dataclass(frozen=True)
class Audit:
    """What an audit has found; `remarks` tell what it could not see or read."""

    label_names: tuple[str, ...]
    predictions: Predictions
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...]


def audit_dataset(folder: Path, model: Path, processes: int) -> Audit:
    """Compare what the cases claim with the cross-validated predictions of a model."""
    dataset = folder.resolve().name
    dataset_json, contract = read_dataset(folder)
    has_probabilities = _tells_labels(model, contract, dataset)
    splits = read_splits(dataset)
    predictions = find_predictions(folder, dataset_json, contract, model, splits, has_probabilities)
    evidence = gather_all(predictions.cases, model, processes)
    names = contract.leaf_names
    sides = paired_labels(names, dataset_json)
    pairs = [(names.index(left), names.index(right)) for left, right in sides]
    remarks = [f"note: {note}" for note in said_about(predictions)]
    blind = [f"'{names[label]}'" for label in blind_labels(evidence)]
    if blind:
        remarks.insert(
            0,
            f"WARNING: an empty list says nothing about {some(blind, 20)}: fewer than {FEW} cases "
            "annotate it, or the model does not know it well enough to contradict a drawing",
        )
    return Audit(names, predictions, tuple(find(evidence, pairs)), tuple(remarks))


def _tells_labels(model: Path, contract: Contract, dataset: str) -> bool:
    """Tell whether the probabilities of a model are those of the labels of the data set.

    Where they are those of regions, or of one sigmoid per label, they are not read.
    """
    outputs = output_names(read_json(model / DATASET))
    is_sigmoid = set(outputs) == set(contract.leaf_names[1:])
    if contract.regions is not None or is_sigmoid:
        return False
    check_labels(model, contract, dataset)
    return True
