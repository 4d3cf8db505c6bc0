"""Baseline 1 of the paper: training on the complete cases only."""

from __future__ import annotations

from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER
from nnunet_labelset.training.checks import stop
from nnunet_labelset.training.mixin import LabelSetMixin
from nnunet_labelset.training.sampling import UNIFORM


class FullySupervisedMixin(LabelSetMixin):
    """Train on the fully annotated cases only; validation keeps all of its cases."""

    sampling = UNIFORM  # a baseline: as nnU-Net

    def do_split(self) -> tuple[list[str], list[str]]:
        training, validation_cases = super().do_split()
        complete = [case for case in training if self.contract.is_fully_annotated(case)]
        self.print_to_log_file(
            f"Fully supervised: {len(complete)} of {len(training)} training cases are complete"
        )
        if not complete:
            stop(
                f"fold {self.fold} has no fully annotated training case: use a label-set loss "
                f"({DEFAULT_TRAINER}), or other splits ('nnunet_labelset splits')"
            )
        return complete, validation_cases
