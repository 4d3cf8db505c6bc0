"""Which cases a model can complete: those with larger label-sets, each by the fold that did not
train on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import IGNORE, Contract, Protocol
from nnunet_labelset.contract.completed import check_split, originals
from nnunet_labelset.errors import LabelSetError, near_miss
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.models import held_out
from nnunet_labelset.nnunet.names import (
    DATASET,
    PROBABILITIES,
    SPLITS,
    TRAINED,
    VALIDATED,
    VALIDATION,
    fold_name,
)
from nnunet_labelset.nnunet.raw import TRAINING, RawCase, raw_cases


@dataclass(frozen=True)
class Completion:
    """A case, and what the fold that did not train on it predicts there."""

    case: RawCase
    protocol: Protocol
    fold: int
    probabilities: Path


def check_labels(model: Path, contract: Contract, dataset: str) -> None:
    """Fail unless the channels of the model's probabilities are the leaves of the data set, in
    their order.
    """
    labels = read_json(model / DATASET).get("labels")
    trained = (
        {name: value for name, value in labels.items() if name != IGNORE}
        if isinstance(labels, Mapping)
        else {}
    )
    leaves = {name: value for value, name in enumerate(contract.leaf_names)}
    if trained != leaves:
        differ = sorted(
            name for name in {**leaves, **trained} if trained.get(name) != leaves.get(name)
        )
        raise LabelSetError(
            f"{model / DATASET}: labels of the model ({some(differ)}) are not those of {dataset}: "
            "use a model that was trained with the current labels"
        )


def find_completions(
    folder: Path,
    dataset_json: Mapping[str, Any],
    contract: Contract,
    model: Path,
    splits: Sequence[Mapping[str, Any]],
) -> tuple[list[Completion], list[str]]:
    """The training cases with larger label-sets, each with the prediction of the fold that held it
    out.

    Cases that no fold holds out are named apart: they stay as annotated.
    """
    made_by_model = originals(dataset_json)
    cases = [case for case in raw_cases(folder, dataset_json) if case.part == TRAINING]
    for number, split in enumerate(splits):
        _check_fold(dataset_json, split, {case.name for case in cases}, f"fold {number}")
    folds = held_out(splits)
    items, without_fold, missing = [], [], {}
    for case in cases:
        if case.name in made_by_model:
            continue
        protocol = contract.protocol(case.name)
        if all(len(labels) == 1 for labels in protocol.sets):
            continue
        fold = folds.get(case.name)
        if fold is None:
            without_fold.append(case.name)
            continue
        file = model / fold_name(str(fold)) / VALIDATION / f"{case.name}{PROBABILITIES}"
        if file.is_file():
            items.append(Completion(case, protocol, fold, file))
        else:
            missing[case.name] = fold
    if missing:
        raise LabelSetError(
            f"{model}: no probabilities of {len(missing)} case(s) ({some(missing, 3)}): "
            f"train fold(s) {some(sorted(set(missing.values())), 10)} with --npz (or --val --npz)"
        )
    if not items:
        raise LabelSetError(
            f"{folder}: no case of a validation fold has a larger label-set: nothing to complete"
        )
    return items, without_fold


def _check_fold(
    dataset_json: Mapping[str, Any], split: Mapping[str, Any], cases: Collection[str], fold: str
) -> None:
    for case in (*split[TRAINED], *split[VALIDATED]):
        if case not in cases:
            raise LabelSetError(
                f"{SPLITS}, {fold}: no training case '{case}'{near_miss(case, cases)}: make the "
                f"splits again"
            )
    try:
        check_split(dataset_json, split[TRAINED], split[VALIDATED])
    except LabelSetError as error:
        raise LabelSetError(f"{SPLITS}, {fold}: {error}") from None
