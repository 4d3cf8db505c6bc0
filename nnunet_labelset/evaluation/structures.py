"""What is scored in a case: labels, regions and unions of labels, and a case with its files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nnunet_labelset.contract import Contract, LabelSet
from nnunet_labelset.contract.protocol import Protocol
from nnunet_labelset.errors import LabelSetError, did_you_mean


class StructureKind(Enum):
    LABEL = "label"
    REGION = "region"  # of the data set, or asked for with --regions
    UNION = "union"  # labels that a reference does not separate


@dataclass(frozen=True)
class Structure:
    """What has a score: its name, and the labels that count as one."""

    name: str
    kind: StructureKind
    members: LabelSet
    annotated: bool
    tolerance: float | None = None  # mm, of NSD; None is the default, which depends on the voxels
    instances: bool = False


@dataclass(frozen=True)
class ScoringOptions:
    """What is measured, and what is scored beside labels and unions."""

    surfaces: bool = True
    regions: Mapping[str, LabelSet] = field(default_factory=dict)
    tolerance: float | None = None  # mm, of the labels that `tolerances` does not name
    tolerances: Mapping[str, float] = field(default_factory=dict)
    instances: Collection[str] = ()
    cap: float | None = None  # mm


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


DEFAULT_OPTIONS = ScoringOptions()
COUNTS_ONLY = ScoringOptions(surfaces=False)


def structures_of(
    contract: Contract, protocol_name: str, options: ScoringOptions = DEFAULT_OPTIONS
) -> tuple[Structure, ...]:
    """Return what is scored in the cases of a protocol: the foreground labels, or the regions of
    the data set; then its unions; then the regions that were asked for.

    A union is a label-set of several labels without background. It has a name of its own, whatever
    value stores it, unless a region that was asked for is the same set.
    """
    protocol = contract.protocols[protocol_name]
    requested = options.regions

    def structure(name: str, kind: StructureKind, members: LabelSet, annotated: bool) -> Structure:
        return Structure(
            name=name,
            kind=kind,
            members=members,
            annotated=annotated,
            tolerance=options.tolerances.get(name, options.tolerance),
            instances=name in options.instances,
        )

    if contract.regions is not None:
        regions = {**contract.regions, **requested}
        return tuple(
            structure(name, StructureKind.REGION, members, protocol.annotates(members))
            for name, members in regions.items()
        )
    labels = [
        structure(name, StructureKind.LABEL, frozenset([leaf]), leaf in protocol.annotated)
        for leaf, name in enumerate(contract.leaf_names)
        if leaf
    ]
    several = {members for members in protocol.sets if len(members) > 1 and 0 not in members}
    unions = [
        structure(union_name(members, contract), StructureKind.UNION, members, True)
        for members in sorted(several - set(requested.values()), key=sorted)
    ]
    regions_beside = [
        structure(name, StructureKind.REGION, members, protocol.annotates(members))
        for name, members in requested.items()
    ]
    return (*labels, *unions, *regions_beside)


def foreground(contract: Contract) -> dict[Any, str]:
    """Return what the mean is over, as nnU-Net calls it: labels by value, regions by their
    labels.
    """
    if contract.regions is not None:
        keys = {name: tuple(sorted(members)) for name, members in contract.regions.items()}
        return {key if len(key) > 1 else key[0]: name for name, key in keys.items()}
    return {leaf: name for leaf, name in enumerate(contract.leaf_names) if leaf}


def structure_names(contract: Contract, options: ScoringOptions) -> list[str]:
    """Return the names of all that is scored in any case."""
    names = dict.fromkeys(foreground(contract).values())
    for protocol in contract.protocols:
        names |= dict.fromkeys(each.name for each in structures_of(contract, protocol, options))
    return list(names)


def read_regions(texts: Sequence[str], contract: Contract) -> dict[str, LabelSet]:
    """Return the regions of `whole tumour=edema+necrosis`, as the user typed it."""
    regions: dict[str, LabelSet] = {}
    for text in texts:
        name, members = _read_region(text, contract, regions)
        same = {**(contract.regions or {}), **regions}
        if twin := next((other for other in same if same[other] == members), None):
            raise LabelSetError(
                f"--regions '{text}': has the same labels as '{twin}': give each region once"
            )
        regions[name] = members
    return regions


def _read_region(text: str, contract: Contract, regions: Collection[str]) -> tuple[str, LabelSet]:
    name, equals, labels = (part.strip() for part in text.partition("="))
    known = contract.leaf_names[1:]
    taken = {*contract.leaf_names, *(contract.regions or ()), *regions}
    if not name or not equals or name in taken:
        raise LabelSetError(f"--regions '{text}': expected a new name and labels: NAME=LABEL+LABEL")
    members = [label.strip() for label in labels.split("+")]
    for label in members:
        if label not in known:
            hint = did_you_mean(label, known)
            raise LabelSetError(f"--regions '{text}': unknown label '{label}'{hint}")
    if len(set(members)) < 2:
        raise LabelSetError(
            f"--regions '{text}': has one label, which is scored anyway: name two or more"
        )
    return name, frozenset(contract.leaf_names.index(label) for label in members)


def union_name(members: LabelSet, contract: Contract) -> str:
    name = "+".join(contract.leaf_names[leaf] for leaf in sorted(members))
    return name if name not in contract.leaf_names else f"{name} (union)"
