"""Pseudo-Dice: the score of every epoch, which also selects the best checkpoint.

tp, fp and fn are counted by label-set. nnU-Net would mask the ignore label and take unannotated for
absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from nnunet_labelset.evaluation.counts import Counts, dice, label_set_counts
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import BEST_CHECKPOINT

# What remains of the counts after each epoch: scores lag behind by three epochs, and ten epochs
# after a label was last seen 3 % are left.
DECAY = 0.7


@dataclass(frozen=True)
class StepCounts:
    """What is known about the voxels of some batches."""

    counts: np.ndarray  # (3, labels): tp, fp, fn
    wrong: int  # voxels whose prediction the annotation excludes
    known: int  # voxels in which the annotation excludes some label

    @classmethod
    def of_labels(cls, logits: Tensor, target: Tensor, membership: np.ndarray) -> StepCounts:
        """Count logits `(B, C, *S)` against set indices `(B, *S)`, without background."""
        num_sets, num_leaves = membership.shape
        joint = (target * num_leaves + logits.argmax(1)).flatten()
        cells = torch.bincount(joint, minlength=num_sets * num_leaves)
        confusion = cells.reshape(num_sets, num_leaves).cpu().numpy()
        tp, fp, fn, _ = label_set_counts(confusion, membership)
        is_known = ~membership.all(1)
        return cls(
            counts=np.stack([tp, fp, fn])[:, 1:],
            wrong=int(confusion[~membership].sum()),
            known=int(confusion[is_known].sum()),
        )

    @classmethod
    def of_regions(cls, counts: Counts) -> StepCounts:
        """Take the counts of regions: each region of a voxel counts by itself."""
        tp, fp, fn, tn = counts
        wrong = int((fp + fn).sum())
        return cls(counts=np.stack([tp, fp, fn]), wrong=wrong, known=wrong + int((tp + tn).sum()))

    def describe(self, names: Sequence[str]) -> str:
        """Return a line that stands beside the pseudo-Dice: false positives count for every label,
        annotated or not.
        """
        _, fp, _ = self.counts
        share = self.wrong / max(1, self.known)
        worst = [label for label in np.argsort(-fp, kind="stable") if fp[label] > 0]
        named = some([f"'{names[label]}' {fp[label]}" for label in worst], 5)
        return f"Known to be wrong: {share:.2%} of the voxels. False positives: {named or 'none'}"

    def to_output(self, loss: Tensor) -> dict[str, Any]:
        """Return the output of a validation step, with the keys of nnU-Net and two more."""
        tp, fp, fn = self.counts
        return {
            "loss": loss.detach().cpu().numpy(),
            "tp_hard": tp,
            "fp_hard": fp,
            "fn_hard": fn,
            "wrong": self.wrong,
            "known": self.known,
        }


def sum_outputs(outputs: Sequence[Mapping[str, Any]], is_ddp: bool) -> tuple[StepCounts, float]:
    """Return the counts and the mean loss of an epoch, over all processes."""
    if is_ddp:
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, list(outputs))
        outputs = [output for rank_outputs in gathered for output in rank_outputs]
    totals = {key: np.sum([output[key] for output in outputs], 0) for key in outputs[0]}
    counts = StepCounts(
        counts=np.stack([totals["tp_hard"], totals["fp_hard"], totals["fn_hard"]]),
        wrong=int(totals["wrong"]),
        known=int(totals["known"]),
    )
    return counts, float(totals["loss"] / len(outputs))


@dataclass(frozen=True)
class EpochScores:
    """Pseudo-Dice after an epoch."""

    scores: list[float]  # by label; NaN: no score
    mean: float
    counts: np.ndarray  # (3, labels), of this and the recent epochs
    is_new_mean: bool  # the mean is over other labels than before, and cannot be compared


class PseudoDice:
    """Pseudo-Dice of the labels that some validation case of the fold annotates.

    Counts are summed over the recent epochs, since an epoch rarely shows every label as annotated.
    """

    def __init__(self, coverage: Mapping[str, int]) -> None:
        """coverage: in how many validation cases each label without background is annotated."""
        self.names = tuple(coverage)
        self.is_scored = np.array([number > 0 for number in coverage.values()])

    def describe(self, log: Callable[[str], None]) -> None:
        """Log which labels have no score."""
        labels = zip(self.names, self.is_scored, strict=True)
        unscored = [f"'{name}'" for name, is_scored in labels if not is_scored]
        if not self.is_scored.any():
            log(
                "WARNING: no validation case of this fold annotates any label: there is no "
                f"pseudo-Dice, and {BEST_CHECKPOINT} is the one of the last epoch"
            )
        elif unscored:
            log(
                f"No pseudo-Dice for {some(unscored, 20)}: no validation case of this fold "
                "annotates them"
            )

    def update(self, epoch_counts: np.ndarray, counts_before: np.ndarray | None) -> EpochScores:
        """Return the scores after an epoch with these counts `(3, labels)`."""
        before = np.zeros(epoch_counts.shape) if counts_before is None else counts_before
        recent = DECAY * before + epoch_counts
        tp, fp, fn = recent
        is_annotated = tp + fn > 0
        was_annotated = before[0] + before[2] > 0
        recent[:, ~is_annotated & (fp < 0.5)] = 0  # predicted wrongly once, long ago
        scores = dice(Counts(tp, fp, fn, np.zeros_like(tp)))
        scores[~self.is_scored] = np.nan
        has_score = not np.isnan(scores).all()
        is_first = is_annotated & ~was_annotated & self.is_scored
        return EpochScores(
            scores=scores.tolist(),
            mean=float(np.nanmean(scores)) if has_score else 0.0,
            counts=recent,
            is_new_mean=bool(is_first.any()) or not self.is_scored.any(),
        )


def log_scores(logger: Any, epoch: int, scores: EpochScores) -> None:
    """Write the scores into all loggers of nnU-Net.

    nnU-Net's logger computes the moving average with every mean. Where the mean is a new one, the
    average starts again from it, also for Weights & Biases.
    """
    logger.log("mean_fg_dice", scores.mean, epoch)
    if scores.is_new_mean:
        # not by `log`, which takes a second value of an epoch for a mistake
        logger.local_logger.my_fantastic_logging["ema_fg_dice"][-1] = scores.mean
        for other in logger.loggers:
            other.log("ema_fg_dice", scores.mean, epoch)
    logger.log("dice_per_class_or_region", scores.scores, epoch)
