"""What the sections of a report share: the evaluations, their comparison, the contract, and what
was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from nnunet_labelset.contract import Contract
from nnunet_labelset.evaluation.averages import mean_column
from nnunet_labelset.evaluation.metric import METRICS, SHOWN, Metric
from nnunet_labelset.evaluation.results import Comparison, Evaluation, Score
from nnunet_labelset.evaluation.statistics import Description
from nnunet_labelset.nnunet.logs import Curves

WIDE = 10  # more labels than this stand in rows, not in columns


@dataclass(frozen=True)
class Report:
    """One evaluation or several of the same cases."""

    results: Mapping[str, Evaluation]
    sources: Mapping[str, str]
    folder: Path  # where the report will stand, for the links
    contract: Contract | None = None
    no_contract: str = ""  # why there is none
    compared: Comparison | None = None
    stale: Sequence[str] = ()
    models: Mapping[str, Sequence[Curves]] = field(default_factory=dict)
    worst: int = 3
    wanted_cases: Sequence[str] = ()

    @property
    def methods(self) -> list[str]:
        return list(self.results)

    @property
    def first(self) -> Evaluation:
        return next(iter(self.results.values()))

    @cached_property
    def cases(self) -> list[str]:
        """Those that all methods have."""
        return sorted(set.intersection(*(set(result.by_case) for result in self.results.values())))

    @cached_property
    def structures(self) -> list[str]:
        """Return labels, then unions and regions."""
        return list(
            dict.fromkeys(name for result in self.results.values() for name in result.structures)
        )

    @property
    def metrics(self) -> list[Metric]:
        """What is shown, of what all evaluations have."""
        return [
            METRICS[name]
            for name in SHOWN
            if all(name in of.settings.metrics for of in self.results.values())
        ]

    @property
    def unit(self) -> str:
        return self.first.unit

    def score(self, method: str, case: str, structure: str) -> Score | None:
        return self.results[method].score(case, structure)

    def value(self, method: str, case: str, structure: str, metric: str) -> float | None:
        return self.results[method].value(case, structure, metric)

    def means(self, metric: str) -> dict[str, Description]:
        """Return the one mean of every method: over the labels of a case, then over the cases."""
        if self.compared is not None:
            return {method: self.compared.cell(method, None, metric) for method in self.methods}
        return {
            method: result.averages.overall.mean[metric] for method, result in self.results.items()
        }

    def case_mean(self, method: str, case: str) -> float | None:
        """Return the mean Dice over the labels that count in a case, as `evaluate` has it."""
        result = self.results[method]
        column = mean_column({method: result.by_case}, [case], result.leaves, METRICS["dice"])
        return next(iter(column.values[method]), None)

    @cached_property
    def best_method(self) -> str:
        """That with the best mean Dice, as the overview has it."""
        means = self.means("dice")
        return max(means, key=lambda method: means[method].mean or 0.0)
