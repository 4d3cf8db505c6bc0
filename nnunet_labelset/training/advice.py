"""What a training log says when the data and the trainer do not go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER
from nnunet_labelset.nnunet.recommendation import (
    NO_MIRRORING,
    reasons,
    recommended_trainer,
    sided_pairs,
)
from nnunet_labelset.training.base import Trainer

PATIENCE = 20  # epochs without a voxel right; of a short training, a third
NOTHING = 1e-3  # a Dice so low is none: the counts of earlier epochs fade, but not to 0


def dead_leaves(history: Sequence[Sequence[float]], patience: int) -> list[int]:
    """Leaves, counted without background, that had nothing in all of their last `patience` scores
    (NaN: no score).
    """
    if not history:
        return []
    dead = []
    for leaf, column in enumerate(np.array(history, float).T):
        scores = column[~np.isnan(column)][-patience:]
        if len(scores) == patience and (scores < NOTHING).all():
            dead.append(leaf)
    return dead


class AdviceMixin(Trainer):
    """Warnings at the start and at the end of an epoch; a part of `LabelSetMixin`."""

    contract: Any
    training_state: Any

    @property
    def foreground_names(self) -> tuple[str, ...]:
        raise NotImplementedError

    def _log_recommendation(self, coverage: Mapping[str, int], training: Sequence[str]) -> None:
        """The same advice as in the documentation, with what speaks for it in these cases."""
        size = self.configuration_manager
        patch = (
            size.patch_size if self.contract.regions is None else ()
        )  # the loss of regions has no running Dice
        why = reasons(coverage, len(training), patch, size.median_image_size_in_voxels)
        if all(map(self.contract.is_fully_annotated, self.contract.cases)):
            text = "every case is fully annotated: nnU-Net's own nnUNetTrainer would do"
        else:
            text = "; ".join(
                [
                    f"{recommended_trainer(self.contract.leaf_names)} (this is {type(self).__name__})",
                    *why,
                ]
            )
        self.print_to_log_file(f"Recommended for these cases: {text}")

    def on_train_start(self) -> None:
        super().on_train_start()  # sets the axes of mirroring
        pairs = sided_pairs(self.contract.leaf_names)
        if pairs and self.inference_allowed_mirroring_axes:
            named = ", ".join(f"'{a}' and '{b}'" for a, b in pairs[:3])
            self.print_to_log_file(
                f"WARNING: {named} differ by side, and mirroring makes left and right the same: "
                f"use {DEFAULT_TRAINER}{NO_MIRRORING}, or put LabelSetMixin before nnUNetTrainerNoMirroring"
            )

    def on_epoch_end(self) -> None:
        patience = min(PATIENCE, max(3, self.num_epochs // 3))
        history = self.logger.get_value("dice_per_class_or_region", step=None)
        counts = self.training_state.get("pseudo_dice_counts")
        for leaf in dead_leaves(history, patience):
            if (
                counts is not None and counts[2][leaf] == 0
            ):  # nothing was missed: false positives alone
                continue
            name = self.foreground_names[leaf]
            if (self.current_epoch + 1) % patience == 0:  # not in every epoch
                self.print_to_log_file(
                    f"WARNING: '{name}' is annotated, but its Dice has been 0 in its last {patience} scores. "
                    + self._advice_for_dead_leaves()
                )
        super().on_epoch_end()

    def _advice_for_dead_leaves(self) -> str:
        if type(self).__name__.startswith(DEFAULT_TRAINER):
            return "Look at its annotations ('nnunet_labelset verify'), or train longer"
        return f"This loss may never find it: use {DEFAULT_TRAINER}, which keeps pulling at a leaf that is not found"
