"""`nnunet_labelset find_best_configuration`: nnU-Net's command of this name, decided by
label-set-aware Dice.

nnU-Net collects the cross-validation, ensembles, and writes the inference instructions; only the
scores are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import case_files, read_json, write_json, write_text
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.checkpoint_file import stored_state
from nnunet_labelset.nnunet.folders import find_dataset, nnunet_folder
from nnunet_labelset.nnunet.models import read_splits, reader_of
from nnunet_labelset.nnunet.raw import file_ending, read_dataset
from nnunet_labelset.nnunet.summary import label_set_summary

NNUNET_SUMMARY = "summary_nnunet.json"  # what nnU-Net counts, beside our summary.json


@dataclass(frozen=True)
class Candidate:
    """A model or an ensemble of two, with the folder of its cross-validation, both scores, and its
    known errors.

    `dice` is the mean over leaves and unions, `known_wrong` the share of voxels predicted outside
    of their label-set.
    """

    name: str
    models: tuple[Mapping[str, str], ...]
    folder: Path
    dice: float
    nnunet_dice: float
    known_wrong: float = 0.0


class Selection:
    """The data set, folds and options of one search."""

    def __init__(self, dataset: str, folds: Sequence[int], processes: int, overwrite: bool) -> None:
        for variable in names.VARIABLES:
            nnunet_folder(variable)
        self.preprocessed = find_dataset(dataset, names.PREPROCESSED)
        self.name = self.preprocessed.name
        self.results = find_dataset(self.name, names.RESULTS)
        self.references = self.preprocessed / names.REFERENCES
        if not self.references.is_dir():
            raise LabelSetError(
                f"{self.references}: no such folder: run {names.PLAN_AND_PREPROCESS}"
            )
        dataset_json, self.contract = read_dataset(self.preprocessed)  # of the references
        self.file_ending = file_ending(dataset_json)
        self.folds, self.processes, self.overwrite = tuple(folds), processes, overwrite

    def available(
        self, trainers: Sequence[str], configurations: Sequence[str], plans: Sequence[str]
    ) -> list[dict]:
        """The trained models; a configuration that the plans do not have is left out, as in
        nnU-Net.
        """
        from nnunetv2.evaluation.find_best_configuration import (
            dumb_trainer_config_plans_to_trained_models_dict,
            filter_available_models,
        )

        for name in plans:
            if not (self.preprocessed / f"{name}.json").is_file():
                raise LabelSetError(
                    f"{self.preprocessed}: no plans {name}.json; name your plans with -p"
                )
        wanted = dumb_trainer_config_plans_to_trained_models_dict(
            list(trainers), list(configurations), list(plans)
        )
        with _one_line("train it, or name what you have trained with -c, -tr and -p"):
            models = filter_available_models(wanted, self.name)
        if not models:
            raise LabelSetError(
                f"the plans {some(plans)} have none of the configurations {some(configurations)}"
            )
        return models

    def model(self, model: Mapping[str, str]) -> Candidate:
        """Collect the validation of all folds with nnU-Net, then count again with label-sets."""
        from nnunetv2.evaluation.accumulate_cv_results import accumulate_cv_results

        folder = self.model_folder(model)
        for fold in self.folds:
            self._check_validated(folder / names.fold_name(fold), fold)
        merged = folder / names.crossvalidation_name(self.folds)
        with _one_line("train all folds, or name those that you have with -f"):
            accumulate_cv_results(
                str(folder), str(merged), self.folds, self.processes, self.overwrite
            )
        # ours, from an earlier run, stays
        if "annotated_cases" not in read_json(merged / names.SUMMARY):
            (merged / names.SUMMARY).replace(merged / NNUNET_SUMMARY)
        return self._candidate(folder.name, (model,), merged)

    def ensemble(self, first: Mapping[str, str], second: Mapping[str, str]) -> Candidate:
        """Average the probabilities of two models with nnU-Net, then count with label-sets."""
        from nnunetv2.ensembling.ensemble import ensemble_crossvalidations
        from nnunetv2.evaluation.evaluate_predictions import compute_metrics_on_folder
        from nnunetv2.utilities.file_path_utilities import get_ensemble_name
        from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

        folders = [str(self.model_folder(model)) for model in (first, second)]
        name = get_ensemble_name(*folders, self.folds)
        merged = self.results / "ensembles" / name
        with _one_line("or leave ensembles out with --disable_ensembling"):
            ensemble_crossvalidations(
                folders, str(merged), self.folds, self.processes, overwrite=self.overwrite
            )
        dataset_json = read_json(merged / names.DATASET)
        labels = PlansManager(str(merged / names.PLANS)).get_label_manager(dataset_json)
        compute_metrics_on_folder(
            str(self.references),
            str(merged),
            str(merged / NNUNET_SUMMARY),
            reader_of(merged),
            file_ending(dataset_json),
            labels.foreground_regions if labels.has_regions else labels.foreground_labels,
            labels.ignore_label,
            self.processes,
        )
        return self._candidate(name, (first, second), merged)

    def require_probabilities(self, models: Sequence[Mapping[str, str]]) -> None:
        """Fail before the long work, not after it, if there is nothing to ensemble."""
        for model in models:
            for fold in self.folds:
                folder = self.model_folder(model) / names.fold_name(fold) / names.VALIDATION
                if folder.is_dir() and not any(folder.glob(f"*{names.PROBABILITIES}")):
                    raise LabelSetError(
                        f"{folder}: no .npz files to ensemble: run {names.TRAIN} with --val --npz, "
                        "or leave ensembles out with --disable_ensembling"
                    )

    def model_folder(self, model: Mapping[str, str]) -> Path:
        from nnunetv2.utilities.file_path_utilities import get_output_folder

        return Path(
            get_output_folder(self.name, model["trainer"], model["plans"], model["configuration"])
        )

    def _check_validated(self, folder: Path, fold: int) -> None:
        """Refuse a fold whose predictions are not those of its validation cases: the splits have
        changed since it was trained, and its network may have seen the cases.

        Checkpoints of plain nnU-Net do not name their cases; only the splits tell.
        """
        validation = folder / names.VALIDATION
        validated = case_files(validation, self.file_ending) if validation.is_dir() else {}
        checkpoint = folder / names.FINAL_CHECKPOINT
        stored = stored_state(checkpoint) if validated and checkpoint.is_file() else {}
        if trained := sorted(set(stored.get("training_cases") or ()) & set(validated)):
            raise LabelSetError(
                f"{validation}: {some(trained)}: training case(s) of {checkpoint.name}: restore "
                f"{names.SPLITS} and validate again ({names.TRAIN} with --val)"
            )
        splits = self._splits()
        expected = splits[fold][names.VALIDATED] if fold < len(splits) else validated
        if others := sorted(set(validated) - set(expected)):
            raise LabelSetError(
                f"{validation}: {some(others)}: not in the validation of fold {fold}: "
                f"{self.preprocessed / names.SPLITS} has changed since this fold was validated: "
                "restore it, or train the fold again"
            )

    def _splits(self) -> list[dict[str, list[str]]]:
        """Return the folds; none if they are not at hand."""
        is_known = (self.preprocessed / names.SPLITS).is_file()
        return read_splits(self.name) if is_known else []

    def _candidate(
        self, name: str, models: tuple[Mapping[str, str], ...], folder: Path
    ) -> Candidate:
        from nnunetv2.evaluation.evaluate_predictions import save_summary_json

        _, trained = read_dataset(folder)
        if (trained.leaf_names, trained.regions) != (
            self.contract.leaf_names,
            self.contract.regions,
        ):
            raise LabelSetError(
                f"{name}: was trained for other labels than {self.preprocessed / names.DATASET} "
                "has now: restore them, or train it again"
            )
        summary = label_set_summary(
            self.references,
            folder,
            self.contract,
            self.file_ending,
            self.processes,
            reader_of(folder),
        )
        save_summary_json(summary, str(folder / names.SUMMARY))
        theirs = read_json(folder / NNUNET_SUMMARY)["foreground_mean"]["Dice"]
        return Candidate(
            name, models, folder, summary["label_set_dice"], theirs, summary["known_wrong"]
        )


def check_same_cases(candidates: Sequence[Candidate], ending: str) -> None:
    """Refuse candidates that were validated on other cases: their scores cannot be compared."""
    cases = {candidate.name: set(case_files(candidate.folder, ending)) for candidate in candidates}
    every_case = set().union(*cases.values())
    for name, validated in cases.items():
        if missing := sorted(every_case - validated):
            raise LabelSetError(
                f"{name}: its folds did not validate {some(missing)}, those of others did: the "
                "splits have changed between trainings: train all folds with the same splits"
            )


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The highest label-set-aware Dice; of equals the one with the fewest known errors, then the
    first.
    """
    scored = [candidate for candidate in candidates if not math.isnan(candidate.dice)]
    if not scored:
        raise LabelSetError(
            "no label is annotated in any validation case, so nothing can be compared: check the "
            "splits"
        )
    return max(scored, key=lambda candidate: (candidate.dice, -candidate.known_wrong))


