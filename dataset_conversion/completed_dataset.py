"""The dataset.json of a data set with completed copies: what people annotated stays beside them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract, Protocol
from nnunet_labelset.contract.completed import COMPLETED, originals
from nnunet_labelset.dataset_conversion.statements import Completed
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import LISTED, NUM_TRAINING
from nnunet_labelset.nnunet.publish import COMPLETED_LABELS, COMPLETED_VOXELS
from nnunet_labelset.nnunet.raw import TRAINING, file_ending, raw_cases

SUFFIX = "__completed"


def copy_name(case: str) -> str:
    """Return the name of a completed copy."""
    return f"{case}{SUFFIX}"


def dataset_json_with_copies(
    before: Mapping[str, Any],
    contract: Contract,
    source: Path,
    target: Path,
    completed: Mapping[str, Completed],
    provenance: Mapping[str, Mapping[str, Any]],
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return dataset.json: the annotated cases in place, and the completed copies beside them.

    completed, provenance: by the case that was completed. labels: label maps, in the new data set,
    of cases that had none.
    """
    copies = {copy_name(case): result for case, result in completed.items()}
    after = _contract_with_copies(contract, originals(before), copies, source.name)
    files = _files_in_place(source, target, before)
    files = {case: entry for case, entry in files.items() if case in contract.cases}
    for case, label in (labels or {}).items():
        files[case]["label"] = label
    for case in completed:
        label = f"{COMPLETED_LABELS}/{copy_name(case)}{file_ending(before)}"
        files[copy_name(case)] = {**files[case], "label": label}
    entries = {
        copy_name(case): {
            "of": case,
            **provenance[case],
            "open_voxels": result.open_before,
            "completed_voxels": result.completed,
        }
        for case, result in completed.items()
    }
    voxels = f"{COMPLETED_VOXELS}/CASE: 1 where a model decided"
    kept = {key: before[key] for key in before if key not in (LISTED, "training", COMPLETED)}
    return {
        **kept,
        **after.to_dataset_json(),
        NUM_TRAINING: len(files),
        "name": target.name,
        LISTED: files,
        COMPLETED: {"cases": entries, "voxels": voxels},
    }


def _contract_with_copies(
    contract: Contract,
    made_by_model: Collection[str],
    completed: Mapping[str, Completed],
    dataset: str,
) -> Contract:
    """Return the contract of the annotated cases and of the new copies."""
    cases = {case: name for case, name in contract.cases.items() if case not in made_by_model}
    if taken := sorted(completed.keys() & cases.keys()):
        raise LabelSetError(f"case '{taken[0]}' exists already in {dataset}: rename it")
    protocols = {name: contract.protocols[name] for name in dict.fromkeys(cases.values())}
    names: dict[Protocol, str] = {}
    for case, result in completed.items():
        cases[case] = names.setdefault(result.protocol, f"completed_{len(names) + 1}")
    if taken := sorted(set(names.values()) & set(protocols)):
        raise LabelSetError(f"{dataset} has protocols of the names {some(taken)}: rename them")
    protocols |= {name: protocol for protocol, name in names.items()}
    has_ignore = contract.has_ignore or any(protocol.has_ignore for protocol in names)
    if has_ignore:
        protocols = {name: protocol.with_ignore() for name, protocol in protocols.items()}
    return replace(contract, protocols=protocols, cases=cases, has_ignore=has_ignore)


def _files_in_place(
    source: Path, target: Path, dataset_json: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the files of the annotated training cases, relative to the new data set."""
    made_by_model = originals(dataset_json)
    return {
        case.name: {
            "images": [_in_place(path, target) for path in case.images],
            "label": _in_place(case.label, target),
        }
        for case in raw_cases(source, dataset_json)
        if case.part == TRAINING and case.name not in made_by_model
    }


def _in_place(path: Path | None, target: Path) -> str:
    assert path is not None
    return os.path.relpath(path.resolve(), target.resolve())
