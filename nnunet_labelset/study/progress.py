"""How far a study has come: nnU-Net's own files tell. The Snakefile of a study imports this
module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby, product
from pathlib import Path
from typing import Any

import yaml

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.text import aligned
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.folders import find_dataset, nnunet_folder
from nnunet_labelset.nnunet.plans import preprocessed_folder
from nnunet_labelset.nnunet.raw import training_cases

CONFIG = "config.yaml"  # the settings of a study


class NetworkState(Enum):
    """How far the training of one fold has come, in words for people."""

    WAITING = "waiting"
    STARTED = "started"
    NOT_VALIDATED = "trained, not validated"
    WITHOUT_PROBABILITIES = "finished, without probabilities"
    FINISHED = "finished"


@dataclass(frozen=True)
class Network:
    """One fold of a model, by its folder `TRAINER__PLANS__CONFIGURATION/fold_N`."""

    folder: Path

    @property
    def state(self) -> NetworkState:
        if not (self.folder / names.FINAL_CHECKPOINT).is_file():
            return NetworkState.STARTED if self.folder.is_dir() else NetworkState.WAITING
        validation = self.folder / names.VALIDATION
        if not (validation / names.SUMMARY).is_file():
            return NetworkState.NOT_VALIDATED
        if not any(validation.glob(f"*{names.PROBABILITIES}")):
            return NetworkState.WITHOUT_PROBABILITIES
        return NetworkState.FINISHED

    def is_finished(self, with_probabilities: bool) -> bool:
        if self.state == NetworkState.WITHOUT_PROBABILITIES:
            return not with_probabilities
        return self.state == NetworkState.FINISHED

    @property
    def resume_flag(self) -> str:
        """Return the option with which nnU-Net goes on from what is there."""
        if (self.folder / names.FINAL_CHECKPOINT).is_file():
            return "--val"
        checkpoints = (names.LATEST_CHECKPOINT, names.BEST_CHECKPOINT)
        return "--c" if any((self.folder / name).is_file() for name in checkpoints) else ""


def is_preprocessed(dataset: str, plans: str, configuration: str) -> bool:
    """Tell whether nnU-Net has preprocessed every training case for this configuration."""
    folder = nnunet_folder(names.PREPROCESSED) / dataset
    file = folder / f"{plans}.json"
    if not file.is_file():
        return False
    raw = find_dataset(dataset)
    cases = training_cases(raw, read_json(raw / names.DATASET))
    data = folder / preprocessed_folder(read_json(file), configuration)
    # nnU-Net writes the .pkl of a case last.
    return all((data / f"{case}.pkl").is_file() for case in cases)


def study_problems(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what would train something else than the study says, as far as plans and splits
    exist.
    """
    preprocessed = Path(config["environment"][names.PREPROCESSED])
    for dataset in config["datasets"]:
        plans = preprocessed / dataset / f"{config['plans']}.json"
        if plans.is_file():
            yield from _plan_problems(plans, config["configurations"])
        splits = preprocessed / dataset / names.SPLITS
        if splits.is_file():
            yield from _split_problems(splits, config)


def _plan_problems(plans: Path, configurations: Sequence[str]) -> Iterator[str]:
    planned = read_json(plans)["configurations"]
    for configuration in configurations:
        if configuration not in planned:
            yield f"-c {configuration}: {plans} does not have it: leave it out"


def _split_problems(splits: Path, config: Mapping[str, Any]) -> Iterator[str]:
    content = read_json(splits, list)
    folds = config["folds"]
    for fold in folds:
        if fold.isdigit() and int(fold) >= len(content):
            yield f"fold {fold}: {splits} has {len(content)} splits: see nnunet_labelset splits"
    if config["cross_validation"] and len(content) > len(folds):
        yield (
            f"--cv {len(folds)}: {splits} has {len(content)} splits: use --cv {len(content)}, or "
            "run nnunet_labelset splits --overwrite"
        )
    listed = {case for split in content for cases in split.values() for case in cases}
    for case in config["excluded"]:
        if case in listed:
            yield f"--exclude {case}: {splits} has it: run nnunet_labelset splits --overwrite"


def check_study() -> int:
    """Print the problems of the study in this folder, one line each; return an exit code."""
    try:
        problems = list(study_problems(read_config(Path())))
    except LabelSetError as error:
        problems = [str(error)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def read_config(study: Path) -> dict[str, Any]:
    """Return the settings of the study in this folder."""
    file = study / CONFIG
    if not file.is_file():
        raise LabelSetError(f"{file}: no such file: -o is not the folder of a study")
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def print_progress(study: Path) -> None:
    """Print a line for every network of the study in this folder, below the name of its model."""
    networks = list(networks_of_study(read_config(study)))
    for model, folds in groupby(networks, lambda network: network.folder.parent):
        print(f"{model.parent.name}, {model.name}")
        rows = [(network.folder.name, network.state.value) for network in folds]
        print("\n".join(f"  {line}" for line in aligned(rows, names=2)))
    trained = sum(network.is_finished(with_probabilities=False) for network in networks)
    print(f"{trained} of {len(networks)} networks finished")


def networks_of_study(config: Mapping[str, Any]) -> Iterator[Network]:
    """Yield every network of a study, given its config.yaml."""
    results = Path(config["environment"][names.RESULTS])
    parts = (config[key] for key in ("datasets", "configurations", "trainers", "folds"))
    for dataset, configuration, trainer, fold in product(*parts):
        model = names.model_name(trainer, config["plans"], configuration)
        yield Network(results / dataset / model / names.fold_name(fold))


if __name__ == "__main__":
    sys.exit(check_study())
