"""The registry of metrics: a row for each one in `_ROWS`; `SHOWN` are those in tables by default.

Verbs, tables, plots and CSV files take names, units and digits from the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from nnunet_labelset.evaluation.instances import Instances
from nnunet_labelset.evaluation.statistics import Description, describe
from nnunet_labelset.evaluation.surface import SurfaceDistances


class Kind(Enum):
    """What a metric is computed from."""

    OVERLAP = "overlap"  # counts of voxels: a share
    VOLUME = "volume"  # counts of voxels times their size
    SURFACE = "surface"  # distances between surfaces: a share of their area
    DISTANCE = "distance"  # distances between surfaces: mm
    INSTANCE = "instance"  # connected components, with --instances
    CASE = "case"  # of a whole case, not of a label


@dataclass(frozen=True)
class Measured:
    """What was counted and measured of a structure in a case; all metrics are functions of it."""

    tp: int
    fp: int
    fn: int
    predicted: int  # all voxels predicted as it, counted or not
    volume: float  # of a voxel: ml, or cm² in 2D
    tolerance: float  # mm
    surfaces: SurfaceDistances | None = None
    instances: Instances | None = None


@dataclass(frozen=True)
class Metric:
    """A row: values times `scale` are shown in `unit`. `better` is "higher", "lower", or "" where
    a metric has no better/worse direction.
    """

    name: str
    title: str
    unit: str
    scale: float
    better: str
    kind: Kind
    compute: Callable[[Measured], float | None]
    digits: int = 1

    @property
    def heading(self) -> str:
        return f"{self.title} {self.unit}".rstrip()

    @property
    def needs_surface(self) -> bool:
        return self.kind in (Kind.SURFACE, Kind.DISTANCE)

    @property
    def is_distance(self) -> bool:
        return self.kind is Kind.DISTANCE

    @property
    def of_instances(self) -> bool:
        return self.kind is Kind.INSTANCE

    @property
    def perfect(self) -> float | None:
        """The best possible value: that of a method that rightly predicts nothing."""
        return {"higher": 1.0, "lower": 0.0}.get(self.better)

    def best(self, values: Iterable[float | None]) -> float | None:
        """Return the best of the values that are not None."""
        known = [value for value in values if value is not None]
        return (max if self.better == "higher" else min)(known, default=None)

    def describe(
        self,
        values: Iterable[float | None],
        interval: bool = False,
        subjects: Sequence[str] | None = None,
    ) -> Description:
        """Return the values in short; the interval holds possible values only."""
        description = describe(values, interval, subjects)
        if description.low is None or description.high is None or not self.better:
            return description
        top = 1.0 if self.unit == "%" and self.better == "higher" else description.high
        return replace(description, low=max(0.0, description.low), high=min(top, description.high))

    def scaled(self, value: float | None) -> float | None:
        return None if value is None else self.scale * value

    def show(self, value: float | None, sign: str = "") -> str:
        if value is None:
            return "-"
        rounded = round(self.scale * value, self.digits) + 0.0  # -0.0 is no number to print
        return f"{rounded:{sign}.{self.digits}f}"

    def show_sd(self, description: Description) -> str:
        """` (6.7)`, with a space before it; empty where a single value has no deviation."""
        return "" if description.sd is None else f" ({self.show(description.sd)})"

    def show_mean(self, description: Description) -> str:
        """`91.5 (6.7)`, `91.5` where a single value has no deviation, `-` where there is none."""
        return self.show(description.mean) + self.show_sd(description)


def _share(count: float, whole: float) -> float | None:
    return count / whole if whole else None


def _surface(
    function: Callable[[SurfaceDistances, float], float],
) -> Callable[[Measured], float | None]:
    return lambda m: None if m.surfaces is None else function(m.surfaces, m.tolerance)


def _instances(function: Callable[[Instances], float]) -> Callable[[Measured], float | None]:
    return lambda m: None if m.instances is None else function(m.instances)


def _overlap(name: str, title: str, compute: Callable[[Measured], float | None]) -> Metric:
    return Metric(name, title, "%", 100, "higher", Kind.OVERLAP, compute)


def _distance(
    name: str, title: str, function: Callable[[SurfaceDistances, float], float], digits: int = 1
) -> Metric:
    return Metric(name, title, "mm", 1, "lower", Kind.DISTANCE, _surface(function), digits)


def _volume(
    name: str, title: str, better: str, compute: Callable[[Measured], float | None]
) -> Metric:
    return Metric(name, title, "ml", 1, better, Kind.VOLUME, compute, 2)


def _instance_share(name: str, title: str, function: Callable[[Instances], float]) -> Metric:
    return Metric(name, title, "%", 100, "higher", Kind.INSTANCE, _instances(function))


def _instance_count(name: str, title: str, function: Callable[[Instances], float]) -> Metric:
    return Metric(name, title, "", 1, "", Kind.INSTANCE, _instances(function))


_ROWS = (
    _overlap("dice", "Dice", lambda m: _share(2 * m.tp, 2 * m.tp + m.fp + m.fn)),
    _overlap("iou", "IoU", lambda m: _share(m.tp, m.tp + m.fp + m.fn)),
    Metric("nsd", "NSD", "%", 100, "higher", Kind.SURFACE, _surface(SurfaceDistances.share_within)),
    _distance("hd95", "HD95", lambda surfaces, _: surfaces.percentile(95)),
    _distance("hd100", "HD", lambda surfaces, _: surfaces.percentile(100)),
    _distance("assd", "ASSD", lambda surfaces, _: surfaces.mean(), digits=2),
    _overlap("precision", "Precision", lambda m: _share(m.tp, m.tp + m.fp)),
    _overlap("recall", "Recall", lambda m: _share(m.tp, m.tp + m.fn)),
    _volume("fp_volume", "FP volume", "lower", lambda m: m.fp * m.volume),
    _volume("fn_volume", "FN volume", "lower", lambda m: m.fn * m.volume),
    _volume("volume_ref", "Reference volume", "", lambda m: (m.tp + m.fn) * m.volume),
    _volume("volume_pred", "Predicted volume", "", lambda m: m.predicted * m.volume),
    _volume("volume_difference", "Volume difference", "", lambda m: (m.fp - m.fn) * m.volume),
    _volume(
        "absolute_volume_difference",
        "Absolute volume difference",
        "lower",
        lambda m: abs(m.fp - m.fn) * m.volume,
    ),
    Metric(
        "relative_volume_difference",
        "Relative volume difference",
        "%",
        100,
        "lower",
        Kind.VOLUME,
        lambda m: _share(abs(m.fp - m.fn), m.tp + m.fn),
    ),
    _instance_share("instance_f1", "Instance F1", lambda i: i.f1),
    _instance_share("instance_pq", "Panoptic quality", lambda i: i.panoptic_quality),
    _instance_count("instances_ref", "Reference instances", lambda i: i.reference),
    _instance_count("instances_pred", "Predicted instances", lambda i: i.predicted),
    _instance_count("instances_found", "Instances found", lambda i: i.found),
)
METRICS = {metric.name: metric for metric in _ROWS}
VOLUMES = ("volume_ref", "volume_pred")  # of one image: defined whatever the outcome
SHOWN = ("dice", "nsd", "hd95")  # in tables, unless others are asked for
# Voxels predicted outside of their label-set, as a share of those with at least one excluded label.
KNOWN_WRONG = Metric(
    "known_wrong", "Known wrong", "%", 100, "lower", Kind.CASE, lambda _: None, digits=2
)
COMPARED = {**METRICS, KNOWN_WRONG.name: KNOWN_WRONG}


def mm_range(ends: Sequence[float]) -> str:
    """`1 mm`, or `1 to 5 mm` where cases differ."""
    low, high = (f"{end:.3g}" for end in ends)
    return f"{low} mm" if low == high else f"{low} to {high} mm"
