"""The validation after a training: nnU-Net's predictions, scored where they are annotated."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nnunetv2.configuration import default_num_processes
from nnunetv2.evaluation.evaluate_predictions import save_summary_json
from torch import distributed as dist

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.io.files import case_files, link_file
from nnunet_labelset.nnunet.names import NEXT_STAGE, PROBABILITIES, SUMMARY
from nnunet_labelset.nnunet.raw import file_ending
from nnunet_labelset.nnunet.summary import label_set_summary
from nnunet_labelset.training.stopping import global_rank

PROPERTIES = ".pkl"  # nnU-Net writes them beside the probabilities


class FinalValidation:
    """The folder of a fold in which nnU-Net predicts the validation cases."""

    def __init__(
        self, folder: Path, references: Path, contract: Contract, dataset_json: Mapping[str, Any]
    ) -> None:
        """
        folder: of the predictions.
        references: the folder of the label maps.
        """
        self.folder = folder
        self.references = references
        self.contract = contract
        self.dataset_json = dataset_json
        self.file_ending = file_ending(dataset_json)
        self.summary_file = folder / SUMMARY

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

    def link_completed_copies(self, model_folder: str, stages: Iterable[str]) -> None:
        """Give completed copies the prediction for their original, with which the next stage of a
        cascade trains: copies are not validated themselves.
        """
        copies = {original: copy for copy, original in originals(self.dataset_json).items()}
        validated = case_files(self.folder, self.file_ending)
        for stage in stages:
            _link_copies(Path(model_folder, NEXT_STAGE, stage), copies, validated)


def _link_copies(folder: Path, copies: Mapping[str, str], validated: Container[str]) -> None:
    for path in sorted(folder.iterdir()):  # of all folds; the others link their own
        if path.stem in copies and path.stem in validated:
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
