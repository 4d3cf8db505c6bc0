"""How one case was annotated in its source, and what each of its voxels may be then. Pure Python on
sets of leaves.

| a value of the source stands for          | its voxels may be                                   |
|-------------------------------------------|-----------------------------------------------------|
| leaves of which one is annotated          | these leaves, and those that they absorb            |
| leaves that are withheld, or partly drawn | any leaf that an unlabelled voxel may be, and these |
| leaves none of which is annotated         | an error, if there are any: somebody is wrong       |

| an unlabelled voxel | inside a mask file | outside of it | `mask = "labelled"` | no mask       |
|---------------------|--------------------|---------------|---------------------|---------------|
| all leaves drawn    | background         | background    | background          | background    |
| one leaf x not      | background, x      | background    | background, x       | background, x |
| several not         | these leaves       | background    | background or these | as before     |

A leaf counts as drawn when it is annotated, when an annotated leaf absorbs it, or when it is in a
larger set that was drawn. What is withheld was drawn: with a mask, unlabelled voxels stay
background (one leaf withheld inside a mask file makes {background, x} of them, or the leaf would be
known with certainty).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from nnunet_labelset.contract import LabelSet, Protocol
from nnunet_labelset.contract.storage import BACKGROUND, store

UNLABELLED = 0  # the value of voxels that nobody labelled


class Mask(Enum):
    """What is known about unlabelled voxels: a file tells inside from outside, all are background,
    or nothing. Outside of a body is background; inside it may be background, too.
    """

    FILE = "file"
    BODY = "body"
    LABELLED = "labelled"
    NONE = "none"


@dataclass(frozen=True)
class SourceProtocol:
    """How a case was annotated in its source. Leaves are numbers; leaf 0 is background.

    `values` maps a value of the source's files to the leaves that it may be; a voxel with any other
    value (0) is unlabelled. `annotated` are the leaves that were looked for, and `varies` those
    that count as annotated where they occur; of `partly` drawn leaves some structures exist and
    others do not. `absorbs[y]` are leaves that were labelled as `y` wherever they are not
    annotated. `withheld` leaves are made unannotated on purpose. `disputed` are numbers of voxels
    for which raters said different values: any of them may be right.

    Where `is_final`, another data set has said it all: `values` are label-sets, 0 included, and
    `annotated` is what counts as annotated. `is_complete` then tells whether it was in that data
    set.
    """

    num_leaves: int
    values: Mapping[int, LabelSet]
    annotated: LabelSet
    varies: LabelSet = frozenset()
    partly: LabelSet = frozenset()
    absorbs: Mapping[int, LabelSet] = field(default_factory=dict)
    withheld: LabelSet = frozenset()
    disputed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    mask: Mask = Mask.NONE
    is_final: bool = False
    is_complete: bool = False

    @property
    def everything(self) -> LabelSet:
        return frozenset(range(self.num_leaves))


@dataclass(frozen=True)
class Interpretation:
    """The protocol of a case in the new data set, and how its values get there.

    `values` maps the values of the source to those of the protocol; 0 is an unlabelled voxel inside
    of the mask, and `outside` the value of one outside. `contradicted` are values of leaves that
    were declared unannotated. `is_complete`: unlabelled voxels inside the mask should be few.
    """

    protocol: Protocol
    values: Mapping[int, int]
    outside: int
    enlarged: Mapping[LabelSet, LabelSet]
    contradicted: Mapping[int, LabelSet] = field(default_factory=dict)
    is_complete: bool = False
    needs_mask: bool = False
    background_added: bool = False
    not_drawn: LabelSet = frozenset()  # labels that unlabelled voxels may be

    def label_set(self, value: int) -> LabelSet:
        """Return what a voxel with this value of the source may be."""
        return self.protocol.sets[self.values[value]]

    @property
    def inside(self) -> LabelSet:
        return self.label_set(UNLABELLED)

    @property
    def label_set_outside(self) -> LabelSet:
        return self.protocol.sets[self.outside]


@dataclass(frozen=True)
class _Knowledge:
    """What follows from a protocol and the values of one case."""

    annotated: LabelSet
    blind: LabelSet  # unannotated, or withheld
    absorbed: Mapping[int, LabelSet]
    hidden: LabelSet  # what an unlabelled or a withheld voxel may be
    nothing_hidden: bool
    mask_is_complete: bool
    is_certain: bool  # the mask tells a hidden leaf from background

    @property
    def carried(self) -> LabelSet:
        """Leaves that others absorb."""
        return frozenset().union(*self.absorbed.values())


def interpret(
    protocol: SourceProtocol, present: Collection[int], counts: Mapping[int, int] | None = None
) -> Interpretation:
    """Apply a protocol to a case in which the values `present` occur, by the tables above.

    Disputes can make more label-sets than there are values: `counts` of voxels tell how often each
    value occurs, so that rare ones are united first.
    """
    if protocol.is_final:
        return _stored(protocol, present, dict(protocol.values), protocol.values[UNLABELLED])
    known = _knowledge(protocol, present)
    not_annotated = protocol.everything - known.annotated - BACKGROUND
    not_drawn_at_all = not_annotated - protocol.partly
    values, contradicted = {}, {}
    for value, labels in protocol.values.items():
        if labels <= not_drawn_at_all:
            contradicted[value] = labels
        else:
            values[value] = _label_set(labels, known)
    by_file = protocol.mask is Mask.FILE
    inside, outside = _unlabelled(protocol, known)
    if UNLABELLED in values:  # the source says what it is
        outside = values[UNLABELLED]
    values.setdefault(UNLABELLED, inside)
    values |= _disputed(protocol, values)
    voxels: Counter[LabelSet] = Counter()
    for value, count in (counts or {}).items() if protocol.disputed else ():
        for labels in {values[value], outside if value == UNLABELLED else values[value]}:
            voxels[labels] += count
    stored = _stored(protocol, present, values, outside, known, voxels)
    one_hidden = len(known.hidden - BACKGROUND) == 1
    return replace(
        stored,
        contradicted=contradicted,
        is_complete=known.mask_is_complete and by_file,
        needs_mask=by_file and not known.nothing_hidden,
        background_added=by_file and not known.mask_is_complete and one_hidden,
        not_drawn=_not_drawn(protocol, not_annotated),
    )


def _disputed(protocol: SourceProtocol, values: Mapping[int, LabelSet]) -> dict[int, LabelSet]:
    """Return what voxels may be about which raters disagree: what any of them said."""
    return {
        number: _union(values[value] for value in said if value in values)
        for number, said in protocol.disputed.items()
    }


def _unlabelled(protocol: SourceProtocol, known: _Knowledge) -> tuple[LabelSet, LabelSet]:
    """Return what an unlabelled voxel may be inside of the mask, and outside."""
    inside = outside = known.hidden
    if known.mask_is_complete and (known.is_certain or protocol.mask is not Mask.FILE):
        inside = BACKGROUND
    if known.mask_is_complete or protocol.mask in (Mask.FILE, Mask.BODY):
        outside = BACKGROUND
    return inside, outside


def _knowledge(protocol: SourceProtocol, present: Collection[int]) -> _Knowledge:
    annotated = _annotated(protocol, present)
    unannotated = protocol.everything - annotated - BACKGROUND
    blind = unannotated | protocol.withheld
    absorbed = {
        leaf: inner & blind for leaf, inner in protocol.absorbs.items() if leaf not in blind
    }
    # A leaf that was only drawn as one with others which stay is still in their contour.
    withheld = protocol.withheld & _union(
        labels for labels in protocol.values.values() if labels <= blind
    )
    hidden = _not_drawn(protocol, blind) | withheld.difference(*absorbed.values())
    mask_is_complete = protocol.mask is not Mask.NONE and not _not_drawn(protocol, unannotated)
    # One leaf alone would turn "not annotated" into "certainly this leaf"; no mask is that exact.
    is_certain = len(hidden) > 1 and (protocol.mask is Mask.FILE or mask_is_complete)
    return _Knowledge(
        annotated=annotated,
        blind=blind,
        absorbed=absorbed,
        hidden=hidden if is_certain else hidden | BACKGROUND,
        nothing_hidden=not hidden,
        mask_is_complete=mask_is_complete,
        is_certain=is_certain,
    )


def _label_set(labels: LabelSet, known: _Knowledge) -> LabelSet:
    """Return what a labelled voxel may be."""
    if labels <= known.blind and not labels <= known.carried:
        return known.hidden | labels
    if not known.absorbed:
        return labels
    absorbers = frozenset(
        leaf for leaf, inner in known.absorbed.items() if labels & (inner | {leaf})
    )
    return labels.union(absorbers, *(known.absorbed[leaf] for leaf in absorbers))


def _stored(
    protocol: SourceProtocol,
    present: Collection[int],
    values: Mapping[int, LabelSet],
    outside: LabelSet,
    known: _Knowledge | None = None,
    voxels: Mapping[LabelSet, int] | None = None,
) -> Interpretation:
    """Store the label-sets of a case.

    An absent leaf that was looked for is still annotated. Label-sets that were declared but do not
    occur are stored where there is room; one of all leaves never takes `ignore` from another.
    """
    inside = values[UNLABELLED]
    agreed = (labels for value, labels in values.items() if value not in protocol.disputed)
    declared = [labels for labels in agreed if len(labels) < protocol.num_leaves]
    occurring = [values[value] for value in present if value in values]
    annotated, for_ignore = protocol.annotated, inside if len(inside) > 1 else frozenset[int]()
    if known is not None:
        annotated = _annotated_alone(known, declared, (inside, outside))
        for_ignore = frozenset() if known.nothing_hidden else known.hidden
    storage = store(
        sets=[inside, outside, *occurring],
        annotated=annotated,
        num_leaves=protocol.num_leaves,
        optional=declared,
        for_ignore=for_ignore,
        voxels=voxels,
    )
    known_values = {value: labels for value, labels in values.items() if labels in storage.value}
    stored = {value: storage.value[labels] for value, labels in known_values.items()}
    in_dispute = {stored[number] for number in protocol.disputed if number in stored}
    return Interpretation(
        protocol=_with_disputes(storage.protocol, in_dispute),
        values=stored,
        outside=storage.value[outside],
        enlarged=storage.enlarged,
        is_complete=protocol.is_complete,
    )


def _with_disputes(protocol: Protocol, in_dispute: Collection[int]) -> Protocol:
    """Return a protocol whose `ignore` says that raters disagreed, if it holds such voxels: plain
    `ignore` would say nothing, and labels that only one of them saw would count as absent.
    """
    if protocol.num_leaves not in in_dispute or protocol.sets[-1] != protocol.full_set:
        return protocol
    return replace(protocol, states_ignore=True, vouched=protocol.vouched | protocol.annotated)


def _annotated_alone(
    known: _Knowledge, declared: Collection[LabelSet], unlabelled: Collection[LabelSet]
) -> LabelSet:
    """Return the leaves that count as annotated: looked for, and with a value of their own.

    A leaf that an unlabelled voxel may be was not drawn completely. Background has no value of its
    own in most sources: it is annotated unless unlabelled voxels may be more.
    """
    alone = _union(labels for labels in declared if len(labels) == 1)
    drawn = (known.annotated - known.blind) & (alone - BACKGROUND)
    drawn -= _union(labels for labels in unlabelled if len(labels) > 1)
    in_doubt = _union(labels for labels in (*declared, *unlabelled) if len(labels) > 1)
    is_known = BACKGROUND in (*declared, *unlabelled)
    return drawn | (BACKGROUND - in_doubt if is_known else frozenset())


def _union(sets: Iterable[LabelSet]) -> LabelSet:
    return frozenset[int]().union(*sets)


def _annotated(protocol: SourceProtocol, present: Collection[int]) -> LabelSet:
    """Return the leaves that were looked for; of those that vary, the ones that occur alone."""
    alone = _union(
        labels for value, labels in protocol.values.items() if value in present and len(labels) == 1
    )
    return protocol.annotated | (protocol.varies & alone)


def _not_drawn(protocol: SourceProtocol, blind: LabelSet) -> LabelSet:
    """Return the leaves that unlabelled voxels may be.

    They are not annotated, not absorbed by another leaf, and in no larger set that was drawn.
    """
    absorbed = [inner for leaf, inner in protocol.absorbs.items() if leaf not in blind]
    larger = (
        labels for labels in protocol.values.values() if 1 < len(labels) < protocol.num_leaves
    )
    return blind.difference(*absorbed, *(labels for labels in larger if not labels <= blind))
