"""How one case was annotated, and what follows for the values of its label file. Pure Python on sets of leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.dataset_conversion.values import Storage, allocate

BACKGROUND = frozenset([0])


@dataclass(frozen=True)
class Scheme:
    """Leaves are numbers here; leaf 0 is background.

    `values` maps a value of the source's files to the leaves that it may be; a voxel with any other value (0) is
    unlabelled. `annotated` are the leaves that were looked for, `None` meaning all those in `values`; `inferred` are
    leaves that count as annotated where they occur. `absorbs[y]` are leaves that were labelled as `y` wherever they are
    not annotated. `withheld` leaves are made unannotated on purpose. `mask` is "file" (a brain mask: no background
    inside it), "labelled" (what is unlabelled is background) or "" (nothing is known of unlabelled voxels).
    `unlabelled`, if given, is simply the label-set of unlabelled voxels.
    """

    num_leaves: int
    values: Mapping[int, LabelSet]
    annotated: LabelSet | None = None
    inferred: LabelSet = frozenset()
    absorbs: Mapping[int, LabelSet] = field(default_factory=dict)
    withheld: LabelSet = frozenset()
    mask: str = ""
    unlabelled: LabelSet | None = None


@dataclass(frozen=True)
class Meaning:
    """What the voxels of one case may be: by value, and for unlabelled ones inside and outside of the brain mask."""

    values: Mapping[int, LabelSet]
    inside: LabelSet
    outside: LabelSet
    unannotated: LabelSet | None = None  # the label-set for `ignore`
    contradicted: Mapping[int, LabelSet] = field(default_factory=dict)  # values of leaves declared unannotated
    needs_mask: bool = False
    background_added: bool = False

    def storage(self, num_leaves: int, present: Collection[int]) -> Storage:
        """Values for all label-sets of the scheme or, when they do not fit, for those that this case has.

        Annotated leaves keep their value even where they do not occur: an absent leaf is still an annotated one.
        """
        always = {self.inside, self.outside} | {labels for labels in self.values.values() if len(labels) == 1}
        occurring = {labels for value, labels in self.values.items() if value in present}
        # A value for "any leaf" is often declared and never used; it must not take `ignore` from the unannotated set.
        declared = {labels for labels in self.values.values() if len(labels) < num_leaves}
        storage = allocate(always | declared | occurring, num_leaves, self.unannotated)
        return allocate(always | occurring, num_leaves, self.unannotated) if storage.merged else storage


def interpret(scheme: Scheme, present: Collection[int]) -> Meaning:
    """Apply the scheme to a case in which the values `present` occur."""
    if scheme.unlabelled is not None:
        unannotated = scheme.unlabelled if len(scheme.unlabelled) > 1 else None
        return Meaning(scheme.values, scheme.unlabelled, scheme.unlabelled, unannotated)
    everything = frozenset(range(scheme.num_leaves))
    known = {value: labels for value, labels in scheme.values.items() if labels != everything}
    annotated = frozenset().union(*known.values()) if scheme.annotated is None else scheme.annotated
    found = [labels for value, labels in known.items() if value in present and len(labels) == 1]
    annotated |= scheme.inferred & frozenset().union(*found)
    unannotated = everything - annotated - BACKGROUND
    blind = unannotated | scheme.withheld

    absorbed = {leaf: inner & blind for leaf, inner in scheme.absorbs.items() if leaf not in blind}
    carried = frozenset().union(*absorbed.values())
    before = _unaccounted(scheme, known, unannotated)
    rest = _unaccounted(scheme, known, blind) | (scheme.withheld - carried)
    complete = bool(scheme.mask) and not before  # everything was drawn: unlabelled is background in a mask too
    # One leaf alone would turn "not annotated" into "certainly this leaf"; no mask is that exact.
    certain = len(rest) > 1 and (scheme.mask == "file" or complete)
    hidden = rest if certain else rest | BACKGROUND

    values, contradicted = {}, {}
    for value, labels in scheme.values.items():
        if labels <= unannotated:
            contradicted[value] = labels
        elif labels <= blind and not labels <= carried:
            values[value] = hidden | labels
        else:
            absorbers = frozenset(leaf for leaf, inner in absorbed.items() if labels & (inner | {leaf}))
            values[value] = labels.union(absorbers, *(absorbed[leaf] for leaf in absorbers))
    return Meaning(
        values,
        inside=BACKGROUND if complete and (certain or scheme.mask == "labelled") else hidden,
        outside=BACKGROUND if scheme.mask and (scheme.mask == "file" or not before) else hidden,
        unannotated=hidden if rest else None,
        contradicted=contradicted,
        needs_mask=scheme.mask == "file" and bool(rest),
        background_added=scheme.mask == "file" and not complete and len(rest) == 1,
    )


def _unaccounted(scheme: Scheme, known: Mapping[int, LabelSet], blind: LabelSet) -> LabelSet:
    """Leaves that unlabelled voxels may be: not annotated, not absorbed by another leaf, in no larger set drawn."""
    absorbed = [inner for leaf, inner in scheme.absorbs.items() if leaf not in blind]
    drawn = [labels for labels in known.values() if len(labels) > 1 and not labels <= blind]
    return blind.difference(*absorbed, *drawn)
