"""The values of label maps against the contract: what a case declares and what it contains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from nnunet_labelset.contract import BLOCK, IGNORE, Contract
from nnunet_labelset.datasets.verify.case_facts import CaseFacts
from nnunet_labelset.datasets.verify.findings import Findings
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.raw import TRAINING, RawCase

Facts = Mapping[RawCase, CaseFacts]


def check_annotations(contract: Contract, dataset_json: Mapping[str, Any], facts: Facts, found: Findings) -> None:
    """All rules about values; what cannot be known because a file is unreadable is not claimed."""
    declared: dict[str, dict[RawCase, dict[int, int]]] = {name: {} for name in contract.protocols}
    for case, fact in facts.items():
        if fact.values is None:
            continue
        _check_values(contract, case, fact.values, found)
        if case.name in contract.cases:
            declared[contract.cases[case.name]][case] = fact.values
    block = dataset_json.get(BLOCK) or {}
    for protocol, cases in declared.items():
        if cases:
            _check_ignore(contract, protocol, IGNORE in block["protocols"][protocol], cases, found)
            _check_unannotated(contract, protocol, cases, found)
    if all(fact.values is not None for fact in facts.values()):
        _check_leaves(contract, declared, found)


def _check_values(contract: Contract, case: RawCase, values: Mapping[int, int], found: Findings) -> None:
    last = len(contract.value_names) - 1
    unknown = {value: count for value, count in values.items() if not 0 <= value <= last}
    if unknown and case.label:
        counts = some(f"{value} ({count} voxels)" for value, count in unknown.items())
        fix = "map them to a label or declare them"
        if not contract.has_ignore and last + 1 in unknown:
            fix += f"; if {last + 1} marks unannotated voxels, declare '{IGNORE}': {last + 1}"
        found.error(case.label, f"values that 'labels' (0..{last}) does not declare: {counts}: {fix}")


def _check_ignore(
    contract: Contract, protocol: str, mentioned: bool, cases: Mapping[RawCase, Mapping[int, int]], found: Findings
) -> None:
    """The reserved value in cases whose protocol does not use it; cases without any information."""
    if not contract.has_ignore:
        return
    using = [case for case, values in cases.items() if contract.num_leaves in values]
    if using and not mentioned:
        share = sum(cases[case][contract.num_leaves] for case in using) / sum(sum(cases[c].values()) for c in using)
        found.warning(
            f"protocol '{protocol}'",
            f"does not mention '{IGNORE}', but {some(found.name(c.label) for c in using if c.label)} use it "
            f"({share:.1%} of the voxels): they count as plain ignored; to learn from them, say what they may be: "
            f'"{IGNORE}": [leaves]',
        )
    for case, values in cases.items():
        sets = contract.protocols[protocol]
        if case.label and all(value < len(sets) and sets[value] == contract.full_set for value in values):
            found.warning(case.label, "every voxel is ignored: nothing can be learnt from this case; remove it")


def _check_unannotated(
    contract: Contract, protocol: str, cases: Mapping[RawCase, Mapping[int, int]], found: Findings
) -> None:
    """Leaves that a larger label-set declares unannotated, but that also occur by a value of their own.

    That is right for a disputed structure between annotated ones (all leaves of its label-set occur by themselves) and
    for drawings in a case where no leaf is complete: a warning. Where a protocol leaves some of the leaves of a
    label-set out and others not, either the voxels or the protocol are wrong: an error, case by case.
    """
    sets = contract.protocols[protocol]
    single = {value: min(labels) for value, labels in enumerate(sets) if len(labels) == 1}
    own = {case: Counter[int]() for case in cases}
    for case, values in cases.items():
        for value, count in values.items():
            if value in single:
                own[case][single[value]] += count
    foreground = contract.full_set - {0}
    reported: set[tuple[RawCase, int]] = set()
    for value, labels in enumerate(sets):
        unannotated = labels - {0}  # background occurs everywhere, whatever else it may be in places
        if not 1 < len(labels) < contract.num_leaves:
            continue
        occurring = unannotated & {leaf for counts in own.values() for leaf in counts}
        if not occurring:
            continue
        meaning = f"'{contract.value_names[value]}' may be {{{_names(contract, labels)}}}"
        if occurring == unannotated or unannotated == foreground:
            using = [found.name(case.label) for case in cases if case.label and occurring & set(own[case])]
            found.warning(
                f"protocol '{protocol}'",
                f"{meaning}, but {_names(contract, occurring)} also occur by themselves in "
                f"{some(using, 3)}: fine for disputed or partly drawn structures; else remove what is annotated "
                f"completely from the label-set",
            )
            continue
        for case, counts in own.items():
            for leaf in sorted(occurring & set(counts)):
                if case.label and (case, leaf) not in reported:
                    reported.add((case, leaf))
                    name = contract.leaf_names[leaf]
                    found.error(
                        case.label,
                        f"{counts[leaf]} voxels are '{name}', which protocol '{protocol}' declares unannotated "
                        f"({meaning}): correct the values if they are something else; if '{name}' is annotated here, "
                        f"give the case a protocol without '{name}' in that label-set",
                    )


def _names(contract: Contract, leaves: Iterable[int]) -> str:
    return some((contract.leaf_names[leaf] for leaf in sorted(leaves)), 8)


def _check_leaves(
    contract: Contract, declared: Mapping[str, Mapping[RawCase, Mapping[int, int]]], found: Findings
) -> None:
    """Leaves that no case annotates, and annotated leaves that do not occur."""
    occurring: dict[str, dict[RawCase, set[int]]] = {}
    for protocol, cases in declared.items():
        single = {value: min(s) for value, s in enumerate(contract.protocols[protocol]) if len(s) == 1}
        training = {case: values for case, values in cases.items() if case.part == TRAINING}
        if training:
            occurring[protocol] = {
                case: {single[v] for v in values if v in single} for case, values in training.items()
            }
    if not occurring:
        return
    everywhere = {leaf for cases in occurring.values() for leaves in cases.values() for leaf in leaves}
    for leaf, name in enumerate(contract.leaf_names):
        annotating = [protocol for protocol in occurring if leaf in contract.annotated_leaves(protocol)]
        if not annotating and leaf not in everywhere:
            # Only a warning: leaves may be withheld on purpose, and what they are not is learnt all the same.
            found.warning("dataset.json", f"leaf '{name}' is annotated in no training case: add cases or remove it")
        elif leaf not in everywhere:
            found.warning("dataset.json", f"leaf '{name}' is declared annotated, but has no voxel in any training case")
        elif leaf:
            for protocol in annotating:
                _check_absence(name, protocol, [(c, leaf in here) for c, here in occurring[protocol].items()], found)


def _check_absence(name: str, protocol: str, present: list[tuple[RawCase, bool]], found: Findings) -> None:
    """A leaf that is missing in all cases of its protocol, or in the smaller part: forgotten, or really not there?"""
    absent = [found.name(case.label) for case, here in present if case.label and not here]
    if absent and (len(absent) == len(present) or 2 * len(absent) < len(present)):
        others = len(present) - len(absent)
        which = f"it is missing in {some(absent, 3)} ({others} others have it)" if others else "no case has a voxel"
        found.warning(
            f"protocol '{protocol}'",
            f"declares '{name}' annotated, but {which}: fine if there is none in the image; if it was not drawn, the "
            f"case needs a protocol that leaves it out",
        )
