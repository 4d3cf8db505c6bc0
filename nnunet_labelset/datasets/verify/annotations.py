"""The values of label maps against the contract: what a case declares and what it contains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, IGNORE, Contract, LabelSet
from nnunet_labelset.datasets.verify.case_facts import CaseFacts
from nnunet_labelset.datasets.verify.findings import Findings
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import DATASET
from nnunet_labelset.nnunet.raw import TRAINING, RawCase

Facts = Mapping[RawCase, CaseFacts]


@dataclass(frozen=True)
class Values:
    """What a label map with a protocol contains: voxels by value, and by leaf where a value stands
    for one leaf.
    """

    label: Path
    part: str
    protocol: str
    sets: tuple[LabelSet, ...]
    values: Mapping[int, int]
    own: Mapping[int, int]


def check_annotations(
    contract: Contract, dataset_json: Mapping[str, Any], facts: Facts, found: Findings
) -> None:
    """All rules about values; what cannot be known because a file is unreadable is not claimed."""
    block = dataset_json.get(BLOCK) or {}
    declared: list[Values] = []
    for case, fact in facts.items():
        if fact.values is None or case.label is None:
            continue
        _check_values(contract, case.label, fact.values, found)
        if case.name in contract.cases:
            sets = contract.protocol(case.name).sets
            own = Counter[int]()
            for value, count in fact.values.items():
                if 0 <= value < len(sets) and len(sets[value]) == 1:
                    own[min(sets[value])] += count
            declared.append(
                Values(case.label, case.part, contract.cases[case.name], sets, fact.values, own)
            )
    for values in declared:
        _check_ignore(contract, values, IGNORE in block["protocols"][values.protocol], found)
    _check_unannotated(contract, declared, found)
    if all(fact.values is not None for fact in facts.values()):
        _check_leaves(contract, [values for values in declared if values.part == TRAINING], found)


def _check_values(
    contract: Contract, label: Path, values: Mapping[int, int], found: Findings
) -> None:
    last = len(contract.value_names) - 1
    unknown = {value: count for value, count in values.items() if not 0 <= value <= last}
    if unknown:
        counts = some(f"{value} ({count} voxels)" for value, count in unknown.items())
        fix = "map them to a label or declare them"
        if not contract.has_ignore and last + 1 in unknown:
            fix += f"; if {last + 1} marks unannotated voxels, declare '{IGNORE}': {last + 1}"
        found.error(label, f"values that 'labels' (0..{last}) does not declare: {counts}: {fix}")


def _check_ignore(contract: Contract, case: Values, mentioned: bool, found: Findings) -> None:
    """The reserved value in a case whose protocol does not use it; a case without any information."""
    if not contract.has_ignore:
        return
    if not mentioned and (ignored := case.values.get(contract.num_leaves)):
        found.warning(
            case.label,
            f"the protocol does not mention '{IGNORE}', but voxels have it: they count as plain ignored; to learn from "
            f'them, say what they may be: "{IGNORE}": [leaves]',
            f"protocol '{case.protocol}', {ignored / sum(case.values.values()):.1%} of the voxels",
        )
    if all(
        0 <= value < len(case.sets) and case.sets[value] == contract.full_set
        for value in case.values
    ):
        found.warning(
            case.label, "every voxel is ignored: nothing can be learnt from this case; remove it"
        )


def _check_unannotated(contract: Contract, declared: list[Values], found: Findings) -> None:
    """Leaves that a larger label-set declares unannotated, but that also occur by a value of their
    own.

    A case that has all of them and no voxel of a larger label-set, or some of them and nothing that
    its protocol annotates, was given the protocol of another: an error. That some occur is right
    for a disputed structure between annotated ones (all leaves of its label-set occur by
    themselves, and it has a value of its own) and for drawings in a case where no leaf is complete:
    a warning. Where a protocol leaves some of the leaves of a label-set out and others not, either
    the voxels or the protocol are wrong: an error, case by case.
    """
    foreground = contract.full_set - {0}
    occurring: dict[str, set[int]] = {}
    for case in declared:
        occurring.setdefault(case.protocol, set()).update(case.own)
    for case in declared:
        protocol = contract.protocols[case.protocol]
        stated = protocol.stated_sets.items()
        larger = {v: s - {0} for v, s in stated if len(s) > 1}  # {0} is everywhere
        vouched = protocol.vouched
        unannotated = frozenset().union(*larger.values()) - vouched
        drawn = unannotated & set(case.own)
        annotated = protocol.annotated - {0}
        detail = f"protocol '{case.protocol}'"
        open_here = [leaves for value, leaves in larger.items() if value and value in case.values]
        every = drawn == unannotated and not open_here
        disputed = any(leaves <= set(case.own) for leaves in open_here)
        if drawn and (every or (annotated and annotated.isdisjoint(case.own) and not disputed)):
            also = (
                "" if every else f", and none of what it annotates ({_names(contract, annotated)})"
            )
            found.error(
                case.label,
                f"has voxels of {'all that' if every else 'what'} its protocol leaves out ({_names(contract, drawn)})"
                f"{also}: give the case the protocol that it was drawn by (were two cases swapped?), or correct the "
                f"values",
                detail,
            )
            continue
        reported: set[int] = set()
        for value, leaves in larger.items():
            here = (leaves - vouched) & set(case.own)
            if not here:
                continue
            meaning = (
                f"'{contract.value_names[value]}' may be {{{_names(contract, case.sets[value])}}}"
            )
            if (value and leaves - vouched <= occurring[case.protocol]) or leaves == foreground:
                found.warning(
                    case.label,
                    f"{meaning}, but {_names(contract, here)} also occur by themselves: fine for partly drawn "
                    f"structures; for disputed voxels between annotated leaves, vouch for these in the protocol "
                    f'("{contract.leaf_names[min(here)]}": ["{contract.leaf_names[min(here)]}"]); else remove what is '
                    f"annotated completely from the label-set",
                    detail,
                )
                continue
            for leaf in sorted(here - reported):
                reported.add(leaf)
                name = contract.leaf_names[leaf]
                found.error(
                    case.label,
                    f"voxels are '{name}', which the protocol declares unannotated ({meaning}): correct the values if "
                    f"they are something else; if '{name}' is annotated here, give the case a protocol without "
                    f"'{name}' in that label-set",
                    f"{detail}, {case.own[leaf]} voxels",
                )


def _names(contract: Contract, leaves: Iterable[int]) -> str:
    return some((contract.leaf_names[leaf] for leaf in sorted(leaves)), 8)


def _check_leaves(contract: Contract, training: list[Values], found: Findings) -> None:
    """Leaves that no case annotates, and annotated leaves that do not occur: forgotten, or really
    not there?
    """
    everywhere = {leaf for case in training for leaf in case.own}
    annotated = {leaf for case in training for leaf in contract.protocols[case.protocol].annotated}
    present = [
        case.sets[value]
        for case in training
        for value in case.values
        if 0 <= value < len(case.sets)
    ]
    if training and all(0 in labels for labels in present):
        found.error(
            DATASET,
            "nothing can be learnt: every voxel of every training case may be background: add annotated cases, or "
            "correct the protocols",
        )
    for leaf in (
        range(1, contract.num_leaves) if training else ()
    ):  # background is often part of a larger label-set
        name = contract.leaf_names[leaf]
        if leaf not in annotated and leaf not in everywhere:
            # Only a warning: leaves may be withheld on purpose, and what they are not is learnt all
            # the same.
            found.warning(
                DATASET, f"leaf '{name}' is annotated in no training case: add cases or remove it"
            )
        elif leaf in annotated and leaf not in everywhere:
            found.warning(
                DATASET,
                f"leaf '{name}' is declared annotated, but has no voxel in any training case",
            )
    for case in training:
        for leaf in sorted(
            (contract.protocols[case.protocol].annotated & everywhere) - set(case.own) - {0}
        ):
            found.warning(
                case.label,
                f"'{contract.leaf_names[leaf]}' is declared annotated, but no voxel has it: fine if there is none in "
                f"the image; if it was not drawn, the case needs a protocol that leaves it out",
                f"protocol '{case.protocol}'",
            )
