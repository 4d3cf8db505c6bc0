"""`nnunet_labelset experiment`: the runnable scripts of a whole study, for one machine and for a
SLURM cluster.

The defaults are the study of the paper (arXiv 2107.03846): four methods, ten networks each on
random splits of 90 % and 10 %, the probabilities of the ten averaged, the first method as the
baseline of the statistics. With `cv` it is what nnU-Net users do with their own data: a
cross-validation of several configurations that ends with the best one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import case_files, check_name, write_text
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.discovery import known_trainers
from nnunet_labelset.nnunet.folders import check_free, find_dataset, nnunet_folder
from nnunet_labelset.nnunet.raw import file_ending, read_dataset, training_cases
from nnunet_labelset.study.scripts import Setting, script

PAPER = tuple(
    f"nnUNetTrainer{name}"
    for name in ("FullySupervisedDice", "SoftTargetDice", "MarginalDice", "LeafDice")
)
NEXT_ROUND = "completed"
SCRIPTS = ("run.sh", "submit_slurm.sh")


def parse_folds(words: Sequence[str]) -> list[str]:
    """Folds from words such as `0 1 2`, `0-9` or `all`, each once, in the order given."""
    folds: list[str] = []
    for word in words:
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if span is None and word != "all":
            raise LabelSetError(f"-f {word}: expected fold numbers, a range such as 0-9, or all")
        if span is None:
            folds.append(word)
            continue
        first, last = int(span[1]), int(span[2] or span[1])
        if last < first or last >= 1000:
            raise LabelSetError(f"-f {word}: expected a range from low to high, below 1000")
        folds += map(str, range(first, last + 1))
    return list(dict.fromkeys(folds))


@dataclass(frozen=True)
class Study:
    """What is trained, on what, and how it is judged."""

    dataset: str
    output: Path
    trainers: Sequence[str]
    folds: Sequence[str]
    configurations: Sequence[str] = (names.DEFAULT_CONFIGURATION,)
    plans: str = names.DEFAULT_PLANS
    num_gpus: int = 1
    gpus: Sequence[str] = ()
    device: str = "cuda"
    checkpoint: str = names.FINAL_CHECKPOINT
    images: Path | None = None
    references: Path | None = None
    cap: float | None = None
    excluded: Sequence[str] = ()
    cv: bool = False
    complete: Sequence[
        int
    ] = ()  # ids of the data sets that `complete` writes, one for every further round
    completes: str = ""  # in such a round: the data set that is completed
    command: str = "nnunet_labelset experiment"

    @property
    def models(self) -> list[str]:
        """As the scripts name them, those that need another one's predictions last."""
        ordered = sorted(self.configurations, key=lambda name: name == names.CASCADE)
        if len(ordered) == 1:
            return list(self.trainers)
        return [f"{trainer}__{name}" for name in ordered for trainer in self.trainers]

    @property
    def num_cascades(self) -> int:
        return len(self.trainers) * len(self.folds) * (names.CASCADE in self.configurations)

    def check(self) -> tuple[str, Path, Path]:
        """Refuse what would fail later; returns the data set's name, the test images and their
        references.
        """
        if self.completes:  # its data set is written by the round before it
            return self.dataset, Path(), Path()
        folder = find_dataset(self.dataset)
        raw = nnunet_folder(names.RAW).resolve()
        if folder.resolve().parent != raw or not names.dataset_words(folder.name):
            raise LabelSetError(
                f"{folder}: nnU-Net trains only on data sets DatasetXXX_Name in $nnUNet_raw ({raw})"
            )
        dataset_json, contract = read_dataset(folder)
        self._check_machine()
        self._check_models()
        self._check_excluded(folder, dataset_json)
        self._check_rounds()
        images = (self.images or folder / names.IMAGES_TEST).resolve()
        references = (self.references or folder / names.LABELS_TEST).resolve()
        if not self.cv:
            _check_test_cases(images, references, file_ending(dataset_json), contract)
        return folder.name, images, references

    def write(self) -> list[Path]:
        """Write the scripts into `output`, those of further rounds into a folder in it; returns the
        first ones.
        """
        settings = self._settings(*self.check())
        output = self.output.resolve()
        if self.complete:
            self._next_round(settings["dataset"]).write()
        for name in SCRIPTS:
            write_text(output / name, script(name, settings, self.command))
        return [output / name for name in SCRIPTS]

    def _check_machine(self) -> None:
        if self.num_gpus < 1 or (self.num_gpus > 1 and self.device != "cuda"):
            raise LabelSetError(
                f"-num_gpus {self.num_gpus} -device {self.device}: expected 1, or more than 1 only with cuda"
            )
        if self.gpus and (self.num_gpus > 1 or self.device != "cuda"):
            raise LabelSetError(
                "--gpus trains one network on each GPU: leave -num_gpus and -device out"
            )
        bad = [gpu for gpu in self.gpus if not re.fullmatch(r"\d+|GPU-[\w-]+|MIG-[\w/-]+", gpu)]
        if bad or len(set(self.gpus)) < len(self.gpus):
            raise LabelSetError(
                f"--gpus {','.join(self.gpus)}: expected numbers of GPUs, each once, such as 0,1"
            )

    def _check_models(self) -> None:
        if names.CASCADE in self.configurations and not (
            self.cv and names.BEFORE_CASCADE in self.configurations
        ):
            raise LabelSetError(
                f"-c {names.CASCADE}: needs the predictions of {names.BEFORE_CASCADE}: possible with --cv and "
                f"-c {names.BEFORE_CASCADE} {names.CASCADE}"
            )
        known = known_trainers()
        for trainer in self.trainers:
            if trainer not in known:
                hint = did_you_mean(trainer, known)
                raise LabelSetError(
                    f"-tr {trainer}: no such trainer" + (hint if "did you mean" in hint else "")
                )
        for flag, words in (("-tr", self.trainers), ("-c", self.configurations)):
            if len(set(words)) < len(words):
                raise LabelSetError(f"{flag} {' '.join(words)}: one is named twice")

    def _check_excluded(self, folder: Path, dataset_json: dict[str, Any]) -> None:
        if not self.excluded:
            return
        cases = training_cases(folder, dataset_json)
        for case in self.excluded:
            if case not in cases:
                raise LabelSetError(
                    f"--exclude {case}: no training case of this name{did_you_mean(case, cases)}"
                )
        if "all" in self.folds:
            raise LabelSetError(
                "--exclude with -f all: nnU-Net's fold all trains on every case; name other folds"
            )

    def _check_rounds(self) -> None:
        if not self.complete:
            return
        if not self.cv or len(self.models) > 1 or len(set(self.complete)) < len(self.complete):
            raise LabelSetError(
                "--complete needs --cv, whose folds complete the cases that they validate, one trainer, one "
                "configuration, and an id for every round"
            )
        if self.excluded:
            raise LabelSetError(
                "--complete with --exclude: what no network validates, none can complete"
            )
        for number in self.complete:
            check_free(number)

    def _next_round(self, dataset: Any) -> Study:
        """The same study on the data set that this round's networks complete."""
        number, *more = self.complete
        name = names.dataset_name(
            number, f"{str(dataset).partition('_')[2].removesuffix('Completed')}Completed"
        )
        output = self.output.resolve() / NEXT_ROUND
        return replace(
            self, dataset=name, output=output, complete=more, completes=str(dataset), excluded=()
        )

    def _settings(self, dataset: str, images: Path, references: Path) -> dict[str, Setting]:
        numbers = [int(fold) for fold in self.folds if fold != "all"]
        splits: tuple[str | int, ...] = (
            "--random",
            max(numbers, default=0) + 1,
            "--val-fraction",
            "0.1",
        )
        if self.cv:
            splits = ("-k", len(self.folds))
        num_networks = len(self.models) * len(self.folds)
        return {
            **{name: str(nnunet_folder(name).resolve()) for name in names.VARIABLES},
            "study": str(self.output.resolve()),
            "dataset": dataset,
            "dataset_id": int(dataset[7:10]),
            "configurations": [check_name(name, "configuration") for name in self.configurations],
            "preprocessed_configurations": sorted(
                {n for name in self.configurations for n in names.data_of(name)}
            ),
            "plans": check_name(self.plans, "plans"),
            "planner": names.PLANNERS.get(self.plans, ""),
            "trainers": self.trainers,
            "models": self.models,
            "folds": self.folds,
            "crossvalidation": int(self.cv),
            "split_options": (*splits, *(("--exclude", *self.excluded) if self.excluded else ())),
            "excluded": self.excluded,
            "num_excluded": len(self.excluded),
            "num_gpus": self.num_gpus,
            "gpus": self.gpus,
            "num_workers": len(self.gpus),
            "num_models": len(self.models),
            "num_networks": num_networks,
            "num_first_networks": num_networks - self.num_cascades,
            "device": self.device,
            "checkpoint": check_name(self.checkpoint, "checkpoint"),
            "images": "" if self.cv else str(images),
            "references": "" if self.cv else str(references),
            "cap": "" if self.cap is None else f"{self.cap:g}",
            "keep_probabilities": 0,
            "completes": self.completes,
            "next_round": str(self.output.resolve() / NEXT_ROUND) if self.complete else "",
            # nnU-Net's names of files
            "splits": names.SPLITS,
            "final_checkpoint": names.FINAL_CHECKPOINT,
            "latest_checkpoint": names.LATEST_CHECKPOINT,
            "best_checkpoint": names.BEST_CHECKPOINT,
            "validation": names.VALIDATION,
            "summary": names.SUMMARY,
            "preprocessed_references": names.REFERENCES,
            "crossvalidation_folder": names.crossvalidation_name(self.folds),
        }


def _check_test_cases(images: Path, references: Path, ending: str, contract: Contract) -> None:
    """What `evaluate` would refuse in the end, after all trainings, is refused now."""
    for path, flag in ((images, "-i"), (references, "-r")):
        if not case_files(path, ending):
            raise LabelSetError(
                f"{path}: no {ending} files to test on: give the folder with {flag}, or use --cv"
            )
    first = names.FIRST_CHANNEL
    pictured = {
        name.removesuffix(first) for name in case_files(images, ending) if name.endswith(first)
    }
    drawn = set(case_files(references, ending))
    for cases, folder, other in (
        (pictured - drawn, images, references),
        (drawn - pictured, references, images),
    ):
        if cases:
            raise LabelSetError(
                f"{folder}: {len(cases)} test case(s) that {other} does not have: {some(sorted(cases))}"
            )
    contract.require_cases(drawn)
