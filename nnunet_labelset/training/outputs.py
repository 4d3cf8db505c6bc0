"""The outputs of the network: labels or regions, their targets and loss, and their scores.

Scores are pseudo-Dice after every epoch, which also selects the best checkpoint, and nnU-Net's
validation at the end. Both count by label-set. nnU-Net would mask the ignore label and take
unannotated for absent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nnunetv2.configuration import default_num_processes
from nnunetv2.evaluation.evaluate_predictions import save_summary_json
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from torch import Tensor, nn
from torch import distributed as dist

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.counts import Counts, dice, label_set_counts
from nnunet_labelset.io.files import case_files, link_file
from nnunet_labelset.io.text import some
from nnunet_labelset.losses import LabelSetLoss, RunningDice
from nnunet_labelset.losses.label_sets import LabelSets, as_integers
from nnunet_labelset.losses.regions import RegionLoss, Sides, sides
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


def encode_target(
    target: Tensor | list[Tensor],
    cases: Sequence[str] | None,
    label_sets: LabelSets,
    device: torch.device,
) -> Tensor | list[Tensor]:
    """Return set indices for a target `(B, 1, *S)`, or for a list of scales of deep supervision.

    cases: the case of every sample of the batch, which decides what a value means.
    """
    if cases is None:
        raise LabelSetError(
            "a batch does not name its cases: this loader of nnU-Net cannot be combined with "
            "label-sets"
        )
    scales = target if isinstance(target, list) else [target]
    for scale in scales:
        # Where the loader left it, on the host: a device can only assert, with a traceback.
        label_sets.check_values(scale, cases)
    rows = label_sets.rows_of(cases, scales[0], device)
    # as small as nnU-Net's own target: it stays in memory for the whole step
    dtype = torch.int16 if label_sets.num_sets <= 2**15 else torch.int32
    encoded = []
    for scale in scales:
        values = as_integers(scale, "target").to(device, non_blocking=True)
        encoded.append(label_sets.look_up(values, rows, dtype))
    return encoded if isinstance(target, list) else encoded[0]


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


class LabelOutputs:
    """An output for every label, background included; one softmax over all of them."""

    def __init__(self, label_sets: LabelSets, contract: Contract) -> None:
        self.contract = contract
        self.names = contract.leaf_names
        self._membership = label_sets.membership.numpy()

    def coverage(self, cases: Iterable[str]) -> dict[str, int]:
        """Return in how many cases each label is annotated."""
        return self.contract.coverage(cases)

    def scored_coverage(self, cases: Iterable[str]) -> dict[str, int]:
        """Return the same for the labels that have a score: all but background."""
        coverage = self.coverage(cases)
        return {name: coverage[name] for name in self.names[1:]}

    def loss(self, loss: LabelSetLoss, has_ignore: bool) -> nn.Module:
        return loss

    def counts(self, output: Tensor, target: Tensor) -> StepCounts:
        """Count voxels by label: logits `(B, C, *S)`, set indices `(B, *S)`."""
        return StepCounts.of_labels(output, target, self._membership)


class RegionOutputs:
    """An output for every region, in nnU-Net's order; one sigmoid each.

    nnU-Net turns a label map into one mask per region before the loss sees it. Here the values stay
    and become label-sets as in any other data set. A voxel is then in a region, out of it, or says
    nothing about it.
    """

    def __init__(self, label_sets: LabelSets, contract: Contract) -> None:
        assert contract.regions is not None
        self.contract = contract
        self.names = tuple(contract.regions)
        self.members = torch.zeros(len(self.names), contract.num_leaves, dtype=torch.bool)  # (R, C)
        for row, leaves in zip(self.members, contract.regions.values(), strict=True):
            row[list(leaves)] = True
        self.sides = sides(label_sets.membership, self.members)

    def coverage(self, cases: Iterable[str]) -> dict[str, int]:
        """Return in how many cases each region is annotated."""
        counts = self.contract.coverage(cases)
        return {name: counts[name] for name in self.names}

    def scored_coverage(self, cases: Iterable[str]) -> dict[str, int]:
        """Return the same: every region has a score."""
        return self.coverage(cases)

    def loss(self, loss: LabelSetLoss, has_ignore: bool) -> nn.Module:
        """Return the loss for regions with the terms of a loss for labels."""
        return RegionLoss(loss, self.members, sum_entropy=has_ignore)

    def counts(self, output: Tensor, target: Tensor) -> StepCounts:
        """Count voxels by region: logits `(B, R, *S)`, set indices `(B, *S)`."""
        if self.sides.inside.device != target.device:  # copied once, not at every step
            self.sides = Sides(*(side.to(target.device) for side in self.sides))
        inside, known = (side[target].movedim(-1, 1) for side in self.sides)  # (B, R, *S)
        predicted = output > 0  # a sigmoid above 1/2
        axes = (0, *range(2, output.ndim))
        masks = (
            predicted & inside,
            predicted & known & ~inside,
            ~predicted & inside,
            ~predicted & known & ~inside,
        )
        return StepCounts.of_regions(Counts(*(mask.sum(axes).cpu().numpy() for mask in masks)))


def outputs_of(label_sets: LabelSets, contract: Contract) -> LabelOutputs | RegionOutputs:
    """Return what the outputs of a network for this data set are."""
    kind = LabelOutputs if contract.regions is None else RegionOutputs
    return kind(label_sets, contract)


class DeepSupervision(DeepSupervisionWrapper):
    """The weighted sum over scales, as nnU-Net's; tells the loss which scale comes next.

    Running Dice has a state for every scale, and two scales may have the same shape: where plans
    do not pool along any axis.
    """

    def forward(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        values = []
        triples = zip(self.weight_factors, outputs, targets, strict=False)
        for scale, (weight, output, target) in enumerate(triples):
            if weight == 0:
                continue
            self.loss.scale = scale
            values.append(self._weighted(float(weight), output, target))
        return torch.stack(values).sum()

    def _weighted(self, weight: float, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a scale times its weight; a loss of ours multiplies for nothing."""
        if not isinstance(self.loss, LabelSetLoss):
            return weight * self.loss(output, target)
        self.loss.scale_weight = weight
        value = self.loss(output, target)
        self.loss.scale_weight = 1.0
        return value


def supervised_like(nnunet_loss: Any, loss: nn.Module) -> nn.Module:
    """Return the loss within deep supervision of nnU-Net's weights, if nnU-Net's loss is within."""
    if not isinstance(nnunet_loss, DeepSupervisionWrapper):
        return loss
    return DeepSupervision(loss, nnunet_loss.weight_factors)


def inner_loss(loss: Any) -> Any:
    """Return the loss inside of deep supervision."""
    return getattr(loss, "loss", loss)


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which nnU-Net calls its network."""
    return torch.autocast("cuda") if device.type == "cuda" else nullcontext()


def running_dice(loss: nn.Module) -> dict[Hashable, Tensor]:
    """Return the state of running Dice for a checkpoint; empty for other losses."""
    inner = inner_loss(loss)
    return dict(inner.running) if isinstance(inner, RunningDice) else {}


def restore_running_dice(loss: nn.Module, states: Mapping[Hashable, Tensor]) -> None:
    """Give the state of a checkpoint back; older checkpoints name scales by their shape."""
    inner = inner_loss(loss)
    if isinstance(inner, RunningDice):
        has_scales = isinstance(loss, DeepSupervision)
        inner.running = dict(enumerate(states.values())) if has_scales else dict(states)


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
