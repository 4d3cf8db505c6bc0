"""What a training log says when the data and the trainer do not go together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER

if TYPE_CHECKING:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer as Trainer
else:
    Trainer = object

PATIENCE = 20  # epochs without a single voxel right; of a short training, a third
SIDES = {"left": "right", "l": "r", "lh": "rh", "sin": "dex"}


def sided_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names that differ by left and right alone: 'LeftParotid' and 'RightParotid', 'kidney_l' and 'kidney_r'."""
    words = {name: re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name) for name in names}
    by_words = {tuple(word.lower() for word in found): name for name, found in words.items()}
    pairs = []
    for key, name in by_words.items():
        other = tuple(SIDES.get(word, word) for word in key)
        if other != key and other in by_words:
            pairs.append((name, by_words[other]))
    return pairs


def dead_leaves(history: Sequence[Sequence[float]], patience: int) -> list[int]:
    """Leaves, counted without background, whose Dice was 0 in all of their last `patience` scores (NaN: no score)."""
    if not history:
        return []
    dead = []
    for leaf, column in enumerate(np.array(history, float).T):
        scores = column[~np.isnan(column)][-patience:]
        if len(scores) == patience and not scores.any():
            dead.append(leaf)
    return dead


class AdviceMixin(Trainer):
    """Warnings at the start and at the end of an epoch; a part of `LabelSetMixin`."""

    contract: Any
    training_state: Any

    @property
    def foreground_names(self) -> tuple[str, ...]:
        raise NotImplementedError

    def on_train_start(self) -> None:
        super().on_train_start()  # sets the axes of mirroring
        pairs = sided_pairs(self.contract.leaf_names)
        if pairs and self.inference_allowed_mirroring_axes:
            named = ", ".join(f"'{a}' and '{b}'" for a, b in pairs[:3])
            self.print_to_log_file(
                f"WARNING: {named} differ by side, and mirroring makes left and right the same: "
                f"use {DEFAULT_TRAINER}_NoMirroring, or put LabelSetMixin before nnUNetTrainerNoMirroring"
            )

    def on_epoch_end(self) -> None:
        patience = min(PATIENCE, max(3, self.num_epochs // 3))
        history = self.logger.get_value("dice_per_class_or_region", step=None)
        counts = self.training_state.get("pseudo_dice_counts")
        for leaf in dead_leaves(history, patience):
            if counts is not None and counts[2][leaf] == 0:  # nothing was missed: false positives alone
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
        return f"A Dice loss alone may never find it: use {DEFAULT_TRAINER}, whose cross entropy does"