def nnunet_choice(candidates: Sequence[Candidate]) -> Candidate | None:
    """What nnU-Net's own command would choose; None where it fails because a mean is NaN."""
    if any(math.isnan(candidate.nnunet_dice) for candidate in candidates):
        return None
    return max(candidates, key=lambda candidate: candidate.nnunet_dice)


def describe_choice(candidates: Sequence[Candidate], best: Candidate) -> str:
    """All scores, and where nnU-Net would choose differently."""
    lines = ["label-set-aware  known wrong  nnU-Net's  mean foreground Dice of"]
    lines += [
        f"{c.dice:15.4f}  {c.known_wrong:11.3%}  {c.nnunet_dice:9.4f}  {c.name}" for c in candidates
    ]
    lines.append(f"Best by label-set-aware Dice: {best.name}")
    fewer = [c for c in candidates if c.known_wrong < best.known_wrong / 2]
    if fewer:
        lines.append(
            f"Look at it before you use it: {fewer[0].name} has less than half of its voxels that "
            "are known to be wrong"
        )
    theirs = nnunet_choice(candidates)
    if theirs is None:
        lines.append(f"{names.FIND_BEST} may fail here: one of its mean Dice scores is NaN")
    elif theirs is not best:
        lines.append(
            f"{names.FIND_BEST} would choose {theirs.name}: it takes every value of the label "
            "files for a label, and counts nothing where the label is ignore"
        )
    else:
        lines.append(f"{names.FIND_BEST} would choose the same")
    return "\n".join(lines)


