"""The values of label maps against the contract: what a case declares and what it contains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, IGNORE, Contract, LabelSet, Protocol
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.datasets.slips import find_slips
from nnunet_labelset.datasets.verify.case_facts import CaseFacts
from nnunet_labelset.datasets.verify.findings import Problem, Problems, doubt
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import DATASET
from nnunet_labelset.nnunet.raw import TRAINING, RawCase


@dataclass(frozen=True)
class DeclaredCase:
    """A case with a protocol, and how many voxels of its label map have each value."""

    name: str
    label: Path
    part: str
    protocol_name: str
    protocol: Protocol
    values: Mapping[int, int]

    @cached_property
    def own(self) -> Mapping[int, int]:
        """Voxels by label, where a value stands for one label."""
        own = Counter[int]()
        sets = self.protocol.sets
        for value, count in self.values.items():
            if 0 <= value < len(sets) and len(sets[value]) == 1:
                own[min(sets[value])] += count
        return own

    @cached_property
    def larger(self) -> dict[int, LabelSet]:
        """The foreground of larger label-sets by value; background is everywhere."""
        stated = self.protocol.stated_sets.items()
        return {value: labels - {0} for value, labels in stated if len(labels) > 1}

    @property
    def unannotated(self) -> LabelSet:
        return frozenset().union(*self.larger.values()) - self.protocol.vouched

    @property
    def drawn(self) -> LabelSet:
        """Labels that occur although a larger label-set declares them unannotated."""
        return self.unannotated & set(self.own)

    @property
    def detail(self) -> str:
        return f"protocol '{self.protocol_name}'"


@dataclass(frozen=True)
class Annotations:
    """All that the checks look at: the contract, and the cases that it declares."""

    contract: Contract
    block: Mapping[str, Any]
    cases: Sequence[DeclaredCase]
    is_readable: bool  # no label map is unreadable
    made_by_model: Collection[str]
    # Labels that may have voxels without being annotated, by case: `merge` has written them so.
    partly_drawn: Mapping[str, Collection[str]]

    @property
    def training(self) -> list[DeclaredCase]:
        return [case for case in self.cases if case.part == TRAINING]

    @cached_property
    def groups(self) -> dict[str, list[DeclaredCase]]:
        groups: dict[str, list[DeclaredCase]] = {}
        for case in self.cases:
            groups.setdefault(case.protocol_name, []).append(case)
        return groups

    @cached_property
    def occurring(self) -> dict[str, LabelSet]:
        """The labels that occur by themselves in some case of each protocol."""
        return {
            name: frozenset().union(*(case.own for case in cases))
            for name, cases in self.groups.items()
        }

    @cached_property
    def usual(self) -> dict[str, LabelSet]:
        """The labels that most cases of each protocol show, if it has several."""
        usual = {}
        for name, cases in self.groups.items():
            counts = Counter(leaf for case in cases for leaf in case.own)
            often = [leaf for leaf, number in counts.items() if 2 * number > len(cases)]
            usual[name] = frozenset(often if len(cases) > 1 else ())
        return usual

    def names(self, leaves: Iterable[int]) -> str:
        return some((self.contract.leaf_names[leaf] for leaf in sorted(leaves)), 8)


def check_annotations(
    contract: Contract,
    dataset_json: Mapping[str, Any],
    facts: Mapping[RawCase, CaseFacts],
    partly_drawn: Mapping[str, Collection[str]],
) -> Problems:
    """Yield every problem with values; nothing is claimed about files that are unreadable.

    `partly_drawn` are labels that may have voxels without being annotated, by case.
    """
    declared = []
    for case, fact in facts.items():
        if fact.values is None or case.label is None:
            continue
        yield from _check_values(contract, case.label, fact.values)
        if case.name in contract.cases:
            declared.append(
                DeclaredCase(
                    name=case.name,
                    label=case.label,
                    part=case.part,
                    protocol_name=contract.cases[case.name],
                    protocol=contract.protocol(case.name),
                    values=fact.values,
                )
            )
    annotations = Annotations(
        contract=contract,
        block=dataset_json.get(BLOCK) or {},
        cases=declared,
        is_readable=all(fact.values is not None for fact in facts.values()),
        made_by_model=originals(dataset_json),
        partly_drawn=partly_drawn,
    )
    for check in CHECKS:
        yield from check(annotations)


def _check_values(contract: Contract, label: Path, values: Mapping[int, int]) -> Problems:
    last = len(contract.value_names) - 1
    unknown = {value: count for value, count in values.items() if not 0 <= value <= last}
    if not unknown:
        return
    counts = some(f"{value} ({count} voxels)" for value, count in unknown.items())
    fix = "map them to a label or declare them"
    if not contract.has_ignore and last + 1 in unknown:
        fix += f"; if {last + 1} marks unannotated voxels, declare '{IGNORE}': {last + 1}"
    yield Problem(label, f"values that 'labels' (0..{last}) does not declare: {counts}: {fix}")


def _check_ignore(annotations: Annotations) -> Problems:
    """The reserved value in a case whose protocol does not use it; a case without information."""
    contract = annotations.contract
    for case in annotations.cases if contract.has_ignore else ():
        is_mentioned = IGNORE in annotations.block["protocols"][case.protocol_name]
        ignored = case.values.get(contract.num_leaves)
        if ignored and not is_mentioned:
            yield doubt(
                case.label,
                f"the protocol does not mention '{IGNORE}', but voxels have it: they count as "
                f"plain ignored; to learn from them, list what they may be: "
                f'"{IGNORE}": [labels]',
                f"{case.detail}, {ignored / sum(case.values.values()):.1%} of the voxels",
            )
        sets = dict(enumerate(case.protocol.sets))
        if all(sets.get(value) == contract.full_set for value in case.values):
            yield doubt(
                case.label,
                "every voxel is ignored: nothing can be learnt from this case; remove it",
            )


def _check_unannotated(annotations: Annotations) -> Problems:
    """Labels that a larger label-set declares unannotated, but that also occur by a value of their
    own. What a model has decided in a completed copy does: the rest stays open.
    """
    for case in annotations.cases:
        if not case.drawn or case.name in annotations.made_by_model:
            continue
        names = {annotations.contract.leaf_names[leaf] for leaf in case.drawn}
        if names <= set(annotations.partly_drawn.get(case.name, ())):  # as where sides are united
            yield from _all_partly_drawn(annotations, case)
        else:
            swapped = list(_check_swapped(annotations, case))
            yield from swapped or _check_drawn(annotations, case)


def _check_swapped(annotations: Annotations, case: DeclaredCase) -> Problems:
    """A case that has all that its protocol leaves out and no voxel of a larger label-set, or some
    of it and nothing that its protocol annotates, was given the protocol of another one.
    """
    annotated = case.protocol.annotated - {0}
    open_sets = [leaves for value, leaves in case.larger.items() if value and value in case.values]
    has_all = case.drawn == case.unannotated and not open_sets
    is_disputed = any(leaves <= set(case.own) for leaves in open_sets)
    has_nothing_else = bool(annotated) and annotated.isdisjoint(case.own) and not is_disputed
    if has_all and case.drawn <= annotations.usual[case.protocol_name]:
        has_all = False  # the group was drawn so, as where one of two sides is missing
    if not has_all and not has_nothing_else:
        return
    extent = "all that" if has_all else "what"
    also = "" if has_all else f", and none of what it annotates ({annotations.names(annotated)})"
    yield Problem(
        case.label,
        f"has voxels of {extent} its protocol leaves out ({annotations.names(case.drawn)}){also}: "
        f"give the case the protocol that it was drawn by (were two cases swapped?), or correct "
        f"the values",
        case.detail,
    )


def _check_drawn(annotations: Annotations, case: DeclaredCase) -> Problems:
    """Sound for a disputed structure between annotated ones (all labels of its label-set occur by
    themselves, and it has a value of its own), for drawings in a case where no label is complete,
    and where most cases of the protocol show the same. Otherwise either the voxels or the protocol
    are wrong.
    """
    reported: set[int] = set()
    for value, leaves in case.larger.items():
        drawn = (leaves - case.protocol.vouched) & set(case.own)
        if not drawn:
            continue
        if _is_sound(annotations, case, value, drawn):
            yield _partly_drawn(annotations, case, value, drawn)
            continue
        for leaf in sorted(drawn - reported):
            reported.add(leaf)
            yield _contradiction(annotations, case, value, leaf)


def _is_sound(annotations: Annotations, case: DeclaredCase, value: int, drawn: LabelSet) -> bool:
    leaves = case.larger[value]
    occurring = annotations.occurring[case.protocol_name]
    is_disputed = value > 0 and leaves - case.protocol.vouched <= occurring
    is_scribbled = leaves == annotations.contract.full_set - {0}
    return is_disputed or is_scribbled or drawn <= annotations.usual[case.protocol_name]


def _meaning(annotations: Annotations, case: DeclaredCase, value: int) -> str:
    name = annotations.contract.value_names[value]
    return f"'{name}' may be {{{annotations.names(case.protocol.sets[value])}}}"


def _all_partly_drawn(annotations: Annotations, case: DeclaredCase) -> Problems:
    for value, leaves in case.larger.items():
        if drawn := leaves & case.drawn:
            yield _partly_drawn(annotations, case, value, drawn)


def _partly_drawn(
    annotations: Annotations, case: DeclaredCase, value: int, drawn: LabelSet
) -> Problem:
    name = annotations.contract.leaf_names[min(drawn)]
    return doubt(
        case.label,
        f"{_meaning(annotations, case, value)}, but {annotations.names(drawn)} also occur by "
        f"themselves: fine for partly drawn structures; for disputed voxels between annotated "
        f'labels, vouch for these in the protocol ("{name}": ["{name}"]); else remove what is '
        f"annotated completely from the label-set",
        case.detail,
    )


def _contradiction(annotations: Annotations, case: DeclaredCase, value: int, leaf: int) -> Problem:
    name = annotations.contract.leaf_names[leaf]
    return Problem(
        case.label,
        f"voxels are '{name}', which the protocol declares unannotated "
        f"({_meaning(annotations, case, value)}): correct the values if they are something else; "
        f"if '{name}' is annotated here, give the case a protocol without '{name}' in that "
        f"label-set",
        f"{case.detail}, {case.own[leaf]} voxels",
    )


def _check_information(annotations: Annotations) -> Problems:
    training = annotations.training
    if not training or not annotations.is_readable:
        return
    for case in training:
        sets = case.protocol.sets
        if any(0 <= value < len(sets) and 0 not in sets[value] for value in case.values):
            return
    yield Problem(
        DATASET,
        "nothing can be learnt: every voxel of every training case may be background: add "
        "annotated cases, or correct the protocols",
    )


def _check_slips(annotations: Annotations) -> Problems:
    if annotations.is_readable:
        values = {case.name: case.values for case in annotations.training}
        for slip in find_slips(annotations.contract, values, values):
            yield doubt(DATASET, slip)


def _check_absent(annotations: Annotations) -> Problems:
    """Annotated labels that do not occur in a case: forgotten, or really not there?"""
    if not annotations.is_readable:
        return
    for case in annotations.training:
        # A label that the whole group lacks is told once, as a slip.
        expected = case.protocol.annotated & annotations.occurring[case.protocol_name]
        for leaf in sorted(expected - set(case.own) - {0}):
            yield doubt(
                case.label,
                f"'{annotations.contract.leaf_names[leaf]}' is declared annotated, but no voxel "
                f"has it: fine if there is none in the image; if it was not drawn, the case needs "
                f"a protocol that leaves it out",
                case.detail,
            )


CHECKS: tuple[Callable[[Annotations], Problems], ...] = (
    _check_ignore,
    _check_unannotated,
    _check_information,
    _check_slips,
    _check_absent,
)
