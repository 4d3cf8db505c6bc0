"""Validation that counts what is known: the pseudo-Dice of every epoch and the summary at the end."""

from __future__ import annotations

from collections.abc import Container
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from batchgenerators.utilities.file_and_folder_operations import join
from nnunetv2.configuration import default_num_processes
from nnunetv2.evaluation.evaluate_predictions import save_summary_json
from torch import distributed as dist

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.evaluation.counts import Counts, dice, label_set_counts
from nnunet_labelset.io.files import case_files, link_file
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.nnunet.names import FILE_ENDING, NEXT_STAGE, REFERENCES, SUMMARY, VALIDATION
from nnunet_labelset.nnunet.summary import label_set_summary
from nnunet_labelset.training.base import Trainer
from nnunet_labelset.training.regions import Regions

# Of the counts of earlier epochs: a score is three epochs late, and ten epochs after its last sight
# 3 % are left.
KEPT = 0.7


class ValidationMixin(Trainer):
    """tp, fp and fn by label-set. nnU-Net masks the ignore label and takes unannotated for absent."""

    label_sets: LabelSets
    contract: Contract
    regions: Regions | None
    training_state: dict[str, Any]

    @property
    def foreground_names(self) -> tuple[str, ...]:
        """What is scored: the regions, or the leaves without background."""
        return self.regions.names if self.regions else self.label_sets.leaf_names[1:]

    def _encoded(self, batch: dict) -> dict:
        raise NotImplementedError

    def validation_step(self, batch: dict) -> dict:
        """Loss, and counts of what is known."""
        batch = self._encoded(batch)
        data, target = batch["data"].to(self.device, non_blocking=True), batch["target"]
        with torch.autocast("cuda") if self.device.type == "cuda" else nullcontext():
            output = self.network(data)
            loss = self.loss(output, target)
        if self.enable_deep_supervision:
            output, target = output[0], target[0]
        tp, fp, fn, _ = self._counts(output, target[:, 0].long())
        return {"loss": loss.detach().cpu().numpy(), "tp_hard": tp, "fp_hard": fp, "fn_hard": fn}

    def _counts(self, output: torch.Tensor, target: torch.Tensor) -> Counts:
        """Of the foreground, as nnU-Net."""
        if self.regions:
            return self.regions.counts(output, target)
        sets, leaves = self.label_sets.membership.shape
        joint = (target * leaves + output.argmax(1)).flatten()
        confusion = (
            torch.bincount(joint, minlength=sets * leaves).reshape(sets, leaves).cpu().numpy()
        )
        counts = label_set_counts(confusion, self.label_sets.membership.numpy())
        return Counts(*(count[1:] for count in counts))

    def on_validation_epoch_end(self, val_outputs: list[dict]) -> None:
        """Pseudo-Dice: by leaf over the recent epochs, since an epoch rarely shows every leaf as
        annotated.

        A leaf without any count has no score (NaN) and is left out of the mean. When one is
        annotated for the first time the mean is over other leaves than before, so that the best
        checkpoint is looked for anew.
        """
        counts = np.stack(
            [
                np.sum([step[key] for step in val_outputs], 0)
                for key in ("tp_hard", "fp_hard", "fn_hard")
            ]
        )
        losses = [float(step["loss"]) for step in val_outputs]
        if self.is_ddp:
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, (counts, losses))
            counts = np.sum([item[0] for item in gathered], 0)
            losses = [loss for item in gathered for loss in item[1]]
        before = np.asarray(self.training_state.get("pseudo_dice_counts", np.zeros(counts.shape)))
        recent = KEPT * before + counts
        annotated_before, annotated = (
            before[0] + before[2],
            recent[0] + recent[2],
        )  # tp + fn, voxels
        recent[:, (annotated == 0) & (recent[1] < 0.5)] = 0  # invented once, long ago
        self.training_state["pseudo_dice_counts"] = recent
        tp, fp, fn = recent
        scores = dice(Counts(tp, fp, fn, np.zeros_like(tp)))
        mean = float(np.nanmean(scores)) if not np.isnan(scores).all() else 0.0
        self.logger.log("mean_fg_dice", mean, self.current_epoch)
        if np.any((annotated_before == 0) & (annotated > 0)):
            # nnU-Net's logger has just written its moving average, and warns of a second one
            self.logger.local_logger.my_fantastic_logging["ema_fg_dice"][-1] = mean
            self._best_ema = None
        self.logger.log("dice_per_class_or_region", list(scores), self.current_epoch)
        self.logger.log("val_losses", float(np.mean(losses)), self.current_epoch)

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        """nnU-Net's validation; its summary.json is then replaced by one that knows what was
        annotated.
        """
        folder = join(self.output_folder, VALIDATION)
        path = Path(folder, SUMMARY)
        if self.local_rank == 0:
            path.unlink(missing_ok=True)  # what is there afterwards is nnU-Net's
        self._in_validation = True
        super().perform_actual_validation(save_probabilities)
        self._in_validation = False
        if (
            self.local_rank != 0 or not path.is_file()
        ):  # some of nnU-Net's trainers validate nothing
            return
        self._show_originals_for_copies(case_files(folder, self.dataset_json[FILE_ENDING]))
        path.unlink()  # nnU-Net's must not be taken for ours, should ours fail
        summary = label_set_summary(
            join(self.preprocessed_dataset_folder_base, REFERENCES),
            folder,
            self.contract,
            self.dataset_json[FILE_ENDING],
            default_num_processes,
            self.plans_manager.image_reader_writer_class(),
        )
        save_summary_json(summary, str(path))
        for label, mean in summary["mean"].items():
            self.logger.log_summary(f"final_val/class_{label}_dice", mean["Dice"])
        self.logger.log_summary("final_val/foreground_dice", summary["foreground_mean"]["Dice"])
        self._log_summary(summary)

    def _show_originals_for_copies(self, validated: Container[str]) -> None:
        """A cascade trains on completed copies, which are never validated: it sees what was
        predicted for the case.
        """
        copies = {original: copy for copy, original in originals(self.dataset_json).items()}
        for stage in self.configuration_manager.next_stage_names or ():
            folder = Path(self.output_folder_base, NEXT_STAGE, stage)
            for path in sorted(folder.iterdir()):  # of all folds; the others look after their own
                if path.stem in copies and path.stem in validated:
                    link_file(path.with_stem(copies[path.stem]), Path(path.name))

    def _log_summary(self, summary: dict) -> None:
        names = self.foreground_names
        width = max(map(len, names))
        total = len(summary["metric_per_case"])
        lines = []
        for name, (label, mean) in zip(names, summary["mean"].items(), strict=True):
            scored = sum(
                not np.isnan(case["metrics"][label]["Dice"]) for case in summary["metric_per_case"]
            )
            annotated = summary["annotated_cases"][str(label)]
            lines.append(
                f"  {name:{width}}  Dice {mean['Dice']:.4f}  annotated in {annotated}, scored in {scored} of {total}"
            )
        self.print_to_log_file(
            "Validation where annotated:\n" + "\n".join(lines), add_timestamp=False
        )
        self.print_to_log_file("Mean Validation Dice: ", summary["foreground_mean"]["Dice"])

    _in_validation = False

    def print_to_log_file(
        self, *args: Any, also_print_to_console: bool = True, add_timestamp: bool = True
    ) -> None:
        """nnU-Net's log, without the mean Dice that takes unannotated for absent: ours follows."""
        if self._in_validation and args and str(args[0]).startswith("Mean Validation Dice"):
            return
        super().print_to_log_file(
            *args, also_print_to_console=also_print_to_console, add_timestamp=add_timestamp
        )
