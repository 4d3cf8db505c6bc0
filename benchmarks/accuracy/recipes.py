"""One run of a method: the trainings that it needs, and the scores of the test cases."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from nnunetv2.experiment_planning.plan_and_preprocess_api import preprocess

from benchmarks.accuracy.methods import METHODS, Recipe
from benchmarks.accuracy.prepare import Variant
from benchmarks.accuracy.scoring import (
    TestImage,
    average,
    logits_of,
    scores_of,
    segmentation_of,
    test_images,
)
from benchmarks.accuracy.studies import STUDIES
from benchmarks.accuracy.training import CURVE, REGIMES, Training
from nnunet_labelset.contract import Contract
from nnunet_labelset.dataset_conversion.complete import write_completed
from nnunet_labelset.datasets.folds import k_folds, subjects_of
from nnunet_labelset.io.files import read_json, write_json

FOLDS = 3  # of a method that completes its cases before it trains again
COMPLETE_CASES = "complete_only"


@dataclass(frozen=True)
class Job:
    """A method with a seed; `home` is the folder of the study."""

    study: str
    method: str
    seed: int
    steps: int
    regime: str
    home: Path

    @property
    def folder(self) -> Path:
        return self.home / "runs" / f"{self.regime}_{self.steps}" / f"{self.method}-{self.seed}"

    @property
    def is_done(self) -> bool:
        return (self.folder / "run.json").is_file()

    def training(self, stage: str = "main", **options: Any) -> Training:
        method = METHODS[self.method]
        cases = read_json(self.home / "cases.json")
        complete = [name for name, case in cases.items() if case["complete"]]
        if method.complete_only:
            options = {"cases": complete, **options}
        preprocessed = self.home / "nnUNet_preprocessed" / method.variant
        return Training(
            STUDIES[self.study],
            options.pop("preprocessed", preprocessed),
            method,
            self.folder / stage,
            self.seed,
            self.steps,
            REGIMES[self.regime],
            **options,
        )


def run(job: Job) -> None:
    """Train and score; `run.json`, which is written last, marks a finished run."""
    job.folder.mkdir(parents=True, exist_ok=True)
    # how cases are sampled is a part of the method
    os.environ.pop("nnunet_labelset_sampling", None)
    os.environ |= {
        "nnUNet_results": str(job.folder / "results"),
        "nnUNet_n_proc_DA": "0",  # else a seed would not count
        "OMP_NUM_THREADS": "1",
    }
    torch.set_num_threads(1)
    recipe = {
        Recipe.SINGLE: single,
        Recipe.UNION: union,
        Recipe.PSEUDO_LABELS: pseudo_labels,
        Recipe.PSEUDO_ROUNDS: pseudo_rounds,
        Recipe.COMPLETED: completed,
    }[METHODS[job.method].recipe]
    with (
        (job.folder / "log.txt").open("a") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        cases, stages = recipe(job)
    curves = [read_json(stage / CURVE) for stage in stages]
    mean = average(cases, STUDIES[job.study].leaves)
    points = [*curves[-1]["points"][:-1], {**curves[-1]["points"][-1], **mean}]
    content = {
        "study": job.study,
        "method": job.method,
        "seed": job.seed,
        "steps": job.steps,
        "regime": job.regime,
        "networks": len(stages),
        "cpu_seconds": round(sum(curve["cpu_seconds"] for curve in curves)),
        "mean": mean,
        "curve": points if METHODS[job.method].recipe is not Recipe.UNION else [],
        "cases": cases,
    }
    write_json(job.folder / "run.json", content)


def single(
    job: Job, training: Training | None = None, images: list[TestImage] | None = None
) -> tuple[dict[str, Any], list[Path]]:
    training = training or job.training()
    with FileLock(str(job.folder / "lock")):
        images = images or images_of(job, training)
        training.score = partial(summary, images=images, names=training.study.leaves)
        trainer = training.run()
    return scored(trainer, images, training.study.leaves), [training.folder]


def images_of(job: Job, training: Training) -> list[TestImage]:
    raw = job.home / "nnUNet_raw" / Variant.LABEL_SETS
    trainer = replace(training, folder=training.folder / "plans").trainer()
    return test_images(trainer, raw, read_json(job.home / "cases.json"))


def scored(trainer: Any, images: list[TestImage], names: tuple[str, ...]) -> dict[str, Any]:
    cases = {}
    for image in images:
        predicted = segmentation_of(trainer, image.data)
        scores = scores_of(predicted, image.reference, names)
        cases[image.name] = {"group": image.group, "scores": scores}
    return cases


def summary(trainer: Any, images: list[TestImage], names: tuple[str, ...]) -> dict[str, Any]:
    return average(scored(trainer, images, names), names)


def union(job: Job) -> tuple[dict[str, Any], list[Path]]:
    """One plain network per protocol, in which the gap is a class of its own. The probability of a
    label is the mean over the networks whose cases annotate it; background competes with one half
    where no network knows it.
    """
    cases = {
        name: case for name, case in read_json(job.home / "cases.json").items() if not case["test"]
    }
    names = ("background", *STUDIES[job.study].leaves)
    labels = {name: value for value, name in enumerate((*names, "gap"))}
    total: list[np.ndarray] = []
    counts = np.zeros(len(names))
    stages = []
    images: list[TestImage] = []
    for protocol in sorted({case["protocol"] for case in cases.values()}):
        members = [name for name, case in cases.items() if case["protocol"] == protocol]
        known = [name not in cases[members[0]]["uncertain"] for name in names]
        if cases[members[0]]["complete"]:
            known = [True] * len(names)
        training = job.training(protocol, cases=members, labels=labels)
        images = images or images_of(job, training)
        trainer = training.run()
        stages.append(training.folder)
        probabilities = [
            (
                logits_of(trainer, image.data).softmax(0)[:-1]
                * torch.tensor(known)[:, None, None, None]
            ).numpy()
            for image in images
        ]
        total = (
            probabilities
            if not total
            else [a + b for a, b in zip(total, probabilities, strict=True)]
        )
        counts += known
    scores = {}
    for image, probability in zip(images, total, strict=True):
        mean = probability / np.maximum(counts, 1)[:, None, None, None]
        mean[0] = mean[0] if counts[0] else 0.5
        result = scores_of(mean.argmax(0), image.reference, names[1:])
        scores[image.name] = {"group": image.group, "scores": result}
    return scores, stages


def pseudo_labels(job: Job) -> tuple[dict[str, Any], list[Path]]:
    """The model of the complete cases fills the gaps of the others. Then plain nnU-Net."""
    teacher, images, folder = complete_only_model(job)
    final = filled_training(job, teacher)
    cases, stages = single(job, final, images)
    return cases, [folder, *stages]


def pseudo_rounds(job: Job) -> tuple[dict[str, Any], list[Path]]:
    """Two rounds of pseudo-labels. The last training leaves out the tenth of the partial cases
    whose answers change most between the rounds.
    """
    teacher, images, folder = complete_only_model(job)
    first = filled_training(job, teacher, "first")
    student = first.run()
    last = filled_training(job, student)
    agreement = {
        name: np.mean(labels[first.gaps[name]] == first.replaced[name][first.gaps[name]])
        for name, labels in last.replaced.items()
        if first.gaps[name].any()
    }
    unstable = sorted(agreement, key=agreement.__getitem__)[: len(agreement) // 10]
    last.cases = [name for name in last.replaced if name not in unstable]
    cases, stages = single(job, last, images)
    return cases, [folder, first.folder, *stages]


def complete_only_model(job: Job) -> tuple[Any, list[TestImage], Path]:
    """The trainer of the complete cases, which other methods of this seed share."""
    first = replace(job, method=COMPLETE_CASES)
    first.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(str(first.folder / "lock")):
        training = first.training()
        images = images_of(first, training)
        training.score = partial(summary, images=images, names=training.study.leaves)
        return training.run(), images, training.folder


def filled_training(job: Job, teacher: Any, stage: str = "main") -> Training:
    """A plain training in which a model has filled every gap, limited to what the gap may be."""
    names = ("background", *STUDIES[job.study].leaves)
    labels_by_name = {name: value for value, name in enumerate(names)}
    final = job.training(stage, labels=labels_by_name)
    dataset = final.trainer()
    dataset.initialize()
    replaced, gaps = {}, {}
    for name, case in read_json(job.home / "cases.json").items():
        if case["test"]:
            continue
        data, labels, _, _ = dataset.dataset_class(
            dataset.preprocessed_dataset_folder, [name]
        ).load_case(name)
        labels = np.array(labels[:])
        gaps[name] = labels == len(names)
        if gaps[name].any():
            logits = logits_of(teacher, torch.from_numpy(data[:]))
            allowed = torch.tensor([label in case["uncertain"] for label in names])
            answer = logits.masked_fill(~allowed[:, None, None, None], -torch.inf).argmax(0)
            labels[gaps[name]] = answer.numpy()[None][gaps[name]]
        replaced[name] = labels
    final.replaced, final.gaps = replaced, gaps
    return final


def completed(job: Job) -> tuple[dict[str, Any], list[Path]]:
    """Folds of the method complete the cases that they did not see; then it trains again."""
    preprocessed = job.home / "nnUNet_preprocessed" / Variant.LABEL_SETS
    raw = job.home / "nnUNet_raw" / Variant.LABEL_SETS
    contract = Contract.from_dataset_json(read_json(preprocessed / "dataset.json"))
    names = [path.name[:-7] for path in (raw / "labelsTr").glob("*.nii.gz")]
    splits = k_folds(subjects_of(contract, names), FOLDS)
    write_json(preprocessed / "splits_final.json", splits)  # the same in every run
    model = job.folder / "model"
    stages = []
    for fold, split in enumerate(splits):
        training = job.training(f"fold{fold}", fold=fold)
        trainer = training.run()
        stages.append(training.folder)
        write_probabilities(trainer, raw, split["val"], model / f"fold_{fold}" / "validation")
    shutil.copy(preprocessed / "nnUNetPlans.json", model / "plans.json")
    shutil.copy(preprocessed / "dataset.json", model)
    os.environ |= {name: str(job.folder / name) for name in ("nnUNet_raw", "nnUNet_preprocessed")}
    new = job.folder / "nnUNet_raw" / "Dataset804_Completed"
    again = job.folder / "nnUNet_preprocessed" / new.name
    if not (job.folder / "completed").is_file():
        shutil.rmtree(new, ignore_errors=True)  # of a run that was ended
        shutil.rmtree(again, ignore_errors=True)
        print("\n".join(write_completed(raw, new, again, model, splits, 0.9, 1)))
        shutil.copy(preprocessed / "dataset_fingerprint.json", again)
        preprocess([804], configurations=[STUDIES[job.study].configuration], num_processes=[1])
        (job.folder / "completed").touch()
    cases, last = single(job, job.training(preprocessed=again))
    return cases, [*stages, *last]


def write_probabilities(trainer: Any, raw: Path, cases: list[str], target: Path) -> None:
    """What nnU-Net's validation with `--npz` leaves: probabilities on the grid of the image."""
    target.mkdir(parents=True, exist_ok=True)
    preprocessor = trainer.configuration_manager.preprocessor_class(verbose=False)
    for name in cases:
        if (target / f"{name}.npz").is_file():
            continue
        paths = [str(path) for path in sorted((raw / "imagesTr").glob(f"{name}_*.nii.gz"))]
        data, _, properties = preprocessor.run_case(
            paths, None, trainer.plans_manager, trainer.configuration_manager, trainer.dataset_json
        )
        logits = logits_of(trainer, torch.as_tensor(np.asarray(data)))
        probabilities = trainer.label_manager.apply_inference_nonlin(logits)
        whole = trainer.label_manager.revert_cropping_on_probabilities(
            probabilities, properties["bbox_used_for_cropping"], properties["shape_before_cropping"]
        )
        np.savez_compressed(target / f"{name}.npz", probabilities=np.asarray(whole))
