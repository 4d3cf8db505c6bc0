"""Scores of a training: pseudo-Dice after every epoch, nnU-Net's validation at the end.

Both count by label-set. nnU-Net would mask the ignore label and take unannotated for absent.
Pseudo-Dice also selects the best checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nnunetv2.configuration import default_num_processes
from nnunetv2.evaluation.evaluate_predictions import save_summary_json
from torch import Tensor
from torch import distributed as dist

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.evaluation.counts import Counts, dice, label_set_counts
from nnunet_labelset.io.files import case_files, link_file
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import (
    BEST_CHECKPOINT,
    NEXT_STAGE,
    PROBABILITIES,
    REFERENCES,
    SUMMARY,
    VALIDATION,
)
from nnunet_labelset.nnunet.raw import file_ending
from nnunet_labelset.nnunet.summary import label_set_summary
from nnunet_labelset.training.checks import global_rank

# What remains of the counts after each epoch: scores lag behind by three epochs, and ten epochs
# after a label was last seen 3 % are left.
DECAY = 0.7
PROPERTIES = ".pkl"  # nnU-Net writes them beside the probabilities


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
        """Return a line to log beside the pseudo-Dice: false positives of every label, annotated or
        not.
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
        recent[:, ~is_annotated & (fp < 0.5)] = 0  # a single wrong prediction, long ago
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


def log_epoch(logger: Any, epoch: int, scores: EpochScores, loss: float) -> None:
    """Write the scores and the loss of the validation into all loggers of nnU-Net.

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
    logger.log("val_losses", loss, epoch)


class FinalValidation:
    """The folder of a fold in which nnU-Net predicts the validation cases."""

    def __init__(
        self, fold: str, preprocessed: str, contract: Contract, dataset_json: Mapping[str, Any]
    ) -> None:
        """
        fold: nnU-Net's folder of the trained fold.
        preprocessed: that of the preprocessed data set.
        """
        self.model = Path(fold).parent
        self.folder = Path(fold, VALIDATION)
        self.references = Path(preprocessed, REFERENCES)
        self.contract = contract
        self.dataset_json = dataset_json
        self.file_ending = file_ending(dataset_json)
        self.summary_file = self.folder / SUMMARY

    def prepare(self, is_ddp: bool) -> None:
        """Remove the files of an earlier validation, whose cases or checkpoint may have
        differed.
        """
        if global_rank() == 0:
            self.summary_file.unlink(missing_ok=True)
            for ending in (self.file_ending, PROBABILITIES, PROPERTIES):
                for path in self.folder.glob(f"[!.]*{ending}"):
                    path.unlink()
        if is_ddp:
            dist.barrier()  # no rank may predict before

    @property
    def is_validated(self) -> bool:
        return self.summary_file.is_file()

    def replace_summary(self, reader: Any) -> dict[str, Any]:
        """Write a summary.json of what was annotated in place of nnU-Net's.

        reader: nnU-Net's reader of label maps.
        """
        self.summary_file.unlink()  # nnU-Net's must not be taken for ours, should ours fail
        summary = label_set_summary(
            str(self.references),
            str(self.folder),
            self.contract,
            self.file_ending,
            default_num_processes,
            reader,
        )
        save_summary_json(summary, str(self.summary_file))
        return summary

    def link_completed_copies(self, stage: str) -> None:
        """Give completed copies the prediction for their original, with which the next stage of a
        cascade trains: copies are not validated themselves.
        """
        copies = {original: copy for copy, original in originals(self.dataset_json).items()}
        validated = case_files(self.folder, self.file_ending)
        for path in sorted((self.model / NEXT_STAGE / stage).iterdir()):
            if path.stem in copies and path.stem in validated:  # other folds link their own
                link_file(path.with_stem(copies[path.stem]), Path(path.name))


def log_summary(
    summary: Mapping[str, Any], names: Sequence[str], logger: Any, log: Callable[..., None]
) -> None:
    """Log for every label its Dice and the number of cases behind it, and the mean."""
    width = max(map(len, names))
    cases = summary["metric_per_case"]
    lines = ["Validation where annotated:"]
    for name, (label, mean) in zip(names, summary["mean"].items(), strict=True):
        logger.log_summary(f"final_val/class_{label}_dice", mean["Dice"])
        num_scored = sum(not np.isnan(case["metrics"][label]["Dice"]) for case in cases)
        num_annotated = summary["annotated_cases"][str(label)]
        lines.append(
            f"  {name:{width}}  Dice {mean['Dice']:.4f}  "
            f"annotated in {num_annotated}, scored in {num_scored} of {len(cases)}"
        )
    log("\n".join(lines), add_timestamp=False)
    mean_dice = summary["foreground_mean"]["Dice"]
    logger.log_summary("final_val/foreground_dice", mean_dice)
    log("Mean Validation Dice: ", mean_dice)
