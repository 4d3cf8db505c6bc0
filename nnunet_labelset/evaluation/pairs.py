"""Which files are scored against each other."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.contract.protocol import Protocol
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.structures import (
    DEFAULT_OPTIONS,
    ScoringOptions,
    Structure,
    structures_of,
)
from nnunet_labelset.io.files import case_files
from nnunet_labelset.io.text import some


@dataclass(frozen=True)
class Pair:
    """A reference and its prediction, what the values of the reference may be, and what to
    score.
    """

    case: str
    protocol_name: str
    protocol: Protocol
    reference_file: str
    prediction_file: str
    label_names: tuple[str, ...]
    structures: tuple[Structure, ...]
    surfaces: bool = True
    cap: float | None = None  # mm: the largest distance; None is the diagonal of the image


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
    problems = [f"{len(missing)} missing: {some(missing)}"] if missing else []
    problems += [f"{len(extra)} without reference: {some(extra)}"] if extra else []
    if problems and not chill:
        raise LabelSetError(f"{folder_pred}: {', and '.join(problems)}; --chill scores the others")
    if unlisted := [case for case in cases if case not in contract.cases]:
        raise LabelSetError(
            f"{len(unlisted)} case(s) without a protocol: {some(unlisted)}: add them to "
            f"{BLOCK}.cases in dataset.json, or give --annotated FILE.csv with the columns case "
            "and annotated"
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


def _listed(folder: str | Path, file_ending: str) -> dict[str, Path]:
    """Return the files of a folder by case; an empty folder or a file that cannot be opened is an
    error.
    """
    try:
        exists = os.path.isdir(folder)
    except OSError:
        exists = False
    if not exists:
        raise LabelSetError(f"{folder}: no such folder")
    files = case_files(folder, file_ending)
    if not files:
        raise LabelSetError(f"{folder}: no *{file_ending} files")
    if broken := [str(path) for path in files.values() if not os.path.isfile(path)]:
        raise LabelSetError(
            f"{some(broken)}: not a file, or a link that leads nowhere: remove or replace it"
        )
    return files


def union_members(pairs: Sequence[Pair], leaves: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return all that is scored in any pair beside the labels, by name, in the order of labels."""
    structures = frozenset().union(*(pair.structures for pair in pairs))
    members = {each.name: sorted(each.members) for each in structures if each.name not in leaves}
    names = pairs[0].label_names
    ordered = sorted(members, key=lambda name: (members[name], name))
    return {name: tuple(names[leaf] for leaf in members[name]) for name in ordered}
