"""`nnunet_labelset demo`: end-to-end demo on synthetic volumes, with the commands that users type.

The volumes look like fetal brains. Few cases are complete, and all complete ones are normal; the
pathology occurs in partially annotated cases only. Plain nnU-Net with the ignore label, the fully
supervised baseline and the label-set losses train the same small network on the same data, and are
scored on test cases of both populations.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.read_results import load_results
from nnunet_labelset.evaluation.results import Averages
from nnunet_labelset.io.parallel import default_processes
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.discovery import trainers_folder
from nnunet_labelset.nnunet.plans import cut_down
from nnunet_labelset.nnunet.raw import TEST, TRAINING
from nnunet_labelset.study.phantom.data import SOURCES, write_demo_data
from nnunet_labelset.study.runner import Commands

DEMO_DATASET = ("27", "Dataset027_FetalBrain")
CONFIGURATION = names.DEFAULT_CONFIGURATION
METHODS = {
    "plain nnU-Net": "nnUNetTrainer_short",
    "fully supervised": "nnUNetTrainerFullySupervisedDice_short",
    "Leaf-Dice": "nnUNetTrainerLeafDice_short",
    "nnUNetTrainerLabelSet": "nnUNetTrainerLabelSet_short",
}
MORE_METHODS = {
    "plain nnU-Net, Dice only": "nnUNetTrainerDice_short",
    "soft-target Dice": "nnUNetTrainerSoftTargetDice_short",
    "marginal Dice": "nnUNetTrainerMarginalDice_short",
}
ENSEMBLED = ("Leaf-Dice", "nnUNetTrainerLabelSet")
ENSEMBLE = "ensemble of both"


@dataclass(frozen=True)
class Size:
    """How much a demo computes."""

    data: str
    epochs: int
    iterations: int
    folds: tuple[str, ...]
    # Many steps with small patches teach small tissues more than few steps with whole brains.
    patch: tuple[int, ...] = (24, 32, 24)
    features: tuple[int, ...] = (12, 24, 48, 64)


SMALL = Size("small", epochs=8, iterations=100, folds=("0",))
FULL = Size("full", epochs=20, iterations=100, folds=("0", "1"))


@dataclass
class Demo:
    """The steps, in order."""

    folder: Path
    size: Size
    full: bool
    device: str
    seed: int

    def __post_init__(self) -> None:
        # A small network gains little from a second thread: trainings side by side use the cores
        # better.
        self.commands = Commands(
            self.folder / "logs", default_processes() if self.device == "cpu" else 1
        )

    @property
    def methods(self) -> dict[str, str]:
        return {**METHODS, **(MORE_METHODS if self.full else {})}

    def run(self, data_only: bool = False) -> None:
        begin = time.monotonic()
        self._say(f"Generating fetal brains in {self.folder / 'data'}")
        write_demo_data(self.folder / "data", self.seed, self.size.data)
        if data_only:
            print(self.folder / "data")
            return
        self.prepare()
        results = self.compare_methods()
        print(f"\nDone in {(time.monotonic() - begin) / 60:.1f} minutes.")
        print("\n".join(summary(results)))
        print(f"All methods, labels and tests: {(self.folder / 'comparison').resolve()}")
        print(f"Report: {(self.folder / 'report.html').resolve()}")

    def prepare(self) -> None:
        """From the generated volumes to a preprocessed data set."""
        self._set_environment()
        self._convert()
        self._plan()

    def compare_methods(self) -> list[tuple[str, Path]]:
        """Train, predict and score every method; returns its name and predictions."""
        self._train()
        self._predict()
        return self._evaluate()

    def _convert(self) -> None:
        data = self.folder / "data"
        flags = {TRAINING: "--source", TEST: "--test-source"}
        sources = [
            word
            for name, place, part in SOURCES
            for word in (flags[part], f"{name}={data / place}")
        ]
        self._say("Converting: one data set, every case with its protocol")
        name = DEMO_DATASET[1].split("_")[1]
        table = ["--annotated", data / "annotated.csv"]
        self._call(
            "nnunet_labelset", "convert", "-d", DEMO_DATASET[0], "-n", name, *sources, *table
        )
        self._call("nnunet_labelset", "verify", "-d", DEMO_DATASET[0])
        self._call(
            "nnunet_labelset", "coverage", "-d", DEMO_DATASET[0], "-o", self.folder / "coverage.png"
        )

    def _plan(self) -> None:
        self._say("Planning and preprocessing by nnU-Net, with a network that a CPU can train")
        self._call(
            names.PLAN_AND_PREPROCESS,
            "-d",
            DEMO_DATASET[0],
            "--verify_dataset_integrity",
            "--no_pp",
            "-np",
            2,
        )
        preprocessed = self.folder / names.PREPROCESSED / DEMO_DATASET[1]
        plans = preprocessed / f"{names.DEFAULT_PLANS}.json"
        cut_down(plans, CONFIGURATION, self.size.patch, self.size.features)
        self._call(names.PREPROCESS, "-d", DEMO_DATASET[0], "-c", CONFIGURATION, "-np", 2)
        self._call(
            "nnunet_labelset", "splits", "-d", DEMO_DATASET[0], "--random", 2, "--val-fraction", 0.1
        )

    def _train(self) -> None:
        self._say(
            f"Training {len(self.methods)} methods: {self.size.epochs} epochs of "
            f"{self.size.iterations} steps"
        )
        commands = [
            [
                names.TRAIN,
                DEMO_DATASET[0],
                CONFIGURATION,
                fold,
                "-tr",
                trainer,
                "-device",
                self.device,
            ]
            for trainer in self.methods.values()
            for fold in self.size.folds
        ]
        # Augmentation in the same process: the seed counts.
        self.commands.run(
            commands, epochs=self.size.epochs, environment={names.AUGMENTATION_PROCESSES: "0"}
        )

    def _predict(self) -> None:
        self._say("Predicting the test cases")
        images = self.folder / names.RAW / DEMO_DATASET[1] / names.IMAGES_TEST
        commands = []
        for trainer in self.methods.values():
            model = [
                "-d",
                DEMO_DATASET[0],
                "-c",
                CONFIGURATION,
                "-tr",
                trainer,
                "-f",
                *self.size.folds,
            ]
            options = ["-device", self.device, "-npp", 0, "-nps", 0, "--disable_tta"]
            if trainer in self._ensembled():
                options.append("--save_probabilities")
            commands.append(
                [names.PREDICT, "-i", images, "-o", self.predictions(trainer), *model, *options]
            )
        self.commands.run(commands)

    def _evaluate(self) -> list[tuple[str, Path]]:
        self._say("Ensembling, evaluating where annotated, comparing")
        members = [self.predictions(trainer) for trainer in self._ensembled()]
        self._call(names.ENSEMBLE, "-i", *members, "-o", self.predictions("ensemble"), "-np", 1)
        results = [(name, self.predictions(trainer)) for name, trainer in self.methods.items()]
        results.append((ENSEMBLE, self.predictions("ensemble")))
        raw = self.folder / names.RAW / DEMO_DATASET[1]
        table = ["--table", self.folder / "data" / "participants.tsv", "--group-by", "Pathology"]
        for _, predictions in results:
            dataset = ["-djfile", raw / names.DATASET]
            self._call(
                "nnunet_labelset",
                "evaluate",
                raw / names.LABELS_TEST,
                predictions,
                *dataset,
                *table,
                is_quiet=True,
            )
        named = [f"{name}={predictions}" for name, predictions in results]
        self._call(
            "nnunet_labelset", "compare", *named, "-o", self.folder / "comparison", is_quiet=True
        )
        folders = [
            names.model_name(name, names.DEFAULT_PLANS, CONFIGURATION)
            for name in self.methods.values()
        ]
        models = [self.folder / names.RESULTS / DEMO_DATASET[1] / folder for folder in folders]
        self._call(
            "nnunet_labelset", "report", *named, "-m", *models, "-o", self.folder / "report.html"
        )
        return results

    def _ensembled(self) -> list[str]:
        return [METHODS[name] for name in ENSEMBLED]

    def predictions(self, trainer: str) -> Path:
        return self.folder / "predictions" / trainer

    def _set_environment(self) -> None:
        environment = {name: str((self.folder / name).resolve()) for name in names.VARIABLES}
        environment |= {
            names.EXTERNAL_TRAINERS: trainers_folder(),
            "nnunet_labelset_epochs": str(self.size.epochs),
            "nnunet_labelset_iterations": str(self.size.iterations),
            "nnunet_labelset_seed": str(self.seed),
            names.PROCESSES: "1",
        }
        if self.device == "cpu":
            environment["OMP_NUM_THREADS"] = "1"
        self.commands.environment = environment
        for name, value in environment.items():
            print(f"$ export {name}={shlex.quote(value)}")
            if name.startswith("nnUNet_") and os.sep in value:
                Path(value).mkdir(parents=True, exist_ok=True)

    def _say(self, what: str) -> None:
        print(f"\n== {what}", flush=True)

    def _call(self, *command: object, is_quiet: bool = False) -> None:
        self.commands.run([command], is_quiet=is_quiet)


def summary(results: list[tuple[str, Path]]) -> Iterator[str]:
    """Yield which method is best and by how much, then two rows per population: the best method and
    plain nnU-Net (the first method), or the second best if plain nnU-Net is the best.

    Complete training cases are normal, so the pathology is the hard part.
    """
    evaluations, _ = load_results([f"{name}={folder}" for name, folder in results])
    overall = {name: result.averages.overall for name, result in evaluations.items()}
    (best, best_dice), (other, other_dice) = _best_and_other(overall)
    ahead = METRICS["dice"].show(best_dice - other_dice)
    yield f"Best mean Dice: {best}, {ahead} points ahead of {other}."
    groups = {name: result.averages.groups["Pathology"] for name, result in evaluations.items()}
    populations = sorted({population for group in groups.values() for population in group})
    width = max(len(name) for name in evaluations)
    for population in populations:
        averages = {name: group[population] for name, group in groups.items()}
        yield f"  {population} ({next(iter(averages.values())).n_cases} test cases)"
        for name, dice in _best_and_other(averages):
            yield f"    {name:{width}}  {METRICS['dice'].show(dice):>5}"
    yield "One training per method: docs/accuracy.md says how much that varies."


def _best_and_other(averages: Mapping[str, Averages]) -> list[tuple[str, float]]:
    """Return the method with the highest mean Dice, and the one that it is compared with."""
    dice = {name: average.mean["dice"].mean or 0.0 for name, average in averages.items()}
    first = next(iter(dice))
    ranking = sorted(dice, key=dice.__getitem__, reverse=True)
    other = first if first != ranking[0] else ranking[1]
    return [(name, dice[name]) for name in (ranking[0], other)]
