"""What is scored in a case, and what evaluate, compare and report hand to each other; metrics.json
and comparison.json are these classes as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from nnunet_labelset.contract import Contract, LabelSet
from nnunet_labelset.contract.protocol import Protocol
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.evaluation.metric import KNOWN_WRONG
from nnunet_labelset.evaluation.statistics import Agreement, Description, Difference
from nnunet_labelset.io.records import FLAT


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


VERSION = 3


class Outcome(str, Enum):
    """What became of a label in a case; the words of files, tables and the screen."""

    SCORED = "scored"  # in reference and prediction
    MISSED = "missed"  # in the reference only
    INVENTED = "invented"  # in the prediction only
    ABSENT = "absent"  # in neither
    UNDECIDED = "undecided"  # nothing certain in the reference, but some voxels may be it
    NOT_ANNOTATED = "not annotated"

    __str__ = str.__str__

    @property
    def is_compared(self) -> bool:
        """The reference tells whether the label is there."""
        return self not in (Outcome.UNDECIDED, Outcome.NOT_ANNOTATED)


PRESENT = (Outcome.SCORED, Outcome.MISSED, Outcome.INVENTED)  # in reference or prediction


@dataclass(frozen=True)
class Score:
    """A label, region or union in one case. Counts are voxels; `values` holds the metrics of the
    registry.

    `dice_low` and `dice_high` are the lowest and highest Dice over all references that fit the
    annotation. `tolerance` is that of NSD in mm, None without surfaces.
    """

    outcome: Outcome
    tp: int
    fp: int
    fn: int
    tn: int
    n_ref: int
    n_pred: int
    dice_low: float | None
    dice_high: float | None
    tolerance: float | None
    values: dict[str, float | None] = field(metadata=FLAT)

    @property
    def found(self) -> bool:
        """Reference and prediction overlap: a prediction elsewhere has not found the label."""
        return self.outcome is Outcome.SCORED and self.tp > 0


@dataclass(frozen=True)
class Case:
    """The scores of one case by label, then by further structure; those that a case does not have
    are left out.

    `known` voxels exclude at least one label, `known_wrong` ones exclude the label that was
    predicted. `files` are size and time of reference and prediction, `meaning` is what the values
    stood for, `reference_digest` tells references apart: what the scores depend on.
    `worst_distance` (mm) is that of missed and invented labels, and the largest of all.
    """

    case: str
    protocol: str
    reference_file: str
    prediction_file: str
    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    known: int
    known_wrong: int
    known_wrong_volume: float
    files: tuple[tuple[int, ...], ...]
    meaning: str
    reference_digest: str
    worst_distance: float | None
    leaves: dict[str, Score]

    @property
    def known_wrong_share(self) -> float | None:
        return self.known_wrong / self.known if self.known else None


@dataclass(frozen=True)
class LeafAverages:
    """All cases of a label: each metric in short, and how often each outcome occurred.

    `agreement` compares the volumes of prediction and reference.
    """

    outcomes: dict[str, int]
    agreement: Agreement | None
    metrics: dict[str, Description] = field(metadata=FLAT)


@dataclass(frozen=True)
class Averages:
    """Many cases: by label, the one mean of every metric (over the labels of a case, then over the
    cases), and the share of known-wrong voxels.
    """

    n_cases: int
    leaves: dict[str, LeafAverages]
    mean: dict[str, Description]
    known_wrong: Description


@dataclass(frozen=True)
class AllAverages:
    overall: Averages
    groups: dict[str, dict[str, Averages]]


@dataclass(frozen=True)
class Settings:
    """How the scores were made; `metrics` are those that were computed.

    `tolerance` (mm) is that of all labels which `tolerances` does not name; None is the default.
    """

    reference_folder: str
    prediction_folder: str
    dataset_json: str
    annotated: str | None
    file_ending: str
    metrics: tuple[str, ...]
    cap: float | None
    tolerance: float | None
    tolerances: dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """The content of metrics.json (docs/evaluation.md)."""

    version: int
    settings: Settings
    labels: dict[str, int]
    leaves: tuple[str, ...]  # what the mean is over: labels, or the regions of the data set
    unions: dict[str, tuple[str, ...]]  # what is scored beside them: unions, --regions
    groups: dict[str, dict[str, str]]  # by column, then by case; the first column is `protocol`
    subjects: dict[str, str]  # patients by case; empty if every case is a patient of its own
    missing_predictions: tuple[str, ...]
    extra_predictions: tuple[str, ...]
    cases: tuple[Case, ...]
    averages: AllAverages

    @property
    def structures(self) -> tuple[str, ...]:
        """All that has a score: the labels, then the unions."""
        return (*self.leaves, *self.unions)

    @cached_property
    def by_case(self) -> dict[str, Case]:
        return {case.case: case for case in self.cases}

    @property
    def group_columns(self) -> tuple[str, ...]:
        return tuple(self.groups)

    def groups_of(self, case: str) -> dict[str, str]:
        """Return the group of a case in every column; "" where the table has no entry."""
        return {column: groups.get(case, "") for column, groups in self.groups.items()}

    @property
    def unit(self) -> str:
        """What is scored: a data set with regions has these in place of its labels."""
        return "label" if set(self.leaves) <= set(self.labels) else "region"

    def score(self, case: str, structure: str) -> Score | None:
        return self.by_case[case].leaves.get(structure)

    def value(self, case: str, structure: str, metric: str) -> float | None:
        score = self.score(case, structure)
        return None if score is None else score.values[metric]


@dataclass(frozen=True, kw_only=True)
class Cell(Description):
    """A method's scores of a structure, over the same cases for all methods.

    `leaf` None is the whole case: the mean over its labels, or its known-wrong voxels.
    """

    method: str
    leaf: str | None
    metric: str
    n_absent: int  # of the n cases: the method is right that the label is absent
    best: bool
    mark: str  # "better" or "worse" than the baseline, significantly, or ""


@dataclass(frozen=True, kw_only=True)
class PairedTest(Difference):
    """Two methods on a structure (`leaf` None: the whole case), differences `b - a`.

    `non_inferior` tells whether `b` is at most the margin worse than `a`, None without a margin.
    """

    a: str
    b: str
    baseline: bool
    leaf: str | None
    metric: str
    p_adjusted: float | None
    significant: bool
    better: str | None
    non_inferior: bool | None


@dataclass(frozen=True)
class Detection:
    """In how many cases a method found (with overlap), missed or invented a structure."""

    method: str
    leaf: str
    found: int
    missed: int
    invented: int
    absent: int


@dataclass(frozen=True)
class Rank:
    """The mean rank of a method (1 is best), and the share of bootstrap samples of the cases in
    which it is first.
    """

    method: str
    metric: str
    n: int  # cases
    mean_rank: float
    first: float


@dataclass(frozen=True, kw_only=True)
class GroupScore(Description):
    """The mean of a method over the labels of the cases of a group, and its difference to the
    baseline (None for the baseline itself).
    """

    column: str
    group: str
    metric: str
    method: str
    difference: Difference | None


@dataclass(frozen=True)
class Comparison:
    """The content of comparison.json (docs/evaluation.md)."""

    version: int
    methods: tuple[str, ...]
    baseline: str
    sources: dict[str, str]
    alpha: float
    correction: str
    margins: dict[str, float]  # of non-inferiority, by metric
    cap: float | None
    worst_distances: tuple[float, ...]  # lowest and highest of the cases, mm
    tolerances: tuple[float, ...]  # lowest and highest of NSD, mm
    leaves: tuple[str, ...]
    unions: dict[str, tuple[str, ...]]
    metrics: tuple[str, ...]
    cases: tuple[str, ...]
    n_subjects: int | None
    left_out: dict[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    tests: tuple[PairedTest, ...]
    detection: tuple[Detection, ...]
    ranks: tuple[Rank, ...]  # of three and more methods
    groups: tuple[GroupScore, ...]  # of columns with two and more groups
    notes: tuple[str, ...]

    @property
    def structures(self) -> tuple[str, ...]:
        return (*self.leaves, *self.unions)

    def cell(self, method: str, leaf: str | None, metric: str) -> Cell:
        return self._cells[method, leaf, metric]

    @cached_property
    def _cells(self) -> dict[tuple[str, str | None, str], Cell]:
        return {(cell.method, cell.leaf, cell.metric): cell for cell in self.cells}

    @property
    def case_metrics(self) -> tuple[str, ...]:
        """Metrics of a whole case: the means over the labels, then the known-wrong voxels."""
        return (*self.metrics, KNOWN_WRONG.name)
