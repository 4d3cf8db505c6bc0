"""The metrics: one row each. `evaluate`, `compare`, tables, plots and CSV files read what they are
from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nnunet_labelset.evaluation.instances import Instances
from nnunet_labelset.evaluation.statistics import Description
from nnunet_labelset.evaluation.surface import SurfaceDistances


@dataclass(frozen=True)
class Measured:
    """What was counted and measured of a leaf or union in a case; all metrics are functions of it."""

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
    neither is.

    `worst` makes it a metric of surfaces, and is what a missed or invented structure gets: a share,
    or infinite for a distance, which stands for the diagonal of the image or `--cap`.
    """

    name: str
    title: str
    unit: str
    scale: float
    better: str
    compute: Callable[[Measured], float | None]
    worst: float | None = None
    digits: int = 1
    of_instances: bool = False  # only with --instances

    @property
    def heading(self) -> str:
        return f"{self.title} {self.unit}".rstrip()

    @property
    def is_distance(self) -> bool:
        return self.worst == math.inf

    def best(self, values: Iterable[float | None]) -> float | None:
        """Of those that are there."""
        known = [value for value in values if value is not None]
        return (max if self.better == "higher" else min)(known, default=None)

    def scaled(self, value: float | None) -> float | None:
        return None if value is None else self.scale * value

    def show(self, value: float | None) -> str:
        return "-" if value is None else f"{self.scale * value:.{self.digits}f}"

    def show_sd(self, found: Description) -> str:
        """` (6.7)`, with a space before it; empty where a single value has no deviation."""
        return "" if found.sd is None else f" ({self.show(found.sd)})"

    def show_mean(self, found: Description) -> str:
        """`91.5 (6.7)`, `91.5` where a single value has no deviation, `-` where there is none."""
        return self.show(found.mean) + self.show_sd(found)


def _share(count: float, whole: float) -> float | None:
    return count / whole if whole else None


def _surface(
    function: Callable[[SurfaceDistances, float], float],
) -> Callable[[Measured], float | None]:
    return lambda of: None if of.surfaces is None else function(of.surfaces, of.tolerance)


def _of_instances(
    name: str,
    title: str,
    unit: str,
    scale: float,
    better: str,
    function: Callable[[Instances], float],
) -> Metric:
    def compute(of: Measured) -> float | None:
        return None if of.instances is None else function(of.instances)

    return Metric(name, title, unit, scale, better, compute, of_instances=True)


_ROWS = (
    Metric(
        "dice", "Dice", "%", 100, "higher", lambda of: _share(2 * of.tp, 2 * of.tp + of.fp + of.fn)
    ),
    Metric("iou", "IoU", "%", 100, "higher", lambda of: _share(of.tp, of.tp + of.fp + of.fn)),
    Metric("nsd", "NSD", "%", 100, "higher", _surface(SurfaceDistances.share_within), 0.0),
    Metric(
        "hd95", "HD95", "mm", 1, "lower", _surface(lambda found, _: found.percentile(95)), math.inf
    ),
    Metric(
        "hd100", "HD", "mm", 1, "lower", _surface(lambda found, _: found.percentile(100)), math.inf
    ),
    Metric("assd", "ASSD", "mm", 1, "lower", _surface(lambda found, _: found.mean()), math.inf, 2),
    Metric("precision", "Precision", "%", 100, "higher", lambda of: _share(of.tp, of.tp + of.fp)),
    Metric("recall", "Recall", "%", 100, "higher", lambda of: _share(of.tp, of.tp + of.fn)),
    Metric("fp_volume", "FP volume", "ml", 1, "lower", lambda of: of.fp * of.volume, digits=2),
    Metric("fn_volume", "FN volume", "ml", 1, "lower", lambda of: of.fn * of.volume, digits=2),
    Metric(
        "volume_ref",
        "Reference volume",
        "ml",
        1,
        "",
        lambda of: (of.tp + of.fn) * of.volume,
        digits=2,
    ),
    Metric(
        "volume_pred",
        "Predicted volume",
        "ml",
        1,
        "",
        lambda of: of.predicted * of.volume,
        digits=2,
    ),
    Metric(
        "volume_difference",
        "Volume difference",
        "ml",
        1,
        "",
        lambda of: (of.fp - of.fn) * of.volume,
        digits=2,
    ),
    Metric(
        *("absolute_volume_difference", "Absolute volume difference", "ml", 1, "lower"),
        lambda of: abs(of.fp - of.fn) * of.volume,
        digits=2,
    ),
    Metric(
        *("relative_volume_difference", "Relative volume difference", "%", 100, "lower"),
        lambda of: _share(abs(of.fp - of.fn), of.tp + of.fn),
    ),
    _of_instances("instance_f1", "Instance F1", "%", 100, "higher", lambda of: of.f1),
    _of_instances(
        "instance_pq", "Panoptic quality", "%", 100, "higher", lambda of: of.panoptic_quality
    ),
    _of_instances("instances_ref", "Reference instances", "", 1, "", lambda of: of.reference),
    _of_instances("instances_pred", "Predicted instances", "", 1, "", lambda of: of.predicted),
    _of_instances("instances_found", "Instances found", "", 1, "", lambda of: of.found),
)
METRICS = {metric.name: metric for metric in _ROWS}
SHOWN = ("dice", "nsd", "hd95")  # in tables, unless others are asked for
# Of a case, not of a leaf: voxels predicted outside of their label-set, as a share of those of
# which anything is known.
KNOWN_WRONG = Metric("known_wrong", "Known wrong", "%", 100, "lower", lambda of: None, digits=2)
COMPARED = {**METRICS, KNOWN_WRONG.name: KNOWN_WRONG}
