"""Seven models of one organ each become one network: does it reach the union of the seven?

    python -m benchmarks.many_models --data openkbp/ -o results/

Each teacher is a plain nnU-Net of one organ of OpenKBP, trained on the cases that show the organ.
The seven predict all training images; what they say together (`statements.py`) is all that the one
network (`nnUNetTrainerLabelSet`) sees: no contour. The test cases are those that show all organs.
The union takes the organ with the highest probability above one half. A second call goes on where
the first one ended.
"""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.accuracy.methods import METHODS
from benchmarks.accuracy.prepare import Variant, prepare, set_environment
from benchmarks.accuracy.scoring import TestImage, average, logits_of, scores_of, test_images
from benchmarks.accuracy.studies import STUDIES
from benchmarks.accuracy.training import CURVE, REGIMES, Training
from nnunet_labelset.contract import Contract, Protocol
from nnunet_labelset.dataset_conversion.statements import Answer, Taught, taught_values
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.training import checks

STUDY = "openkbp_2d"
TEACHER = replace(METHODS["background"], variant=Variant.LABEL_SETS)
STUDENT = METHODS["ours"]
NOTHING = "not annotated"


class Experiment:
    """The trainings of one seed; `folder` keeps their checkpoints."""

    def __init__(
        self,
        home: Path,
        seed: int,
        regime: str,
        steps: tuple[int, int],
        images: int | None,
        organs: int | None,
    ) -> None:
        self.organs = STUDIES[STUDY].leaves[:organs]
        self.study = replace(STUDIES[STUDY], leaves=self.organs)
        self.preprocessed = home / "nnUNet_preprocessed" / Variant.LABEL_SETS
        self.raw = home / "nnUNet_raw" / Variant.LABEL_SETS
        self.folder = home / "runs" / f"{regime}_{steps[0]}_seed{seed}"
        self.student = f"one_{steps[1]}_{images}_{len(self.organs)}"
        self.seed = seed
        self.regime = regime
        self.teacher_steps, self.student_steps = steps
        self.cases = read_json(home / "cases.json")
        self.training_cases = [name for name, case in self.cases.items() if not case["test"]]
        self.taught_cases = self.training_cases[:images]

    def run(self) -> dict[str, Any]:
        """Return the scores of the union and of the one network."""
        reader = self._training("reader", STUDENT, self.student_steps).trainer()
        reader.initialize()
        images = test_images(reader, self.raw, self.cases)
        data = {name: self._load(reader, name) for name in self.training_cases}
        probabilities, answers = self._teach(images, data)
        union = {
            image.name: self._scored(image, predicted_union(probabilities[image.name]))
            for image in images
        }
        student = self._learn(answers, data)
        one = {
            image.name: self._scored(image, logits_of(student, image.data).argmax(0).numpy())
            for image in images
        }
        return {
            "study": STUDY,
            "seed": self.seed,
            "regime": self.regime,
            "organs": list(self.organs),
            "images": len(self.taught_cases),
            "steps": {"each teacher": self.teacher_steps, "the one": self.student_steps},
            "cpu_seconds": self._seconds(),
            "union": {**average(union, self.organs), "cases": union},
            "one": {**average(one, self.organs), "cases": one},
        }

    def _training(self, name: str, method: Any, steps: int, **options: Any) -> Training:
        preprocessed = options.pop("preprocessed", self.preprocessed)
        regime = REGIMES[self.regime]
        place = self.folder / name
        return Training(
            self.study, preprocessed, method, place, self.seed, steps, regime, **options
        )

    @staticmethod
    def _load(trainer: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
        dataset = trainer.dataset_class(trainer.preprocessed_dataset_folder, [name])
        data, labels, _, _ = dataset.load_case(name)
        return data[:], np.array(labels[:])

    def _teach(
        self, images: list[TestImage], data: dict[str, Any]
    ) -> tuple[dict[str, list[np.ndarray]], dict[str, list[Answer]]]:
        """Return probabilities of the test cases and answers for the training cases, by organ."""
        probabilities: dict[str, list[np.ndarray]] = {image.name: [] for image in images}
        answers: dict[str, list[Answer]] = {name: [] for name in self.taught_cases}
        for value, organ in enumerate(self.organs, 1):
            drawn = [name for name in data if organ not in self.cases[name]["uncertain"]]
            masks = {name: binary(data[name][1], value) for name in drawn}
            training = self._training(
                organ,
                TEACHER,
                self.teacher_steps,
                cases=drawn,
                labels={"background": 0, organ: 1},
                replaced=masks,
            )
            trainer = training.run()
            for image in images:
                probabilities[image.name].append(foreground(trainer, image.data))
            for name in self.taught_cases:
                seen = foreground(trainer, torch.from_numpy(data[name][0])) > 0.5
                answers[name].append(Answer(seen * value, frozenset([value])))
            print(f"{organ}: taught by {len(drawn)} cases", flush=True)
        return probabilities, answers

    def _learn(self, answers: dict[str, list[Answer]], data: dict[str, Any]) -> Any:
        """Return the trainer of the network that learns from the answers alone."""
        num_leaves = len(self.organs) + 1
        nothing = replace(Protocol.complete(num_leaves, has_ignore=True), states_ignore=True)
        labels = {}
        taught: dict[str, Taught] = {}
        for name, case_answers in answers.items():
            values = np.full(data[name][1].shape[1:], num_leaves)
            result, _, taught[name] = taught_values(values, case_answers, nothing)
            labels[name] = result.astype(np.int16)[None]
        folder = self.folder / f"dataset of {self.student}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.preprocessed / "nnUNetPlans.json", folder)
        dataset = read_json(self.preprocessed / "dataset.json")
        protocols = {name: result.protocol.with_ignore() for name, result in taught.items()}
        cases = dict.fromkeys(self.training_cases, NOTHING)  # those that nobody teaches on
        contract = Contract(
            leaf_names=("background", *self.organs),
            protocols={NOTHING: nothing, **protocols},
            cases={**cases, **{name: name for name in taught}},
            has_ignore=True,
        )
        write_json(folder / "dataset.json", {**dataset, **contract.to_dataset_json()})
        open_voxels = sum(result.open_before - result.completed for result in taught.values())
        total = sum(result.open_before for result in taught.values())
        print(f"{open_voxels / total:.2%} of the voxels stay a label-set", flush=True)
        training = self._training(
            self.student,
            STUDENT,
            self.student_steps,
            cases=self.taught_cases,
            preprocessed=folder,
            replaced=labels,
        )
        with mock.patch.object(checks, "check_cases"):  # it would read the files, not `replaced`
            return training.run()

    def _scored(self, image: TestImage, predicted: np.ndarray) -> dict[str, Any]:
        # Test cases show every organ: those of no model are background.
        reference = np.where(image.reference > len(self.organs), 0, image.reference)
        return {"group": image.group, "scores": scores_of(predicted, reference, self.organs)}

    def _seconds(self) -> dict[str, float]:
        curves = self.folder.glob(f"*/{CURVE}")
        return {path.parent.name: read_json(path)["cpu_seconds"] for path in sorted(curves)}


def binary(labels: np.ndarray, value: int) -> np.ndarray:
    """Return a label map of one organ; -1 stays what nnU-Net's crop shows outside."""
    return np.where(labels < 0, labels, labels == value).astype(labels.dtype)


def foreground(trainer: Any, data: torch.Tensor) -> np.ndarray:
    return logits_of(trainer, data).softmax(0)[1].numpy()


def predicted_union(probabilities: list[np.ndarray]) -> np.ndarray:
    stacked = np.stack(probabilities)
    return np.where(stacked.max(0) > 0.5, stacked.argmax(0) + 1, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of OpenKBP")
    parser.add_argument("-o", type=Path, required=True, help="folder for runs and results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--regime", choices=REGIMES, default="sgd")
    parser.add_argument("--teacher-steps", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--images", type=int, help="the models teach on so many (default: all)")
    parser.add_argument("--organs", type=int, help="the first so many (default: all seven)")
    args = parser.parse_args()
    home = args.o.resolve() / STUDY
    set_environment(home)
    prepare(STUDIES[STUDY], args.data, home)
    os.environ |= {"nnUNet_n_proc_DA": "0", "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    for seed in args.seeds:
        steps = (args.teacher_steps, args.steps)
        experiment = Experiment(home, seed, args.regime, steps, args.images, args.organs)
        os.environ["nnUNet_results"] = str(experiment.folder / "nnUNet_results")
        result = experiment.run()
        name = f"{experiment.folder.name}_{experiment.student}"
        write_json(args.o / f"many_models_{name}.json", result)
        difference = result["one"]["dice"] - result["union"]["dice"]
        print(f"{name}: union {result['union']['dice']}, one {result['one']['dice']}", end=" ")
        print(f"({difference:+.2f})")


if __name__ == "__main__":
    main()
