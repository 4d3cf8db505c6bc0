"""Which of nnU-Net's postprocessing steps help, judged by label-set-aware Dice."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract
from nnunet_labelset.evaluation.structures import foreground
from nnunet_labelset.io.files import case_files, new_file, read_json, write_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.nnunet.models import reader_of
from nnunet_labelset.nnunet.names import DATASET, PLANS, POSTPROCESSING, SUMMARY
from nnunet_labelset.nnunet.raw import file_ending
from nnunet_labelset.nnunet.summary import label_set_summary


def choose_postprocessing(
    folder: Path, references: Path, contract: Contract, processes: int
) -> dict[str, Any]:
    """Try to keep only the largest component, of the whole foreground and of each leaf; returns the
    last summary.

    nnU-Net's steps and its careful rule: the whole foreground only if the mean improves and no leaf
    gets worse, a leaf only if its own Dice improves. Writes what `nnUNetv2_find_best_configuration`
    writes: `postprocessed/`, `postprocessing.pkl` for `nnUNetv2_apply_postprocessing`, and
        `postprocessing.json`.
    """
    from batchgenerators.utilities.file_and_folder_operations import save_pickle
    from nnunetv2.evaluation.evaluate_predictions import label_or_region_to_key, save_summary_json
    from nnunetv2.postprocessing.remove_connected_components import (
        remove_all_but_largest_component_from_segmentation,
    )

    reader_writer = reader_of(folder)
    dataset_json = read_json(folder / DATASET)
    ending = file_ending(dataset_json)
    names = foreground(contract)
    labels = list(names)
    before = best = label_set_summary(
        references, folder, contract, ending, processes, reader_writer
    )
    chosen: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix=".postprocessing_", dir=folder) as temporary:
        current = folder
        steps: list[int | list[int]] = [labels, *(labels if len(labels) > 1 else [])]
        for number, step in enumerate(steps):
            candidate = Path(temporary) / f"step_{number}"
            options = {"labels_or_regions": step}
            function = remove_all_but_largest_component_from_segmentation
            candidate.mkdir()
            jobs = [
                (str(file), str(candidate / file.name), reader_writer, [function], [options])
                for file in case_files(current, ending).values()
            ]
            name = "the foreground" if isinstance(step, list) else names[step]
            for _ in map_parallel(_postprocess, jobs, processes, f"Largest component of {name}"):
                pass
            after = label_set_summary(
                references, candidate, contract, ending, processes, reader_writer
            )
            helps = _improves(best, after, step)
            scores = [_dice(summary, step) for summary in (best, after)]
            verdict = "helps" if helps else "does not help"
            print(
                f"Keeping the largest component of {name} {verdict}: Dice {scores[0]:.5f} before, {scores[1]:.5f} after"
            )
            if helps:
                chosen, current, best = [*chosen, options], candidate, after
        result = Path(temporary) / "result"
        result.mkdir()
        for file in case_files(current, ending).values():
            shutil.copy(file, result)
        for name in (PLANS, DATASET):
            shutil.copy(folder / name, result)
        save_summary_json(best, str(result / SUMMARY))
        shutil.rmtree(folder / "postprocessed", ignore_errors=True)
        result.rename(folder / "postprocessed")
    with new_file(folder / POSTPROCESSING) as file:
        save_pickle(([function] * len(chosen), chosen), str(file))
    compared = {
        name: {
            **summary,
            "mean": {label_or_region_to_key(key): mean for key, mean in summary["mean"].items()},
        }
        for name, summary in (("input_folder", before), ("postprocessed", best))
    }
    kept = ("foreground_mean", "mean", "label_set_dice", "known_wrong")
    write_json(
        folder / "postprocessing.json",
        {
            **{name: {key: summary[key] for key in kept} for name, summary in compared.items()},
            "postprocessing_fns": [function.__name__] * len(chosen),
            "postprocessing_kwargs": chosen,
        },
    )
    return best


def _postprocess(job: tuple[Any, ...]) -> None:
    from nnunetv2.postprocessing.remove_connected_components import load_postprocess_save

    load_postprocess_save(*job)


def _dice(summary: Mapping[str, Any], step: int | list[int]) -> float:
    return summary["label_set_dice"] if isinstance(step, list) else summary["mean"][step]["Dice"]


def _improves(before: Mapping[str, Any], after: Mapping[str, Any], step: int | list[int]) -> bool:
    """A leaf without any score is NaN, which neither improves nor gets worse. Known errors must not
    become more.
    """
    worse = [label for label in after["mean"] if _dice(after, label) < _dice(before, label)]
    worse += [name for name, dice in after["unions"].items() if dice < before["unions"][name]]
    if after["known_wrong"] > before["known_wrong"]:
        return False
    return _dice(after, step) > _dice(before, step) and not (isinstance(step, list) and worse)
