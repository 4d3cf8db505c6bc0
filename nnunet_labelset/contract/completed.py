"""Cases whose label-sets a model has completed: good to train on, never to score against.

`nnunet_labelset complete` writes where they come from into the key `completed` of `dataset.json`. A
completed case is a
copy: the case as it was annotated stays in the data set beside it, for validation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.text import some

COMPLETED = "completed"


def originals(dataset_json: Mapping[str, Any]) -> dict[str, str]:
    """Completed case -> the case that it was made from; empty for a data set without completed
    cases.
    """
    block = dataset_json.get(COMPLETED)
    if block is None:
        return {}
    cases = block.get("cases") if isinstance(block, Mapping) else None
    if not isinstance(cases, Mapping) or not all(
        isinstance(entry, Mapping) and isinstance(entry.get("of"), str) for entry in cases.values()
    ):
        raise LabelSetError(
            f"Expected '{COMPLETED}.cases' in dataset.json to name for each case the one it is "
            "made of"
        )
    return {str(case): entry["of"] for case, entry in cases.items()}


def refuse_completed(dataset_json: Mapping[str, Any], cases: Iterable[str]) -> None:
    """Fail if one of the cases holds what a model said: a score against it would praise the model
    for being itself.
    """
    completed = sorted(originals(dataset_json).keys() & set(cases))
    if completed:
        raise LabelSetError(
            f"{len(completed)} case(s) were completed by a model ({some(completed, 3)}): "
            "score against the cases that people annotated"
        )


def split_with_completed(
    dataset_json: Mapping[str, Any], fold: int | str, training: list[str], validation: list[str]
) -> tuple[list[str], list[str]]:
    """Return nnU-Net's split of a data set with completed cases; a fold that leaks is an error."""
    if fold == "all":
        return whole_split(dataset_json, training)
    check_split(dataset_json, training, validation)
    return training, validation


def check_split(
    dataset_json: Mapping[str, Any], training: Iterable[str], validation: Iterable[str]
) -> None:
    """Fail if a fold validates on a completed case, or trains on one whose original it validates
    on.
    """
    made_of = originals(dataset_json)
    refuse_completed(dataset_json, validation)
    leaked = sorted({made_of[case] for case in training if case in made_of} & set(validation))
    if leaked:
        raise LabelSetError(
            f"the fold trains on completed copies of its own validation cases ({some(leaked, 3)}): "
            "use the splits that 'nnunet_labelset complete' wrote"
        )


def whole_split(
    dataset_json: Mapping[str, Any], cases: Iterable[str]
) -> tuple[list[str], list[str]]:
    """All cases for training, completed copies in place of their originals, and all annotated cases
    for validation.
    """
    made_of = originals(dataset_json)
    replaced = set(made_of.values())
    cases = list(cases)
    return [case for case in cases if case not in replaced], [
        case for case in cases if case not in made_of
    ]
