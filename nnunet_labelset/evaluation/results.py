"""What evaluate, compare and report hand to each other; metrics.json and comparison.json are these
classes as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.metric import KNOWN_WRONG, METRICS
from nnunet_labelset.evaluation.statistics import Description, Difference, describe
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.records import FLAT, from_json
from nnunet_labelset.io.text import some

VERSION = 2
SCORED, MISSED, INVENTED = "scored", "missed", "absent_in_reference"
ABSENT, UNANNOTATED = "absent_in_both", "unannotated"
OUTCOMES = {  # in words
    SCORED: "scored",
    MISSED: "missed",
    INVENTED: "invented",
    ABSENT: "absent in both",
    UNANNOTATED: "unannotated",
}


@dataclass(frozen=True)
class Score:
    """A leaf, or a union of leaves, in one case. Counts are voxels; `values` holds the metrics of
    the registry.
    """

    outcome: str
    union: tuple[str, ...] | None  # the leaves that were scored as one
    tp: int
    fp: int
    fn: int
    tn: int
    n_ref: int
    n_pred: int
    values: dict[str, float | None] = field(metadata=FLAT)


@dataclass(frozen=True)
class Case:
    """The scores of one case by leaf, then by further union; those that a case does not have are
    left out.

    `known` voxels exclude at least one leaf, `known_wrong` ones exclude the leaf that was
    predicted. `files` are size and time of reference and prediction, `meaning` is what the values
    stood for: what the scores depend on.
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
    groups: dict[str, str]
    leaves: dict[str, Score]

    @property
    def known_wrong_share(self) -> float | None:
        return self.known_wrong / self.known if self.known else None

    @property
    def average_dice(self) -> float | None:
        """Over the scored leaves."""
        return describe(score.values["dice"] for score in self.leaves.values()).mean


@dataclass(frozen=True)
class LeafAverages:
    """All cases of a leaf: each metric in short, how often each outcome occurred, how many scores
    are unions.
    """

    outcomes: dict[str, int]
    union: int
    metrics: dict[str, Description] = field(metadata=FLAT)


@dataclass(frozen=True)
class Averages:
    """Many cases: by leaf, the mean over the leaves, and the share of known-wrong voxels over the
    cases.
    """

    n_cases: int
    leaves: dict[str, LeafAverages]
    mean: dict[str, float | None]
    known_wrong: Description


@dataclass(frozen=True)
class AllAverages:
    overall: Averages
    groups: dict[str, dict[str, Averages]]


@dataclass(frozen=True)
class Settings:
    """How the scores were made; `metrics` are those that were computed."""

    reference_folder: str
    prediction_folder: str
    dataset_json: str
    annotated: str | None
    file_ending: str
    metrics: tuple[str, ...]
    cap: float | None
    tolerance: dict[str, float]  # mm, where it was given; "" is that of all other leaves


@dataclass(frozen=True)
class Evaluation:
    """The content of metrics.json (docs/evaluation.md)."""

    version: int
    settings: Settings
    labels: dict[str, int]
    leaves: tuple[str, ...]
    unions: dict[
        str, tuple[str, ...]
    ]  # what is scored beside the leaves: label-sets of several leaves, --regions
    group_columns: tuple[str, ...]
    missing_predictions: tuple[str, ...]
    extra_predictions: tuple[str, ...]
    cases: tuple[Case, ...]
    averages: AllAverages

    @property
    def structures(self) -> tuple[str, ...]:
        """All that has a score: the leaves, then the unions."""
        return (*self.leaves, *self.unions)

    @cached_property
    def by_case(self) -> dict[str, Case]:
        return {case.case: case for case in self.cases}

    @property
    def unit(self) -> str:
        """What is scored by itself: a data set with regions has these in place of its leaves."""
        return "leaf" if set(self.leaves) <= set(self.labels) else "region"

    def score(self, case: str, structure: str) -> Score | None:
        return self.by_case[case].leaves.get(structure)

    def is_union(self, case: str, structure: str) -> bool:
        score = self.score(case, structure)
        return score is not None and score.union is not None

    def value(self, case: str, structure: str, metric: str) -> float | None:
        if metric == KNOWN_WRONG.name:
            return self.by_case[case].known_wrong_share
        score = self.score(case, structure)
        return None if score is None else score.values[metric]


@dataclass(frozen=True, kw_only=True)
class Cell(Description):
    """A method's scores of a structure, over the cases in which all methods have one."""

    method: str
    leaf: str
    metric: str
    n_union: int
    best: bool
    mark: str  # "better" or "worse" than the baseline, significantly, or ""


@dataclass(frozen=True, kw_only=True)
class PairedTest(Difference):
    """Two methods on a structure, differences `b - a`."""

    a: str
    b: str
    baseline: bool
    leaf: str
    metric: str
    p_adjusted: float | None
    significant: bool
    better: str | None


@dataclass(frozen=True)
class Detection:
    """In how many cases a method found, missed or invented a structure; absent in both counts
    nowhere else.
    """

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


