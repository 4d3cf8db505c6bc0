"""Which of nnU-Net's postprocessing steps help, judged by label-set-aware Dice."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract
from nnunet_labelset.evaluation.results import foreground
from nnunet_labelset.io.files import case_files, new_file, read_json, write_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.nnunet.models import reader_of
from nnunet_labelset.nnunet.names import DATASET, PLANS, POSTPROCESSING, SUMMARY
from nnunet_labelset.nnunet.raw import file_ending
from nnunet_labelset.nnunet.summary import label_set_summary

Step = int | list[int]  # a label, or all of them: what keeps its largest component only


def choose_postprocessing(
    folder: Path, references: Path, contract: Contract, processes: int
) -> dict[str, Any]:
    """Try to keep only the largest component, of the whole foreground and of each label.

    nnU-Net's steps and its careful rule: the whole foreground only if the mean improves and no
    label gets worse, a label only if its own Dice improves. Writes what
    `nnUNetv2_find_best_configuration` writes: `postprocessed/`, `postprocessing.pkl` for
    `nnUNetv2_apply_postprocessing`, and `postprocessing.json`. Returns the last summary.
    """
    search = _Search(folder, references, contract, processes)
    before = search.summary(folder)
    with tempfile.TemporaryDirectory(prefix=".postprocessing_", dir=folder) as temporary:
        steps, predictions, best = search.run(before, Path(temporary))
        _publish(folder, predictions, search.ending, best, Path(temporary) / "result")
    _write_choice(folder, before, best, steps)
    return best


class _Search:
    """The predictions of a folder, and what each step of postprocessing makes of them."""

    def __init__(self, folder: Path, references: Path, contract: Contract, processes: int) -> None:
        self.folder = folder
        self.references = references
        self.contract = contract
        self.processes = processes
        self.reader_writer = reader_of(folder)
        self.ending = file_ending(read_json(folder / DATASET))
        self.names = foreground(contract)

    def summary(self, predictions: Path) -> dict[str, Any]:
        return label_set_summary(
            self.references,
            predictions,
            self.contract,
            self.ending,
            self.processes,
            self.reader_writer,
        )

    def run(self, before: dict[str, Any], scratch: Path) -> tuple[list[Step], Path, dict[str, Any]]:
        """Return the steps that help, the folder of the predictions after them, and its summary."""
        labels = list(self.names)
        steps: list[Step] = [labels, *(labels if len(labels) > 1 else [])]
        chosen: list[Step] = []
        predictions, best = self.folder, before
        for number, step in enumerate(steps):
            candidate = scratch / f"step_{number}"
            self._apply(step, predictions, candidate)
            after = self.summary(candidate)
            helps = _improves(best, after, step)
            verdict = "helps" if helps else "does not help"
            print(
                f"Keeping the largest component of {self._name(step)} {verdict}: "
                f"Dice {_dice(best, step):.5f} before, {_dice(after, step):.5f} after"
            )
            if helps:
                chosen.append(step)
                predictions, best = candidate, after
        return chosen, predictions, best

    def _name(self, step: Step) -> str:
        return "the foreground" if isinstance(step, list) else self.names[step]

    def _apply(self, step: Step, source: Path, target: Path) -> None:
        target.mkdir()
        options = [_options(step)]
        jobs = [
            (str(file), str(target / file.name), self.reader_writer, [_function()], options)
            for file in case_files(source, self.ending).values()
        ]
        title = f"Largest component of {self._name(step)}"
        for _ in map_parallel(_postprocess, jobs, self.processes, title):
            pass


def _function() -> Any:
    from nnunetv2.postprocessing.remove_connected_components import (
        remove_all_but_largest_component_from_segmentation,
    )

    return remove_all_but_largest_component_from_segmentation


def _options(step: Step) -> dict[str, Any]:
    return {"labels_or_regions": step}


def _publish(
    folder: Path, predictions: Path, ending: str, summary: dict[str, Any], scratch: Path
) -> None:
    """Write the folder `postprocessed`, whole or not at all."""
    from nnunetv2.evaluation.evaluate_predictions import save_summary_json

    scratch.mkdir()
    for file in case_files(predictions, ending).values():
        shutil.copy(file, scratch)
    for name in (PLANS, DATASET):
        shutil.copy(folder / name, scratch)
    save_summary_json(summary, str(scratch / SUMMARY))
    shutil.rmtree(folder / "postprocessed", ignore_errors=True)
    scratch.rename(folder / "postprocessed")


def _write_choice(
    folder: Path, before: dict[str, Any], after: dict[str, Any], steps: list[Step]
) -> None:
    """Write the steps for nnU-Net's command, and both summaries for people."""
    from batchgenerators.utilities.file_and_folder_operations import save_pickle

    options = [_options(step) for step in steps]
    with new_file(folder / POSTPROCESSING) as file:
        save_pickle(([_function()] * len(steps), options), str(file))
    content = {
        "input_folder": _short_summary(before),
        "postprocessed": _short_summary(after),
        "postprocessing_fns": [_function().__name__] * len(steps),
        "postprocessing_kwargs": options,
    }
    write_json(folder / "postprocessing.json", content)


def _short_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    from nnunetv2.evaluation.evaluate_predictions import label_or_region_to_key

    short = {key: summary[key] for key in ("foreground_mean", "label_set_dice", "known_wrong")}
    short["mean"] = {label_or_region_to_key(key): mean for key, mean in summary["mean"].items()}
    return short


def _postprocess(job: tuple[Any, ...]) -> None:
    from nnunetv2.postprocessing.remove_connected_components import load_postprocess_save

    load_postprocess_save(*job)


def _dice(summary: Mapping[str, Any], step: Step) -> float:
    return summary["label_set_dice"] if isinstance(step, list) else summary["mean"][step]["Dice"]


def _improves(before: Mapping[str, Any], after: Mapping[str, Any], step: Step) -> bool:
    """A leaf without any score is NaN, which neither improves nor gets worse. Known errors must not
    become more.
    """
    worse = [label for label in after["mean"] if _dice(after, label) < _dice(before, label)]
    worse += [name for name, dice in after["unions"].items() if dice < before["unions"][name]]
    if after["known_wrong"] > before["known_wrong"]:
        return False
    return _dice(after, step) > _dice(before, step) and not (isinstance(step, list) and worse)
