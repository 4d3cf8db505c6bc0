"""Lesions one by one: panoptica matches the connected components of reference and prediction. An optional package."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnunet_labelset.errors import LabelSetError

OVERLAP = 0.5  # IoU from which on two components are the same lesion


@dataclass(frozen=True)
class Instances:
    """Matched components, and those of reference and prediction; `quality` is the mean IoU of what was matched."""

    found: int
    reference: int
    predicted: int
    quality: float

    @property
    def f1(self) -> float:
        return 2 * self.found / (self.reference + self.predicted)

    @property
    def panoptic_quality(self) -> float:
        return self.quality * self.f1


def require_panoptica() -> Any:
    os.environ.setdefault("PANOPTICA_CITATION_REMINDER", "false")  # it prints one in every worker
    try:
        import panoptica
    except ImportError:
        raise LabelSetError("--instances needs panoptica: pip install 'nnunet_labelset[instances]'") from None
    return panoptica


def match_instances(reference: np.ndarray, prediction: np.ndarray) -> Instances:
    """The components of two bool masks, not both empty, matched one to one where their IoU is `OVERLAP` or more."""
    package = require_panoptica()
    evaluator = package.Panoptica_Evaluator(
        expected_input=package.InputType.SEMANTIC,
        instance_approximator=package.ConnectedComponentsInstanceApproximator(),
        instance_matcher=package.NaiveThresholdMatching(matching_metric=package.Metric.IOU, matching_threshold=OVERLAP),
        instance_metrics=[package.Metric.IOU],
        global_metrics=[],
    )
    found = evaluator.evaluate(prediction.astype(np.uint8), reference.astype(np.uint8), verbose=False)["ungrouped"]
    quality = float(found.sq) if found.tp else 0.0
    return Instances(int(found.tp), int(found.n_ref_instances), int(found.n_pred_instances), quality)
