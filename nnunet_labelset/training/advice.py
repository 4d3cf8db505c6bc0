"""Advice in the training log where trainer and data do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnunet_labelset.contract import Contract
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER, NO_MIRRORING
from nnunet_labelset.nnunet.extend import extension_trainer
from nnunet_labelset.nnunet.recommendation import (
    TEACHER_TRAINER,
    reasons,
    recommended_trainer,
    sided_pairs,
)

PATIENCE = 20  # epochs without a correct voxel; a third of a short training
NOTHING = 1e-3  # the counts of earlier epochs decay, but never to 0


class Advice:
    """Writes advice into the training log."""

    def __init__(self, contract: Contract, trainer_name: str, log: Callable[[str], None]) -> None:
        """
        contract: of the data set.
        trainer_name: the class of this training.
        log: writes a line into the training log.
        """
        self.contract = contract
        self.trainer_name = trainer_name
        self.log = log
        self.family = DEFAULT_TRAINER  # the trainers that advice may name
        self.taught: list[str] = []  # labels that an old model knows

    def show_coverage(
        self,
        coverage: Callable[[Sequence[str]], Mapping[str, int]],
        training: Sequence[str],
        validation: Sequence[str],
    ) -> None:
        """Log in how many cases each label or region is annotated.

        coverage: counts these cases for every label.
        """
        training_coverage = coverage(training)
        validation_coverage = coverage(validation)
        width = max(map(len, training_coverage))
        lines = ["Cases in which each label is annotated (training, validation):"]
        for label, number in training_coverage.items():
            lines.append(
                f"  {label:{width}}  {number:5d} of {len(training)}  "
                f"{validation_coverage[label]:5d} of {len(validation)}"
            )
        self.log("\n".join(lines))

    def recommend(self, coverage: Mapping[str, int], num_cases: int, plan: Any) -> None:
        """Name the trainer for these cases, and why.

        coverage: in how many of the `num_cases` training cases each label is annotated.
        plan: nnU-Net's configuration, with the sizes of patches and images.
        """
        if all(map(self.contract.is_fully_annotated, self.contract.cases)):
            self._recommend("nnUNetTrainer", ["every case is fully annotated"])
            return
        has_regions = self.contract.regions is not None  # their loss has no running Dice
        patch_size = () if has_regions else plan.patch_size
        why = reasons(coverage, num_cases, patch_size, plan.median_image_size_in_voxels)
        self._recommend(recommended_trainer(self.contract.leaf_names), why)

    def recommend_extended(
        self, coverage: Mapping[str, int], new_labels: Sequence[str], has_teacher: bool
    ) -> None:
        """Do the same for a training that `extend` started: old labels must not be forgotten."""
        old_labels = [label for label in coverage if label not in new_labels]
        trainer = extension_trainer(self.contract, old_labels, list(coverage))
        if trainer.startswith(TEACHER_TRAINER):
            self.family = TEACHER_TRAINER
        self.taught = old_labels if has_teacher else []
        self._recommend(trainer, ["the training extends a model"])
        unannotated = [f"'{label}'" for label in old_labels if coverage[label] == 0]
        if unannotated and not has_teacher:
            self.log(
                f"WARNING: no training case annotates {some(unannotated)}, and the network will "
                f"forget what it knew: train with {trainer}, or add cases that annotate them"
            )

    def _recommend(self, trainer: str, why: Sequence[str]) -> None:
        facts = "; ".join([f"{trainer} (this is {self.trainer_name})", *why])
        self.log(f"Recommended for these cases: {facts}")

    def warn_of_missing_labels(self, coverage: Mapping[str, int]) -> None:
        """Name labels that no training case annotates and no old model teaches; background is
        known from what excludes it.
        """
        for label, number in coverage.items():
            if number == 0 and label not in ("background", *self.taught):
                self.log(
                    f"WARNING: no training case annotates '{label}': it cannot be learned well"
                )

    def warn_of_mirroring(self, mirrored_axes: Sequence[int] | None) -> None:
        """Warn if mirroring mixes up labels that differ by side."""
        pairs = sided_pairs(self.contract.leaf_names)
        if not pairs or not mirrored_axes:
            return
        named = ", ".join(f"'{left}' and '{right}'" for left, right in pairs[:3])
        self.log(
            f"WARNING: {named} differ by side, and mirroring makes left and right the same: "
            f"use {self.family}{NO_MIRRORING}, or put LabelSetMixin before "
            "nnUNetTrainerNoMirroring"
        )

    def warn_of_dead_labels(
        self,
        names: Sequence[str],
        history: Sequence[Sequence[float]],
        counts: np.ndarray,
        num_epochs: int,
    ) -> None:
        """Name labels whose Dice stays at 0, every few epochs.

        history: the scores of all epochs.
        counts: `(3, labels)` true positives, false positives and false negatives in the recent
            epochs.
        num_epochs: the length of the whole training.
        """
        patience = min(PATIENCE, max(3, num_epochs // 3))
        if len(history) % patience:
            return
        for label in dead_labels(history, patience):
            if counts[2, label] > 0:  # else there are false positives only: it was not seen
                self.log(
                    f"WARNING: '{names[label]}' is annotated, but its Dice has been 0 in its last "
                    f"{patience} scores. {self._remedy()}"
                )

    def _remedy(self) -> str:
        if self.trainer_name.startswith(self.family):
            return "Look at its annotations ('nnunet_labelset verify'), or train longer"
        return f"This loss may never find it: use {self.family}"


def dead_labels(history: Sequence[Sequence[float]], patience: int) -> list[int]:
    """Return the labels, counted without background, whose last `patience` scores were all 0.

    NaN is not a score.
    """
    dead = []
    for label, column in enumerate(np.array(history, float).T):
        scores = column[~np.isnan(column)][-patience:]
        if len(scores) == patience and (scores < NOTHING).all():
            dead.append(label)
    return dead
