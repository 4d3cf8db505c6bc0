"""Lesions one by one: panoptica matches the connected components of reference and prediction. An
optional package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nnunet_labelset.errors import LabelSetError

OVERLAP = 0.5  # IoU from which on two components are the same lesion


@dataclass(frozen=True)
class Instances:
    """Matched components, and those of reference and prediction; `quality` is the mean IoU of what
    was matched.
    """

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
    try:
        import panoptica
    except ImportError:
        raise LabelSetError(
            "--instances needs panoptica: pip install 'nnunet_labelset[instances]'"
        ) from None
    panoptica.disable_citation_reminder()  # it would be printed by every worker
    return panoptica


def match_instances(reference: np.ndarray, prediction: np.ndarray) -> Instances:
    """The components of two bool masks, not both empty, matched one to one where their IoU is
    `OVERLAP` or more.

    Voxels that touch at a corner belong together, in 2D too: panoptica by itself has another rule
    there.
    """
    package = require_panoptica()
    images = [np.atleast_3d(mask).astype(np.uint8) for mask in (prediction, reference)]
    evaluator = package.Panoptica_Evaluator(
        expected_input=package.InputType.SEMANTIC,
        instance_approximator=package.ConnectedComponentsInstanceApproximator(),
        instance_matcher=package.NaiveThresholdMatching(
            matching_metric=package.Metric.IOU, matching_threshold=OVERLAP
        ),
        instance_metrics=[package.Metric.IOU],
        global_metrics=[],
    )
    found = evaluator.evaluate(*images, verbose=False)["ungrouped"]
    quality = float(found.sq) if found.tp else 0.0
    return Instances(
        int(found.tp), int(found.n_ref_instances), int(found.n_pred_instances), quality
    )
