"""How one case was annotated in its source, and what each of its voxels may be then. Pure Python on
sets of leaves.

| a value of the source stands for            | its voxels may be                                       |
|---------------------------------------------|---------------------------------------------------------|
| leaves of which one is annotated            | these leaves, and those that they absorb                |
| leaves that are withheld, or partly drawn   | any leaf that an unlabelled voxel may be, and these     |
| leaves none of which is annotated           | an error, if there are any: somebody is wrong           |

| an unlabelled voxel, where | mask file, inside | mask file, outside | `mask = "labelled"` | no mask          |
|----------------------------|-------------------|--------------------|---------------------|------------------|
| all leaves were drawn      | background        | background         | background          | background       |
| one leaf x was not         | background, x     | background         | background, x       | background, x    |
| several leaves were not    | these leaves      | background         | background or these | background or these |

A leaf counts as drawn when it is annotated, when an annotated leaf absorbs it, or when it is in a
larger set that was drawn. What is withheld was drawn: with a mask, unlabelled voxels stay
background (one leaf withheld inside a mask file makes {background, x} of them, or the leaf would be
known with certainty).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.dataset_conversion.storage import Storage, allocate

BACKGROUND = frozenset([0])


class Mask(Enum):
    """What is known of unlabelled voxels: a file tells inside from outside, or all are background,
    or nothing.
    """

    FILE = "file"
    LABELLED = "labelled"
    NONE = "none"


@dataclass(frozen=True)
class SourceProtocol:
    """How a case was annotated. Leaves are numbers here; leaf 0 is background.

    `values` maps a value of the source's files to the leaves that it may be; a voxel with any other
    value (0) is unlabelled. `annotated` are the leaves that were looked for, and `varies` those
    that count as annotated where they occur; of `partly` drawn leaves some structures exist and
    others do not. `absorbs[y]` are leaves that were labelled as `y` wherever they are not
    annotated. `withheld` leaves are made unannotated on purpose.
    """

    num_leaves: int
    values: Mapping[int, LabelSet]
    annotated: LabelSet
    varies: LabelSet = frozenset()
    partly: LabelSet = frozenset()
    absorbs: Mapping[int, LabelSet] = field(default_factory=dict)
    withheld: LabelSet = frozenset()
    mask: Mask = Mask.NONE

    @property
    def everything(self) -> LabelSet:
        return frozenset(range(self.num_leaves))


@dataclass(frozen=True)
class Meaning:
    """What the voxels of one case may be: by value, and for unlabelled ones inside and outside of
    the mask.
    """

    values: Mapping[int, LabelSet]
    inside: LabelSet
    outside: LabelSet
    unannotated: LabelSet | None = None  # the label-set for `ignore`
    contradicted: Mapping[int, LabelSet] = field(
        default_factory=dict
    )  # values of leaves declared unannotated
    complete: bool = (
        False  # nothing is left for the unlabelled voxels inside the mask but background
    )
    needs_mask: bool = False
    background_added: bool = False
    vouched: LabelSet = (
        frozenset()
    )  # annotated, though some voxels are disputed between them and others

    def storage(self, num_leaves: int, present: Collection[int]) -> Storage:
        """Values for all label-sets of the protocol or, when they do not fit, for those that this
        case has.

        Annotated leaves keep their value even where they do not occur: an absent leaf is still an
        annotated one.
        """
        always = {self.inside, self.outside} | {
            labels for labels in self.values.values() if len(labels) == 1
        }
        occurring = {labels for value, labels in self.values.items() if value in present}
        # A value for "any leaf" is often declared and never used; it must not take `ignore` from
        # the unannotated set.
        declared = {labels for labels in self.values.values() if len(labels) < num_leaves}
        storage = allocate(always | declared | occurring, num_leaves, self.unannotated)
        return (
            allocate(always | occurring, num_leaves, self.unannotated)
            if storage.merged
            else storage
        )


def interpret(protocol: SourceProtocol | Meaning, present: Collection[int]) -> Meaning:
    """Apply the protocol to a case in which the values `present` occur; the tables above are its
    rules.
    """
    if isinstance(protocol, Meaning):
        return protocol
    annotated = _annotated(protocol, present)
    unannotated = protocol.everything - annotated - BACKGROUND
    blind = unannotated | protocol.withheld
    absorbed = {
        leaf: inner & blind for leaf, inner in protocol.absorbs.items() if leaf not in blind
    }
    carried = frozenset().union(*absorbed.values())

    not_drawn = _not_drawn(protocol, unannotated)
    rest = _not_drawn(protocol, blind) | (
        protocol.withheld - carried
    )  # what an unlabelled or a withheld voxel may be
    complete = protocol.mask is not Mask.NONE and not not_drawn
    # One leaf alone would turn "not annotated" into "certainly this leaf"; no mask is that exact.
    certain = len(rest) > 1 and (protocol.mask is Mask.FILE or complete)
    hidden = rest if certain else rest | BACKGROUND

    values, contradicted = {}, {}
    for value, labels in protocol.values.items():
        if labels <= unannotated - protocol.partly:
            contradicted[value] = labels
        elif labels <= blind and not labels <= carried:
            values[value] = hidden | labels
        else:
            absorbers = frozenset(
                leaf for leaf, inner in absorbed.items() if labels & (inner | {leaf})
            )
            values[value] = labels.union(absorbers, *(absorbed[leaf] for leaf in absorbers))
    return Meaning(
        values,
        inside=BACKGROUND if complete and (certain or protocol.mask is Mask.LABELLED) else hidden,
        outside=BACKGROUND if protocol.mask is Mask.FILE or complete else hidden,
        unannotated=hidden if rest else None,
        contradicted=contradicted,
        complete=complete and protocol.mask is Mask.FILE,
        needs_mask=protocol.mask is Mask.FILE and bool(rest),
        background_added=protocol.mask is Mask.FILE and not complete and len(rest) == 1,
        vouched=(annotated - blind)
        & frozenset().union(*(labels for labels in values.values() if len(labels) == 1)),
    )


def _annotated(protocol: SourceProtocol, present: Collection[int]) -> LabelSet:
    """Leaves that were looked for in this case; of those that vary, the ones that occur by
    themselves.
    """
    found = (
        labels for value, labels in protocol.values.items() if value in present and len(labels) == 1
    )
    return protocol.annotated | (protocol.varies & frozenset().union(*found))


def _not_drawn(protocol: SourceProtocol, blind: LabelSet) -> LabelSet:
    """Leaves that unlabelled voxels may be: not annotated, not absorbed by another leaf, in no
    larger set drawn.
    """
    absorbed = [inner for leaf, inner in protocol.absorbs.items() if leaf not in blind]
    larger = (
        labels for labels in protocol.values.values() if 1 < len(labels) < protocol.num_leaves
    )
    return blind.difference(*absorbed, *(labels for labels in larger if not labels <= blind))
