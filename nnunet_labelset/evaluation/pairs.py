"""Which files are scored against each other, and what is scored in each of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, Contract, LabelSet
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.evaluation.scores import Pair, Structure
from nnunet_labelset.io.files import case_files
from nnunet_labelset.io.text import some


@dataclass(frozen=True)
class Wanted:
    """What is scored, beside the leaves: unions under the leaf that names them or apart, regions,
    surfaces, lesions.
    """

    under_leaves: bool = True
    surfaces: bool = True
    regions: Mapping[str, LabelSet] = field(default_factory=dict)
    tolerance: Mapping[str, float] = field(
        default_factory=dict
    )  # mm, by name; "" is that of all others
    instances: Collection[str] = ()


LEAVES_AND_UNIONS = Wanted()


def find_pairs(
    folder_ref: str | Path,
    folder_pred: str | Path,
    contract: Contract,
    file_ending: str,
    chill: bool,
    wanted: Wanted = LEAVES_AND_UNIONS,
) -> tuple[list[Pair], list[str], list[str]]:
    """Pairs in the order of their names, then the cases without prediction and the predictions
    without reference.
    """
    for folder in (folder_ref, folder_pred):
        if not Path(folder).is_dir():
            raise LabelSetError(f"{folder}: no such folder")
    references, predictions = (
        case_files(folder_ref, file_ending),
        case_files(folder_pred, file_ending),
    )
    for folder, files in ((folder_ref, references), (folder_pred, predictions)):
        if not files:
            raise LabelSetError(f"{folder}: no *{file_ending} files")
    missing, extra = (
        sorted(references.keys() - predictions),
        sorted(predictions.keys() - references),
    )
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
            f"{len(unlisted)} case(s) without a protocol: {some(unlisted)}: add them to {BLOCK}.cases in dataset.json, "
            "or give --annotated FILE.csv with the columns case and annotated"
        )
    structures = {
        protocol: structures_of(contract, protocol, wanted) for protocol in contract.protocols
    }
    pairs = [
        Pair(
            case,
            contract.protocol_name(case),
            str(references[case]),
            str(predictions[case]),
            contract.leaf_names,
            contract.protocol(case).sets,
            structures[contract.protocol_name(case)],
            wanted.surfaces,
        )
        for case in cases
    ]
    return pairs, missing, extra


def structures_of(contract: Contract, protocol: str, wanted: Wanted) -> tuple[Structure, ...]:
    """The foreground leaves, then the label-sets of several leaves without background that a
    protocol knows: unions.

    A union that is stored under one of its leaves stands under this leaf, or apart like the others;
    it is scored once. A data set with regions has these instead.
    """
    sets, annotated = contract.protocols[protocol].sets, contract.protocols[protocol].annotated
    regions = {**(contract.regions or {}), **wanted.regions}
    unions = {
        labels for labels in sets if len(labels) > 1 and 0 not in labels
    }  # what may be background is none
    found: dict[str, tuple[LabelSet, bool]] = {}
    for leaf, name in enumerate(contract.leaf_names if contract.regions is None else ()):
        if wanted.under_leaves and sets[leaf] in unions and leaf in sets[leaf]:
            unions.remove(sets[leaf])
            found[name] = sets[leaf], True
        elif leaf:
            found[name] = frozenset([leaf]), leaf in annotated
    if contract.regions is None:
        found |= {
            union_name(labels, contract): (labels, True) for labels in sorted(unions, key=sorted)
        }
    found |= {
        name: (members, contract.protocols[protocol].annotates(members))
        for name, members in regions.items()
    }
    return tuple(
        Structure(
            *(name, members, known, wanted.tolerance.get(name, wanted.tolerance.get(""))),
            *(name in wanted.instances, name in (contract.regions or ())),
        )
        for name, (members, known) in found.items()
    )


def foreground(contract: Contract) -> dict[Any, str]:
    """What is scored by itself, as nnU-Net calls it: leaves by value, regions by their leaves."""
    if contract.regions is not None:
        keys = {name: tuple(sorted(members)) for name, members in contract.regions.items()}
        return {key if len(key) > 1 else key[0]: name for name, key in keys.items()}
    return {leaf: name for leaf, name in enumerate(contract.leaf_names) if leaf}


def read_regions(texts: Sequence[str], contract: Contract) -> dict[str, LabelSet]:
    """`whole tumour=edema+necrosis` as the user typed it; several leaves under a name of their own."""
    regions: dict[str, LabelSet] = {}
    for text in texts:
        name, equals, leaves = (part.strip() for part in text.partition("="))
        members = [leaf.strip() for leaf in leaves.split("+")]
        if (
            not name
            or not equals
            or name in {*contract.leaf_names, *(contract.regions or ()), *regions}
        ):
            raise LabelSetError(
                f"--regions '{text}': expected a new name and leaves: NAME=LEAF+LEAF"
            )
        for leaf in members:
            if leaf not in contract.leaf_names[1:]:
                raise LabelSetError(
                    f"--regions '{text}': unknown leaf '{leaf}'{did_you_mean(leaf, contract.leaf_names[1:])}"
                )
        regions[name] = frozenset(contract.leaf_names.index(leaf) for leaf in members)
    return regions


def union_name(labels: LabelSet, contract: Contract) -> str:
    name = "+".join(contract.leaf_names[leaf] for leaf in sorted(labels))
    return name if name not in contract.leaf_names else f"{name} (union)"


def union_members(pairs: Sequence[Pair], leaves: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """All that is scored in any pair beside the leaves, by name, in the order of its leaves."""
    found = {
        structure.name: structure.members
        for pair in pairs
        for structure in pair.structures
        if structure.name not in leaves
    }
    names = pairs[0].leaf_names
    ordered = sorted(found, key=lambda name: (sorted(found[name]), name))
    return {name: tuple(names[leaf] for leaf in sorted(found[name])) for name in ordered}
