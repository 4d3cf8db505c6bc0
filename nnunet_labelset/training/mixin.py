"""What makes an nnU-Net trainer learn from label-sets: a mixin in front of nnU-Net's own trainer classes.

nnU-Net keeps the network, the plans, the augmentation, the optimiser and the loops. The mixin encodes the target by
case, swaps the loss, samples patches around unannotated voxels that say something, and counts in validation only what
is known.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import torch
from batchgenerators.utilities.file_and_folder_operations import join
from nnunetv2.configuration import default_num_processes
from nnunetv2.evaluation.evaluate_predictions import save_summary_json
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from torch import distributed as dist
from torch import nn

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.counts import Counts, dice, label_set_counts
from nnunet_labelset.io.parallel import exit_when_terminated
from nnunet_labelset.io.text import some
from nnunet_labelset.losses import LabelSetLoss
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.nnunet.summary import label_set_summary
from nnunet_labelset.training.sampling import (
    BY_LEAF,
    UNIFORM,
    VARIABLE,
    SampledDataset,
    chosen_sampling,
    probabilities,
    shares,
)

if TYPE_CHECKING:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer as Trainer
else:
    Trainer = object


class LabelSetMixin(Trainer):
    """Put it before an nnU-Net trainer: `class nnUNetTrainerLeafDice(LabelSetMixin, nnUNetTrainer)`."""

    loss_class: ClassVar[type[LabelSetLoss]]
    sampling: ClassVar[str] = BY_LEAF  # the default of `nnunet_labelset_sampling`

    # nnU-Net reads the names of these parameters by inspection: they must be its own.
    def __init__(
        self,
        plans: dict,
        configuration: str,
        fold: int,
        dataset_json: dict,
        device: torch.device = torch.device("cuda"),  # noqa: B008  (nnU-Net's own signature)
    ) -> None:
        self._resuming = bool(plans.get("continue_training"))
        try:  # before nnU-Net makes a folder or a log file
            self.label_sets = LabelSets.from_dataset_json(dataset_json)
            self._sampling = chosen_sampling(self.sampling)
        except LabelSetError as error:
            _stop(error)
        super().__init__(plans, configuration, fold, dataset_json, device)

    @property
    def contract(self) -> Contract:
        assert self.label_sets.contract is not None
        return self.label_sets.contract

    # ------------------------------------------------------------------------------------------------ start-up

    def initialize(self) -> None:
        """Check the cases of the fold before anything costs time, then go on as nnU-Net."""
        training, validation = self.do_split()
        self._log_coverage(training, validation)
        super().initialize()
        self._check_values(training)
        exit_when_terminated()

    def do_split(self) -> tuple[list[str], list[str]]:
        """nnU-Net's split; every case of it must have a protocol."""
        training, validation = super().do_split()
        try:
            self.contract.require_cases([*training, *validation])
        except LabelSetError as error:
            _stop(error)
        return training, validation

    def _check_values(self, cases: list[str]) -> None:
        """An undeclared value would stop the first batch that has it: look at one case of every protocol before."""
        first = {self.contract.protocol_of(case): case for case in reversed(cases)}
        dataset = self.dataset_class(self.preprocessed_dataset_folder, list(first.values()))
        known = len(self.contract.value_names)
        for case in first.values():
            highest = int(np.max(dataset.load_case(case)[1][:]))
            if highest >= known:
                _stop(
                    f"case '{case}' has the value {highest}, but 'labels' in dataset.json declares 0..{known - 1}: "
                    "declare it ('ignore' takes the highest value), or correct the label maps and preprocess again"
                )

    def load_checkpoint(self, filename_or_checkpoint: Any) -> None:
        """Go on only with the contract that the checkpoint was trained with."""
        checkpoint = torch.load(filename_or_checkpoint, map_location="cpu", weights_only=False, mmap=True)
        try:
            before = Contract.from_dataset_json(checkpoint["init_args"]["dataset_json"])
        except LabelSetError as error:
            _stop(f"{filename_or_checkpoint} was trained without a contract: {error}")
        changes = before.differences(self.contract)
        if changes and (self._resuming or before.leaf_names != self.contract.leaf_names):
            _stop(
                "the contract in dataset.json has changed since this training began: "
                + some(changes)
                + ". Restore it, or start a new training without --c"
            )
        if changes:
            self.print_to_log_file("WARNING: validating with a changed contract:", some(changes))
        super().load_checkpoint(filename_or_checkpoint)

    def _log_coverage(self, training: list[str], validation: list[str]) -> None:
        counts = self.contract.coverage(training), self.contract.coverage(validation)
        width = max(map(len, self.label_sets.leaf_names))
        lines = [
            f"  {leaf:{width}}  {counts[0][leaf]:5d} of {len(training)}  {counts[1][leaf]:5d} of {len(validation)}"
            for leaf in self.label_sets.leaf_names
        ]
        self.print_to_log_file(
            "Cases in which a leaf is annotated (training, validation):\n" + "\n".join(lines), add_timestamp=False
        )
        for leaf, number in counts[0].items():
            if number == 0:
                self.print_to_log_file(f"WARNING: no training case annotates '{leaf}': it cannot be learnt well")

    # ------------------------------------------------------------------------------------------------ training

    def _build_loss(self) -> nn.Module:
        """nnU-Net's deep supervision weights around our loss."""
        plain = super()._build_loss()
        options = {}
        if self.loss_class.dice is not None:
            options = {
                "batch_dice": self.configuration_manager.batch_dice,
                "ddp": self.is_ddp,
                "ignore_full_set": True,
            }
        loss = self.loss_class(self.label_sets, **options)
        if not isinstance(plain, DeepSupervisionWrapper):
            return loss
        plain.loss = loss
        return plain

    def get_tr_and_val_datasets(self) -> tuple[Any, Any]:
        """nnU-Net's data sets, sampled for what their cases annotate."""
        training, validation = super().get_tr_and_val_datasets()
        by_leaf = self._sampling == BY_LEAF
        ignore_key = (-1, *self.label_manager.all_labels) if self.label_manager.has_ignore_label else None
        self._log_sampling(list(training.identifiers))
        patch = self.configuration_manager.patch_size
        return (
            SampledDataset(training, self.contract, ignore_key, patch, by_leaf),
            SampledDataset(validation, self.contract, ignore_key, patch, by_leaf),
        )

    def _log_sampling(self, cases: list[str]) -> None:
        uniform = np.full(len(cases), 1 / len(cases))
        chance = probabilities(self.contract, cases) if self._sampling == BY_LEAF else uniform
        found = shares(self.contract, cases, chance).items()
        width = max(map(len, self.label_sets.leaf_names))
        lines = "\n".join(f"  {leaf:{width}}  {share:6.1%}" for leaf, share in found)
        self.print_to_log_file(
            f"Sampling '{self._sampling}' ({VARIABLE}): share of samples in which a leaf is annotated:\n{lines}",
            add_timestamp=False,
        )

    def _encoded(self, batch: dict) -> dict:
        """The batch with set indices for values, on the training device."""
        target = batch["target"]
        if isinstance(target, list):
            target = [scale.to(self.device, non_blocking=True) for scale in target]
        else:
            target = target.to(self.device, non_blocking=True)
        try:
            encoded = self.label_sets.encode(target, batch["keys"])
        except LabelSetError as error:
            _stop(f"{error}: 'nnunet_labelset verify' finds such label maps")
        # as small as nnU-Net's own target: it stays in memory for the whole step
        dtype = torch.int16 if len(self.label_sets.membership) <= 2**15 else torch.int32
        small = [scale.to(dtype) for scale in encoded] if isinstance(encoded, list) else encoded.to(dtype)
        return {**batch, "target": small}

    def train_step(self, batch: dict) -> dict:
        return super().train_step(self._encoded(batch))

    # ---------------------------------------------------------------------------------------------- validation

    def validation_step(self, batch: dict) -> dict:
        """Loss, and counts of what is known: nnU-Net's own step masks the ignore label and has no label-sets."""
        batch = self._encoded(batch)
        data, target = batch["data"].to(self.device, non_blocking=True), batch["target"]
        with torch.autocast("cuda") if self.device.type == "cuda" else nullcontext():
            output = self.network(data)
            loss = self.loss(output, target)
        if self.enable_deep_supervision:
            output, target = output[0], target[0]
        sets, leaves = self.label_sets.membership.shape
        joint = (target[:, 0].long() * leaves + output.argmax(1)).flatten()
        confusion = torch.bincount(joint, minlength=sets * leaves).reshape(sets, leaves).cpu().numpy()
        counts = label_set_counts(confusion, self.label_sets.membership.numpy())
        return {
            "loss": loss.detach().cpu().numpy(),
            "tp_hard": counts.tp[1:],  # without background, as nnU-Net
            "fp_hard": counts.fp[1:],
            "fn_hard": counts.fn[1:],
        }

    def on_validation_epoch_end(self, val_outputs: list[dict]) -> None:
        """Pseudo-Dice: NaN for a leaf without an annotated voxel, which is left out of the mean."""
        counts = np.stack([np.sum([step[key] for step in val_outputs], 0) for key in ("tp_hard", "fp_hard", "fn_hard")])
        losses = [float(step["loss"]) for step in val_outputs]
        if self.is_ddp:
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, (counts, losses))
            counts = np.sum([item[0] for item in gathered], 0)
            losses = [loss for item in gathered for loss in item[1]]
        tp, fp, fn = counts.astype(float)
        annotated = tp + fn > 0
        scores = np.where(annotated, dice(Counts(tp, fp, fn, np.zeros_like(tp))), np.nan)
        if annotated.any():
            mean = float(np.nanmean(scores))
        else:  # no news: NaN would spoil the moving average, and with it the best checkpoint, for good
            previous = self.logger.get_value("mean_fg_dice", step=None)
            mean = previous[-1] if previous else 0.0
        self.logger.log("mean_fg_dice", mean, self.current_epoch)
        self.logger.log("dice_per_class_or_region", list(scores), self.current_epoch)
        self.logger.log("val_losses", float(np.mean(losses)), self.current_epoch)

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        """nnU-Net's validation; its summary.json is then replaced by one that knows what was annotated."""
        self._in_validation = True
        super().perform_actual_validation(save_probabilities)
        self._in_validation = False
        if self.local_rank != 0:
            return
        folder = join(self.output_folder, "validation")
        Path(folder, "summary.json").unlink()  # nnU-Net's must not be taken for ours, should ours fail
        summary = label_set_summary(
            join(self.preprocessed_dataset_folder_base, "gt_segmentations"),
            folder,
            self.contract,
            self.dataset_json["file_ending"],
            default_num_processes,
            self.plans_manager.image_reader_writer_class(),
        )
        save_summary_json(summary, join(folder, "summary.json"))
        for label, mean in summary["mean"].items():
            self.logger.log_summary(f"final_val/class_{label}_dice", mean["Dice"])
        self.logger.log_summary("final_val/foreground_dice", summary["foreground_mean"]["Dice"])
        self._log_summary(summary)

    def _log_summary(self, summary: dict) -> None:
        width = max(map(len, self.label_sets.leaf_names))
        total = len(summary["metric_per_case"])
        lines = []
        for label, mean in summary["mean"].items():
            scored = sum(not np.isnan(case["metrics"][label]["Dice"]) for case in summary["metric_per_case"])
            annotated = summary["annotated_cases"][str(label)]
            leaf = self.label_sets.leaf_names[label]
            lines.append(
                f"  {leaf:{width}}  Dice {mean['Dice']:.4f}  annotated in {annotated}, scored in {scored} of {total}"
            )
        self.print_to_log_file("Validation where annotated:\n" + "\n".join(lines), add_timestamp=False)
        self.print_to_log_file("Mean Validation Dice: ", summary["foreground_mean"]["Dice"])

    _in_validation = False

    def print_to_log_file(self, *args: Any, also_print_to_console: bool = True, add_timestamp: bool = True) -> None:
        """nnU-Net's log, without the mean Dice that takes unannotated for absent: ours follows."""
        if self._in_validation and args and str(args[0]).startswith("Mean Validation Dice"):
            return
        super().print_to_log_file(*args, also_print_to_console=also_print_to_console, add_timestamp=add_timestamp)


class FullySupervisedMixin(LabelSetMixin):
    """Train on the fully annotated cases only; validation keeps all of its cases."""

    sampling = UNIFORM  # a baseline: as nnU-Net

    def do_split(self) -> tuple[list[str], list[str]]:
        training, validation = super().do_split()
        complete = [case for case in training if self.contract.is_fully_annotated(case)]
        self.print_to_log_file(f"Fully supervised: {len(complete)} of {len(training)} training cases are complete")
        if not complete:
            _stop(
                f"fold {self.fold} has no fully annotated training case: use a label-set loss "
                "(nnUNetTrainerLeafDice), or other splits ('nnunet_labelset splits')"
            )
        return complete, validation


def _stop(reason: object) -> NoReturn:
    """End the program in one line: a traceback through nnU-Net would hide what is wrong."""
    if dist.is_initialized() and dist.get_rank() > 0:
        sys.exit(1)  # once is enough
    sys.exit(f"nnunet_labelset: error: {reason}")
