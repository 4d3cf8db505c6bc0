"""`nnunet_labelset experiment`: a whole study as a Snakemake workflow.

The defaults are the study of the paper (arXiv 2107.03846): four methods, ten networks each on
random splits of 90 % and 10 %, the probabilities of the ten averaged, the first method as the
baseline of the statistics. With `cv` it is what nnU-Net users do with their own data: a
cross-validation of several configurations that ends with the best one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import case_files, check_name, write_text
from nnunet_labelset.io.parallel import default_processes
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.discovery import external_trainers, known_trainers
from nnunet_labelset.nnunet.folders import check_free, find_dataset, nnunet_folder
from nnunet_labelset.nnunet.raw import file_ending, read_dataset, training_cases
from nnunet_labelset.study.progress import CONFIG

PAPER = (
    "nnUNetTrainerFullySupervisedDice",
    "nnUNetTrainerSoftTargetDice",
    "nnUNetTrainerMarginalDice",
    "nnUNetTrainerLeafDice",
)
WORKFLOW = "Snakefile"
PROFILE = "profiles/default/config.yaml"  # Snakemake finds it there without being told
ALL_CASES = "all"  # nnU-Net's fold that trains on every case
MOST_AUGMENTATION_PROCESSES = 12  # what nnU-Net starts for one GPU at most


def parse_folds(words: Sequence[str]) -> list[str]:
    """Return folds from words such as `0 1 2`, `0-9` or `all`, each once, in the order given."""
    folds: list[str] = []
    for word in words:
        folds += [word] if word == ALL_CASES else _fold_range(word)
    return list(dict.fromkeys(folds))


def _fold_range(word: str) -> list[str]:
    span = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
    if span is None:
        raise LabelSetError(f"-f {word}: expected fold numbers, a range such as 0-9, or all")
    first = int(span[1])
    last = int(span[2] or span[1])
    if last < first or last >= 1000:
        raise LabelSetError(f"-f {word}: expected a range from low to high, below 1000")
    return [str(number) for number in range(first, last + 1)]


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
    complete: Sequence[int] = ()  # ids of the data sets of further rounds
    command: str = "nnunet_labelset experiment"

    @property
    def num_networks(self) -> int:
        return len(self.trainers) * len(self.configurations) * len(self.folds)

    def check(self) -> None:
        """Refuse what would fail later."""
        folder = find_dataset(self.dataset)
        raw = nnunet_folder(names.RAW).resolve()
        if folder.resolve().parent != raw or not names.dataset_words(folder.name):
            raise LabelSetError(
                f"{folder}: nnU-Net trains only on data sets DatasetXXX_Name in $nnUNet_raw ({raw})"
            )
        dataset_json, contract = read_dataset(folder)
        self._check_machine()
        self._check_models()
        self._check_plans(folder.name)
        self._check_excluded(folder, dataset_json)
        self._check_rounds()
        if not self.cv:
            images, references = self._test_folders(folder)
            _check_test_cases(images, references, file_ending(dataset_json), contract)

    def write(self) -> Path:
        """Write Snakefile, config.yaml and the profile into `output`; return that folder."""
        self.check()
        output = self.output.resolve()
        workflow = files(__package__).joinpath("workflow")
        settings = self._config_text(find_dataset(self.dataset))
        write_text(output / CONFIG, settings)
        write_text(output / WORKFLOW, workflow.joinpath(WORKFLOW).read_text(encoding="utf-8"))
        profile = workflow.joinpath("profile.yaml").read_text(encoding="utf-8")
        gpus_at_once = len(self.gpus) or self.num_gpus
        write_text(output / PROFILE, f"{profile}resources: [gpu={gpus_at_once}]\n")
        return output

    def _check_machine(self) -> None:
        if self.num_gpus < 1 or (self.num_gpus > 1 and self.device != "cuda"):
            raise LabelSetError(
                f"-num_gpus {self.num_gpus} -device {self.device}: expected 1, or more than 1 only "
                "with cuda"
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
                f"-c {names.CASCADE}: needs the predictions of {names.BEFORE_CASCADE}: possible "
                f"with --cv and -c {names.BEFORE_CASCADE} {names.CASCADE}"
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
        if ALL_CASES in self.folds:
            raise LabelSetError(
                "--exclude with -f all: nnU-Net's fold all trains on every case; name other folds"
            )

    def _check_rounds(self) -> None:
        if not self.complete:
            return
        num_models = len(self.trainers) * len(self.configurations)
        if not self.cv or num_models > 1 or len(set(self.complete)) < len(self.complete):
            raise LabelSetError(
                "--complete needs --cv, whose folds complete the cases that they validate, one "
                "trainer, one configuration, and an id for every round"
            )
        if self.excluded:
            raise LabelSetError(
                "--complete with --exclude: what no network validates, none can complete"
            )
        for number in self.complete:
            check_free(number)

    def _check_plans(self, dataset: str) -> None:
        for name, kind in ((self.plans, "plans"), (self.checkpoint, "checkpoint")):
            check_name(name, kind)
        for configuration in self.configurations:
            check_name(configuration, "configuration")
        file = nnunet_folder(names.PREPROCESSED) / dataset / f"{self.plans}.json"
        if self.plans not in names.PLANNERS and not file.is_file():
            raise LabelSetError(
                f"-p {self.plans}: {file} is missing: run {names.PLAN_AND_PREPROCESS} first"
            )

    def _test_folders(self, folder: Path) -> tuple[Path, Path]:
        images = self.images or folder / names.IMAGES_TEST
        references = self.references or folder / names.LABELS_TEST
        return images.resolve(), references.resolve()

    def _datasets(self, first: str) -> list[str]:
        """Return the data set, and those that `complete` makes of it, round by round."""
        name = first.partition("_")[2].removesuffix("Completed")
        return [first, *(names.dataset_name(n, f"{name}Completed") for n in self.complete)]

    def _split_options(self) -> list[str]:
        options = ["-k", str(len(self.folds))]
        if not self.cv:
            numbers = [int(fold) for fold in self.folds if fold != ALL_CASES]
            options = ["--random", str(max(numbers, default=0) + 1), "--val-fraction", "0.1"]
        return [*options, "--exclude", *self.excluded] if self.excluded else options

    def _threads(self) -> int:
        """Return how many processors one training takes: on a CPU all of them."""
        if self.device == "cpu":
            return default_processes()
        share = default_processes() // max(len(self.gpus), 1)
        return max(1, min(share, MOST_AUGMENTATION_PROCESSES * self.num_gpus))

    def _config_text(self, folder: Path) -> str:
        comment = " ".join(self.command.split())  # a line break in a name must not end it
        lines = [f"# Written by: {comment}\n"]
        for title, settings in self._settings(folder):
            lines.append(f"\n# {title}\n")
            lines.append(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=1000))
        return "".join(lines)

    def _settings(self, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the settings of the Snakefile in groups, each with a comment for people."""
        environment = {name: str(nnunet_folder(name).resolve()) for name in names.VARIABLES}
        environment[names.EXTERNAL_TRAINERS] = external_trainers()
        yield "variables of nnU-Net", {"environment": environment}
        yield (
            "what is trained; a second data set is the first one, completed by its networks",
            {
                "datasets": self._datasets(folder.name),
                "trainers": list(self.trainers),
                "configurations": list(self.configurations),
                "folds": list(self.folds),
                "cross_validation": self.cv,
            },
        )
        yield (
            "preparation: used only for what is missing",
            {
                "plans": self.plans,
                "planner": names.PLANNERS.get(self.plans),
                "splits": self._split_options(),
                "excluded": list(self.excluded),
            },
        )
        images, references = self._test_folders(folder)
        yield (
            "which checkpoint predicts, and what it is scored against",
            {
                "checkpoint": self.checkpoint,
                "images": None if self.cv else str(images),
                "references": None if self.cv else str(references),
                "evaluate": [] if self.cap is None else ["--cap", f"{self.cap:g}"],
            },
        )
        yield (
            "one network: device, GPUs, processors; memory and time are limits on a cluster",
            {
                "device": self.device,
                "num_gpus": self.num_gpus,
                "gpus": list(self.gpus),
                "threads": self._threads(),
                "memory_mb": 32000,
                "minutes": 2880,
            },
        )


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
                f"{folder}: {len(cases)} test case(s) that {other} does not have: "
                f"{some(sorted(cases))}"
            )
    contract.require_cases(drawn)
