"""How many planted faults does `nnunet_labelset audit` find, and what do the corrections restore?

    python -m benchmarks.audit --data FOLDER -o runs/ --studies hippocampus openkbp --seeds 0 1

`FOLDER` holds `hippocampus` and `openkbp`. Five faults of every kind are planted in the training
cases of each study, one per case. Five folds of a small 2D network are trained on the faulty data;
their validation is what `audit` reads. Then a network is trained on the clean, on the faulty and on
the corrected data, and scored on test cases without faults. In the corrected data, whoever looks at
the listed rows has decided rightly: rows about a planted fault are corrected, others are "fine".

A second call goes on where the first one ended; `-o/results.json` holds all numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import numpy as np

from benchmarks.accuracy.methods import METHODS
from benchmarks.accuracy.prepare import set_environment, write
from benchmarks.accuracy.recipes import scored, write_probabilities
from benchmarks.accuracy.scoring import average, test_images
from benchmarks.accuracy.studies import STUDIES, Case, Study
from benchmarks.accuracy.training import REGIMES, Training
from nnunet_labelset.audit.findings import Finding, Reason, find
from nnunet_labelset.audit.predictions import find_predictions, gather_all
from nnunet_labelset.cli import main as main_of_package
from nnunet_labelset.contract import Contract
from nnunet_labelset.datasets.folds import k_folds, subjects_of
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.io.volume import read_voxels
from nnunet_labelset.nnunet.plans import cut_down
from nnunet_labelset.nnunet.raw import read_dataset
from nnunet_labelset.nnunet.recommendation import sided_pairs

FOLDS = 5
OF_EACH_KIND = 5
MODEL = "nnUNetTrainerLabelSet__nnUNetPlans__2d"
CLEAN, FAULTY, CORRECTED = "Dataset841_Clean", "Dataset842_Faulty", "Dataset843_Corrected"
SIDES = {"openkbp": ("LeftParotid", "RightParotid")}
SHIFT = {"openkbp": 15.0, "hippocampus": 5.0}  # mm
TEST_CASES = {"hippocampus": 40}  # those of openkbp are half of its complete cases


class Kind(StrEnum):
    FORGOTTEN = "forgotten"
    LABELS = "swapped labels"
    SIDES = "swapped sides"
    SHIFTED = "shifted contour"
    IMAGE = "wrong image"


@dataclass(frozen=True)
class Fault:
    case: str
    kind: Kind
    labels: tuple[str, ...]


def clean_cases(name: str, data: Path) -> list[Case]:
    """The cases as drawn; a voxel that nobody drew is 0, and what it may be is declared."""
    study = STUDIES[f"{name}_2d"]
    gap = len(study.leaves) + 1
    cases = list(study.cases(data / name))
    if name == "hippocampus":
        return [
            replace(
                case,
                labels=case.truth,
                uncertain=(),
                is_test=number >= len(cases) - TEST_CASES[name],
            )
            for number, case in enumerate(cases)
        ]
    return [replace(case, labels=np.where(case.labels == gap, 0, case.labels)) for case in cases]


class Planter:
    """Plants faults, at most one in a case."""

    def __init__(self, name: str, study: Study, cases: Sequence[Case], seed: int) -> None:
        self.name = name
        self.names = study.leaves
        self.rng = np.random.default_rng(seed)
        self.cases = {case.name: case for case in cases if not case.is_test}
        self.order = self.rng.permutation(list(self.cases)).tolist()
        self.faults: list[Fault] = []

    def plant(self) -> dict[str, Case]:
        """Return the training cases with faults."""
        ways = {
            Kind.SIDES: self._swapped_sides,  # first: few cases have both sides
            Kind.IMAGE: self._wrong_image,
            Kind.LABELS: self._swapped_labels,
            Kind.FORGOTTEN: self._forgotten,
            Kind.SHIFTED: self._shifted,
        }
        faulty = dict(self.cases)
        for kind, way in ways.items():
            for _ in range(OF_EACH_KIND):
                case, labels, concerned = next(filter(None, map(way, list(self.order))))
                self.order.remove(case.name)
                faulty[case.name] = replace(case, labels=labels.astype(np.uint8))
                self.faults.append(Fault(case.name, kind, concerned))
        return faulty

    def _drawn(self, case: Case) -> list[str]:
        return [name for value, name in enumerate(self.names, 1) if (case.labels == value).any()]

    def _exchanged(self, case: Case, first: str, second: str) -> np.ndarray:
        table = np.arange(len(self.names) + 1)
        a, b = self.names.index(first) + 1, self.names.index(second) + 1
        table[[a, b]] = b, a
        return table[case.labels]

    def _forgotten(self, name: str) -> Any:
        case = self.cases[name]
        label = str(self.rng.choice(self._drawn(case)))
        labels = np.where(case.labels == self.names.index(label) + 1, 0, case.labels)
        return case, labels, (label,)

    def _swapped_labels(self, name: str) -> Any:
        case = self.cases[name]
        sides = SIDES.get(self.name, ())
        drawn = [label for label in self._drawn(case) if label not in sides]
        if len(drawn) < 2:
            return None
        pair = self.rng.choice(drawn, 2, replace=False).tolist()
        return case, self._exchanged(case, *pair), tuple(pair)

    def _swapped_sides(self, name: str) -> Any:
        """Exchanged names of a pair; without a pair, a label map that is mirrored left to right."""
        case = self.cases[name]
        pair = SIDES.get(self.name)
        if pair is None:
            return case, case.labels[..., ::-1], tuple(self._drawn(case))
        if not set(pair) <= set(self._drawn(case)):
            return None
        return case, self._exchanged(case, *pair), pair

    def _shifted(self, name: str) -> Any:
        """One label moves inside of its slices; it covers what was background."""
        case = self.cases[name]
        label = str(self.rng.choice(self._drawn(case)))
        value = self.names.index(label) + 1
        axis = int(self.rng.integers(1, 3))
        steps = round(SHIFT[self.name] / case.spacing[axis]) * int(self.rng.choice([-1, 1]))
        moved = np.roll(case.labels == value, steps, axis)
        labels = np.where(case.labels == value, 0, case.labels)
        return case, np.where(moved & (labels == 0), value, labels), (label,)

    def _wrong_image(self, name: str) -> Any:
        case = self.cases[name]
        alike = [
            other
            for other in self.cases.values()
            if other.uncertain == case.uncertain and other.name != name
        ]
        if not alike:
            return None
        donor = alike[int(self.rng.integers(len(alike)))]
        return case, fitted(donor.labels, case.labels.shape), tuple(self._drawn(case))


def fitted(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array padded or cropped around its middle."""
    for axis, size in enumerate(shape):
        missing = size - array.shape[axis]
        padding = [(0, 0)] * array.ndim
        padding[axis] = (max(0, missing) // 2, max(0, missing) - max(0, missing) // 2)
        array = np.pad(array, padding)
        start = max(0, -missing) // 2
        array = array.take(range(start, start + size), axis)
    return array


def write_raw(folder: Path, study: Study, cases: Sequence[Case]) -> None:
    for case in cases:
        part = "Ts" if case.is_test else "Tr"
        write(folder / f"images{part}" / f"{case.name}_0000.nii.gz", case.image, case.spacing)
        write(folder / f"labels{part}" / f"{case.name}.nii.gz", case.labels, case.spacing)
    protocols = {case.protocol: {} for case in cases}
    for case in cases:
        if case.uncertain:
            protocols[case.protocol] = {"background": list(case.uncertain)}
    labels = {name: value for value, name in enumerate(("background", *study.leaves))}
    content = {
        "channel_names": {"0": study.channel},
        "labels": labels,
        "numTraining": sum(not case.is_test for case in cases),
        "file_ending": ".nii.gz",
        "label_sets": {
            "version": 1,
            "protocols": protocols,
            "cases": {case.name: case.protocol for case in cases},
        },
    }
    write_json(folder / "dataset.json", content)


@dataclass(frozen=True)
class Run:
    """A study with its planted faults in a folder of its own."""

    name: str
    seed: int
    steps: int
    home: Path
    training_seeds: tuple[int, ...]

    @property
    def study(self) -> Study:
        return STUDIES[f"{self.name}_2d"]

    @property
    def raw(self) -> Path:
        return self.home / "nnUNet_raw"

    @property
    def preprocessed(self) -> Path:
        return self.home / "nnUNet_preprocessed"

    @property
    def model(self) -> Path:
        return self.home / "nnUNet_results" / FAULTY / MODEL

    def prepare(self, data: Path) -> None:
        done = self.home / "faults.json"
        if done.is_file():
            return
        from nnunetv2.experiment_planning.plan_and_preprocess_api import (
            extract_fingerprints,
            plan_experiments,
            preprocess,
        )

        cases = clean_cases(self.name, data)
        planter = Planter(self.name, self.study, cases, self.seed)
        faulty = planter.plant()
        sets = {CLEAN: cases, FAULTY: [faulty.get(case.name, case) for case in cases]}
        for dataset, members in sets.items():
            number = int(dataset[7:10])
            write_raw(self.raw / dataset, self.study, members)
            extract_fingerprints([number], num_processes=1, check_dataset_integrity=False)
            plan_experiments([number])
            plans = self.preprocessed / dataset / "nnUNetPlans.json"
            cut_down(plans, "2d", self.study.patch, self.study.features, self.study.batch)
            preprocess([number], configurations=["2d"], num_processes=[1])
        contract = Contract.from_dataset_json(read_json(self.raw / FAULTY / "dataset.json"))
        subjects = subjects_of(contract, list(planter.cases))
        splits = k_folds(subjects, FOLDS, self.seed)
        write_json(self.preprocessed / FAULTY / "splits_final.json", splits)
        write_json(done, [asdict(fault) for fault in planter.faults])

    def training(self, dataset: str, fold: int | str, folder: Path, seed: int) -> Training:
        return Training(
            study=self.study,
            preprocessed=self.preprocessed / dataset,
            method=METHODS["ours"],
            folder=folder,
            seed=seed,
            steps=self.steps,
            regime=REGIMES["adamw"],
            fold=fold,
        )

    def cross_validate(self) -> None:
        """Write what `nnUNetv2_train --npz` leaves in every fold."""
        splits = read_json(self.preprocessed / FAULTY / "splits_final.json", list)
        for fold, split in enumerate(splits):
            target = self.model / f"fold_{fold}" / "validation"
            if all((target / f"{case}.nii.gz").is_file() for case in split["val"]):
                continue
            trainer = self.training(FAULTY, fold, self.home / f"fold_{fold}", self.seed).run()
            write_probabilities(trainer, self.raw / FAULTY, split["val"], target)
            for case in split["val"]:
                with np.load(target / f"{case}.npz") as content:
                    segmentation = content["probabilities"].argmax(0).astype(np.uint8)
                spacing = spacing_of(self.raw / FAULTY / "labelsTr" / f"{case}.nii.gz")
                write(target / f"{case}.nii.gz", segmentation, spacing)
            print(f"{self.home.name}: fold {fold} done", flush=True)
        for file in ("dataset.json", "nnUNetPlans.json"):
            name = file.replace("nnUNetPlans", "plans")
            shutil.copy(self.preprocessed / FAULTY / file, self.model / name)

    def dice(self, dataset: str, seed: int) -> dict[str, Any]:
        """Return the Dice of a network of all training cases, on the clean test cases."""
        done = self.home / f"dice_{dataset}_{seed}.json"
        if not done.is_file():
            training = self.training(dataset, "all", self.home / f"{dataset}_{seed}", seed)
            trainer = training.run()
            cases = read_json(self.raw / CLEAN / "dataset.json")["label_sets"]["cases"]
            tests = {path.name[:-7] for path in (self.raw / CLEAN / "labelsTs").iterdir()}
            told = {case: {"test": case in tests, "group": "all"} for case in cases}
            images = test_images(trainer, self.raw / CLEAN, told)
            scores = scored(trainer, images, self.study.leaves)
            write_json(done, {**average(scores, self.study.leaves), "cases": scores})
            print(f"{self.home.name}: {dataset}, seed {seed} done", flush=True)
        return read_json(done)

    def findings(self) -> list[Finding]:
        """Return what `audit` lists."""
        folder = self.raw / FAULTY
        dataset_json, contract = read_dataset(folder)
        splits = read_json(self.preprocessed / FAULTY / "splits_final.json", list)
        predictions = find_predictions(folder, dataset_json, contract, self.model, splits)
        names = contract.leaf_names
        pairs = [(names.index(left), names.index(right)) for left, right in sided_pairs(names)]
        findings = find(gather_all(predictions.cases, self.model, 1), pairs)
        return [finding for finding in findings if finding.reason is not Reason.GAP]

    def correct(self, findings: Sequence[Finding]) -> None:
        """Write the corrected data set: what a page would save, given to `annotate`."""
        done = self.home / "corrected"
        if done.is_file():
            return
        for folder in (self.raw, self.preprocessed):
            shutil.rmtree(folder / CORRECTED, ignore_errors=True)
            shutil.copytree(folder / FAULTY, folder / CORRECTED)
        _, contract = read_dataset(self.raw / FAULTY)
        changed: dict[str, set[int]] = {}
        for finding in findings:
            changed.setdefault(finding.case, set()).update(finding.labels)
        lines = ["case,annotated,wrong"]
        for case, labels in changed.items():
            path = self.raw / FAULTY / "labelsTr" / f"{case}.nii.gz"
            drawn = set(np.unique(read_voxels(path).array).tolist())
            annotated = contract.protocol(case).annotated - {0} - labels
            cells = (annotated, labels & drawn)
            lists = [";".join(contract.leaf_names[leaf] for leaf in sorted(c)) for c in cells]
            lines.append(",".join([case, *lists]))
        table = self.home / "decided.csv"
        table.write_text("\n".join(lines) + "\n")
        arguments = ["-d", CORRECTED, "--annotated", str(table), "--add", "-np", "1"]
        if main_of_package(["annotate", *arguments]):
            raise SystemExit(f"{table}: annotate failed")
        done.touch()

    def result(self) -> dict[str, Any]:
        """Return the ranked list with hits, recall and precision, and the Dice of three networks."""
        faults = {fault["case"]: fault for fault in read_json(self.home / "faults.json", list)}
        findings = self.findings()
        names = ("background", *self.study.leaves)
        rows = []
        for finding in findings:
            labels = [names[label] for label in finding.labels]
            fault = faults.get(finding.case)
            is_hit = fault is not None and bool(set(labels) & set(fault["labels"]))
            rows.append(
                {
                    "case": finding.case,
                    "labels": labels,
                    "reason": finding.reason.value,
                    "doubt": round(finding.doubt, 2),
                    "hit": is_hit,
                    "planted": fault["kind"] if fault else None,
                }
            )
        self.correct([each for each, row in zip(findings, rows, strict=True) if row["hit"]])
        hits = {row["case"] for row in rows if row["hit"]}
        kinds = {}
        for kind in Kind:
            cases = [case for case, fault in faults.items() if fault["kind"] == kind]
            kinds[kind.value] = [sum(case in hits for case in cases), len(cases)]
        return {
            "study": self.name,
            "seed": self.seed,
            "steps": self.steps,
            "faults": len(faults),
            "found": len(hits),
            "rows": len(rows),
            "true_rows": sum(row["hit"] for row in rows),
            "kinds": kinds,
            "missed": [faults[case] for case in sorted(set(faults) - hits)],
            "list": rows,
            "dice": {name: self._dice_by_seed(name) for name in (CLEAN, FAULTY, CORRECTED)},
        }

    def _dice_by_seed(self, dataset: str) -> list[float]:
        """Return the Dice of one network per seed: their spread is the noise of a training."""
        return [self.dice(dataset, seed)["dice"] for seed in self.training_seeds]


def spacing_of(path: Path) -> tuple[float, ...]:
    import SimpleITK as sitk  # noqa: N813

    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    return reader.GetSpacing()[::-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of both data sets")
    parser.add_argument("-o", type=Path, required=True, metavar="FOLDER", help="keep the runs here")
    parser.add_argument("--studies", nargs="+", default=["hippocampus", "openkbp"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--training-seeds",
        type=int,
        nargs="+",
        default=[0],
        help="networks that are scored on each data set (default: one of seed 0)",
    )
    parser.add_argument("--steps", type=int, default=1500, help="default: %(default)s")
    args = parser.parse_args()
    # A process each: nnU-Net reads its folders once, when it is imported.
    context = multiprocessing.get_context("spawn")
    for seed in args.seeds:
        for name in args.studies:
            home = (args.o / f"{name}_{seed}").resolve()
            set_environment(home)
            run = Run(name, seed, args.steps, home, tuple(args.training_seeds))
            process = context.Process(target=work, args=(run, args.data))
            process.start()
            process.join()
            print(f"{home.name}: {'FAILED' if process.exitcode else 'done'}", flush=True)
            results = [read_json(path) for path in sorted(args.o.glob("*/result.json"))]
            write_json(args.o / "results.json", results)


def work(run: Run, data: Path) -> None:
    with (run.home / "log.txt").open("a") as log, contextlib.redirect_stdout(log):
        run.prepare(data)
        os.environ["nnUNet_n_proc_DA"] = "0"  # else a seed would not count
        run.cross_validate()
        write_json(run.home / "result.json", run.result())


if __name__ == "__main__":
    main()
