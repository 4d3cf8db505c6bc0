"""What evaluate, compare and report hand to each other; metrics.json and comparison.json are these
classes as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from nnunet_labelset.evaluation.metric import KNOWN_WRONG
from nnunet_labelset.evaluation.statistics import Agreement, Description, Difference
from nnunet_labelset.io.records import FLAT

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
