"""Whether scores still belong to the files that they were made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.annotated_table import contract_with_list
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.results import Evaluation
from nnunet_labelset.evaluation.scores import file_states, meaning_of
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.text import some


def read_contract(dataset_json: str | Path, annotated: str | None) -> Contract:
    """What the values stand for: dataset.json, or the table that was given instead of its cases."""
    content = read_json(dataset_json)
    return (
        contract_with_list(content, annotated) if annotated else Contract.from_dataset_json(content)
    )


def stale_results(results: Mapping[str, Evaluation]) -> list[str]:
    """A line for every method of which something has changed since `evaluate`; files that are gone
    cannot be asked.
    """
    return [
        f"'{method}': {changed}"
        for method, found in results.items()
        if (changed := _changed(found))
    ]


def require_fresh(results: Mapping[str, Evaluation]) -> None:
    """Fail with one line that names what has changed since `evaluate`."""
    if problems := stale_results(results):
        raise LabelSetError(f"scores are out of date: {'; '.join(problems)}: run 'evaluate' again")


def _changed(evaluation: Evaluation) -> str:
    """Return which references, predictions or protocols are not those that were scored, or ""."""
    changed: dict[str, list[str]] = {"reference": [], "prediction": [], "protocol": []}
    try:
        contract = read_contract(evaluation.settings.dataset_json, evaluation.settings.annotated)
        meanings = {
            case: meaning_of(contract.leaf_names, contract.protocol(case))
            for case in contract.cases
        }
    except LabelSetError:  # moved, like files that are gone
        meanings = {}
    for case in evaluation.cases:
        paths = (case.reference_file, case.prediction_file)
        for what, path, state in zip(changed, paths, case.files, strict=False):
            if _is_other_file(path, state):
                changed[what].append(case.case)
        if meanings.get(case.case, case.meaning) != case.meaning:
            changed["protocol"].append(case.case)
    return ", ".join(f"changed {what} of {some(cases)}" for what, cases in changed.items() if cases)


def _is_other_file(path: str, state: tuple[int, ...]) -> bool:
    """Tell whether a file has changed; one that is gone or out of reach cannot be asked."""
    try:
        return Path(path).is_file() and file_states(path)[0] != state
    except OSError:
        return False
