"""Which files are scored against each other, and what is scored in each of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nnunet_labelset.contract import Contract, LabelSet
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.scores import Pair, Structure
from nnunet_labelset.io.files import case_files
from nnunet_labelset.io.text import some


def find_pairs(
    folder_ref: str | Path,
    folder_pred: str | Path,
    contract: Contract,
    file_ending: str,
    chill: bool,
    surfaces: bool = True,
    under_leaves: bool = True,
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
    structures = {
        protocol: structures_of(contract, protocol, under_leaves)
        for protocol in {contract.protocol_of(case) for case in cases}
    }
    pairs = [
        Pair(
            case,
            contract.protocol_of(case),
            str(references[case]),
            str(predictions[case]),
            contract.leaf_names,
            contract.sets_of(case),
            structures[contract.protocol_of(case)],
            surfaces,
        )
        for case in cases
    ]
    return pairs, missing, extra


def structures_of(contract: Contract, protocol: str, under_leaves: bool = True) -> tuple[Structure, ...]:
    """The foreground leaves, then the label-sets of several leaves without background that a protocol knows: unions.

    A union that is stored under one of its leaves stands under this leaf, or apart like the others; it is scored once.
    """
    sets, annotated = contract.protocols[protocol], contract.annotated_leaves(protocol)
    unions = {labels for labels in sets if len(labels) > 1 and 0 not in labels}  # what may be background is none
    structures = []
    for leaf, name in enumerate(contract.leaf_names):
        if under_leaves and sets[leaf] in unions and leaf in sets[leaf]:
            unions.remove(sets[leaf])
            structures.append(Structure(name, sets[leaf], True))
        elif leaf:
            structures.append(Structure(name, frozenset([leaf]), leaf in annotated))
    for labels in sorted(unions, key=sorted):
        structures.append(Structure(union_name(labels, contract), labels, True))
    return tuple(structures)


def union_name(labels: LabelSet, contract: Contract) -> str:
    name = "+".join(contract.leaf_names[leaf] for leaf in sorted(labels))
    return name if name not in contract.leaf_names else f"{name} (union)"


def union_members(pairs: list[Pair]) -> Mapping[str, tuple[str, ...]]:
    """All unions of all pairs that stand apart, by name, in the order of their leaves."""
    found = {
        structure.name: structure.members
        for pair in pairs
        for structure in pair.structures
        if structure.name not in pair.leaf_names
    }
    names = pairs[0].leaf_names
    ordered = sorted(found, key=lambda name: (sorted(found[name]), name))
    return {name: tuple(names[leaf] for leaf in sorted(found[name])) for name in ordered}