@dataclass(frozen=True)
class Comparison:
    """The content of comparison.json (docs/evaluation.md). A leaf "" is the whole case: known-wrong
    voxels.
    """

    version: int
    methods: tuple[str, ...]
    baseline: str
    sources: dict[str, str]
    alpha: float
    correction: str
    cap: float | None
    leaves: tuple[str, ...]
    unions: dict[str, tuple[str, ...]]
    metrics: tuple[str, ...]
    cases: tuple[str, ...]
    left_out: dict[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    tests: tuple[PairedTest, ...]
    detection: tuple[Detection, ...]
    ranks: tuple[Rank, ...]  # of three and more methods
    critical_difference: dict[str, float]  # of mean ranks, by metric (Nemenyi, at `alpha`)
    notes: tuple[str, ...]

    @property
    def structures(self) -> tuple[str, ...]:
        return (*self.leaves, *self.unions)

    def cell(self, method: str, leaf: str, metric: str) -> Cell:
        return self._cells[method, leaf, metric]

    @cached_property
    def _cells(self) -> dict[tuple[str, str, str], Cell]:
        return {(cell.method, cell.leaf, cell.metric): cell for cell in self.cells}


def read_evaluation(file: str | Path) -> Evaluation:
    """metrics.json, checked: whoever has an Evaluation need not ask again whether it is whole."""
    content = read_json(file)
    if content.get("version") != VERSION:
        raise LabelSetError(
            f"{file}: not a result of this version of 'nnunet_labelset evaluate' (expected version {VERSION}, got "
            f"{str(content.get('version'))[:20]}): run it again"
        )
    if "summary" in content:  # its old name
        content["averages"] = content.pop("summary")
    found = from_json(Evaluation, content, f"{file}:")
    if not found.cases:
        raise LabelSetError(f"{file}: no cases: run 'nnunet_labelset evaluate' again")
    if unknown := set(found.settings.metrics) - set(METRICS):
        raise LabelSetError(f"{file}: settings.metrics: unknown metrics {some(sorted(unknown))}")
    names = Counter(case.case for case in found.cases)
    if twice := sorted(name for name, number in names.items() if number > 1):
        raise LabelSetError(f"{file}: listed more than once: {some(twice)}")
    for case in found.cases:
        _check_case(case, found, f"{file}: case '{case.case}'")
    for column, groups in {"": {"": found.averages.overall}, **found.averages.groups}.items():
        for group, averages in groups.items():
            _check_averages(averages, found, f"{file}: averages {column} {group}".rstrip())
    return found


def _check_case(case: Case, found: Evaluation, where: str) -> None:
    structures = set(found.structures)
    if missing := set(found.leaves) - set(case.leaves):
        raise LabelSetError(f"{where}: no scores of {some(sorted(missing))}")
    if unknown := set(case.leaves) - structures:
        raise LabelSetError(f"{where}: scores of unknown leaves {some(sorted(unknown))}")
    _require(found.group_columns, case.groups, f"{where}: groups")
    for leaf, score in case.leaves.items():
        if score.outcome not in OUTCOMES:
            raise LabelSetError(f"{where}, {leaf}: unknown outcome '{score.outcome}'")
        _require(found.settings.metrics, score.values, f"{where}, {leaf}")
        for metric in METRICS:  # one that is newer than the file
            score.values.setdefault(metric, None)


def _check_averages(averages: Averages, found: Evaluation, where: str) -> None:
    _require(found.structures, averages.leaves, where)
    for leaf, of_leaf in averages.leaves.items():
        _require(
            (*found.settings.metrics, *OUTCOMES),
            (*of_leaf.metrics, *of_leaf.outcomes),
            f"{where}, {leaf}",
        )
    _require(found.settings.metrics, averages.mean, f"{where}: mean")


def _require(names: Iterable[str], given: Iterable[str], where: str) -> None:
    if missing := set(names).difference(given):
        raise LabelSetError(f"{where}: '{min(missing)}' is missing")


def load_results(arguments: Sequence[str]) -> tuple[dict[str, Evaluation], dict[str, str]]:
    """Evaluations by method name, and where they are, from `NAME=PATH` or `PATH`; all bad ones are
    named together.
    """
    results: dict[str, Evaluation] = {}
    sources: dict[str, str] = {}
    problems = []
    for argument in arguments:
        try:
            name, file = _named_file(argument)
            if name in sources:
                raise LabelSetError(f"two result sets are called '{name}': name them: NAME={file}")
            sources[name] = str(file.absolute())
            results[name] = read_evaluation(file)
        except LabelSetError as error:
            problems.append(str(error))
    if problems:
        raise LabelSetError("; ".join(problems))
    return results, sources


def _named_file(argument: str) -> tuple[str, Path]:
    """The method and its metrics.json; a name may hold `=`, so that the first path that exists
    counts.
    """
    pieces = argument.split("=")
    for cut in range(len(pieces)):
        file = find_metrics("=".join(pieces[cut:]))
        if file:
            folder = file.parent.parent if file.parent.name == "evaluation" else file.parent
            return "=".join(pieces[:cut]) or folder.absolute().name, file
    path = argument if len(pieces) == 1 else argument.partition("=")[2]
    raise LabelSetError(f"{path}: no metrics.json there: run 'nnunet_labelset evaluate' first")


def find_metrics(path: str | Path) -> Path | None:
    """metrics.json, given itself, its folder, or the folder of the predictions."""
    candidates = [
        Path(path),
        Path(path) / "metrics.json",
        Path(path) / "evaluation" / "metrics.json",
    ]
    return next((file for file in candidates if path and file.is_file()), None)