@contextmanager
def _one_line(advice: str) -> Iterator[None]:
    """What nnU-Net says about missing models or files, in one line, with what to do."""
    try:
        yield
    except (RuntimeError, AssertionError, FileNotFoundError) as error:
        raise LabelSetError(f"{' '.join(str(error).split())} ({advice})") from error


def write_choice(
    selection: Selection,
    candidates: Sequence[Candidate],
    best: Candidate,
    models: list[dict],
    ensembling: bool,
) -> None:
    """Postprocessing, inference_information.json and nnU-Net's inference_instructions.txt, which
    find our trainers.
    """
    from nnunetv2.evaluation.find_best_configuration import print_inference_instructions

    from nnunet_labelset.nnunet.postprocessing import choose_postprocessing

    after = choose_postprocessing(
        best.folder, selection.references, selection.contract, selection.processes
    )
    theirs = nnunet_choice(candidates)
    information: dict[str, Any] = {
        "folds": list(selection.folds),
        "dataset_name_or_id": selection.name,
        "considered_models": models,
        "ensembling_allowed": ensembling,
        "all_results": {candidate.name: candidate.dice for candidate in candidates},
        "all_results_of_nnunet": {
            candidate.name: candidate.nnunet_dice for candidate in candidates
        },
        "known_wrong": {candidate.name: candidate.known_wrong for candidate in candidates},
        "choice_of_nnunet": theirs.name if theirs else None,
        "best_model_or_ensemble": {
            "result_on_crossval_pre_pp": best.dice,
            "result_on_crossval_post_pp": after["label_set_dice"],
            "postprocessing_file": str(best.folder / names.POSTPROCESSING),
            "some_plans_file": str(best.folder / names.PLANS),
            "selected_model_or_models": [
                {
                    "configuration": m["configuration"],
                    "trainer": m["trainer"],
                    "plans_identifier": m["plans"],
                }
                for m in best.models
            ],
        },
    }
    write_json(selection.results / "inference_information.json", information)
    instructions = selection.results / "inference_instructions.txt"
    with redirect_stdout(StringIO()) as printed:
        print_inference_instructions(information)
    text = printed.getvalue().lstrip().replace(f"{names.PREDICT} ", "nnunet_labelset predict ")
    write_text(instructions, text)
    print(f"\n{text}\n{describe_choice(candidates, best)}\nwritten to {instructions}")
