"""Regions with missing details: whole tumour > core > enhancing, half of the cases with the
outermost contour only.

    python -m benchmarks.regions -o results/

Three ways to train on the same images, with the same network and steps, scored on complete volumes
that none has seen:

- label-sets: the outermost contour says "in the whole tumour", and nothing about what lies inside;
- ignore: plain nnU-Net; what the contour encloses is ignored, for the whole tumour too, since
  nnU-Net knows one ignore;
- background: plain nnU-Net; what was not drawn is believed to be absent.

The scanner of the incomplete cases shows everything brighter. Label-sets are sampled by leaf; for
the loss alone, set `nnunet_labelset_sampling=uniform`. A second call goes on where the first one
ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from benchmarks.accuracy.methods import METHODS
from benchmarks.accuracy.prepare import CONFIGURATION, Variant, set_environment, write
from benchmarks.accuracy.scoring import predict
from benchmarks.accuracy.studies import Study
from benchmarks.accuracy.tables import difference, head, row
from benchmarks.accuracy.training import REGIMES, Training
from benchmarks.evaluated import collect, scores
from nnunet_labelset.cli import main as nnunet_labelset
from nnunet_labelset.io.files import write_json
from nnunet_labelset.nnunet.plans import cut_down
from nnunet_labelset.study.phantom.shapes import ellipsoid, smooth_noise

SHAPE = (32, 32, 32)
REGIONS = {"whole": [1, 2, 3], "core": [2, 3], "enhancing": [3]}
CONTRAST = {"complete": (0.0, 1.0, 2.0, 3.0), "contour": (0.0, 1.6, 2.6, 3.6)}
# Dice + CE by label-sets, and nnU-Net's own trainer twice, each on the data set of its way
WAYS = {"label-sets": "leaf_ce", "ignore": "ignore", "background": "ignore"}
DATASET = Variant.LABEL_SETS
STUDY = Study((), lambda _: iter(()), (24, 24, 24), (8, 16, 32), (2,), "T2", 1.0)
TRAINING, TEST = range(24), range(1000, 1016)


def volume(seed: int, scanner: str) -> tuple[np.ndarray, np.ndarray]:
    """An image and its complete label map: three nested ellipsoids, not concentric, on a patchy
    background.
    """
    rng = np.random.default_rng(seed)
    grid = np.meshgrid(*map(np.arange, SHAPE), indexing="ij")
    labels = np.zeros(SHAPE, np.uint8)
    middle, radii = rng.uniform(12, 20, 3), rng.uniform(6.5, 10.5, 3)
    for value, shrink in ((1, 1.0), (2, 0.62), (3, 0.33)):
        labels[ellipsoid(*grid, middle + rng.uniform(-1, 1, 3) * (value - 1), radii * shrink)] = (
            value
        )
    image = np.array(CONTRAST[scanner], np.float32)[labels] + 0.25 * smooth_noise(rng, SHAPE, 5)
    return (image + rng.normal(0, 0.3, SHAPE)).astype(np.float32), labels


def write_raw(folder: Path, way: str) -> None:
    """The data set of a way; the test volumes are complete."""
    names = {}
    for seed in (*TRAINING, *TEST):
        scanner, part = list(CONTRAST)[seed % 2], "Ts" if seed in TEST else "Tr"
        image, labels = volume(seed, scanner)
        name = f"{scanner}_{seed:04d}"
        names[name] = scanner if seed in TRAINING else "complete"
        if names[name] == "contour":
            labels = np.where(labels > 0, 4 if way == "ignore" else 1, 0).astype(np.uint8)
        write(folder / f"images{part}" / f"{name}_0000.nii.gz", image, (1, 1, 1))
        write(folder / f"labels{part}" / f"{name}.nii.gz", labels, (1, 1, 1))
    block = {
        "version": 2,
        "leaves": {"background": 0, "edema": 1, "necrosis": 2, "enhancing": 3},
        "protocols": {"complete": {}, "contour": {"edema": ["edema", "necrosis", "enhancing"]}},
        "cases": names,
    }
    dataset = {
        "channel_names": {"0": "T2"},
        "labels": {"background": 0, **REGIONS, **({"ignore": 4} if way == "ignore" else {})},
        "regions_class_order": [1, 2, 3],
        "numTraining": len(TRAINING),
        "file_ending": ".nii.gz",
        **({"label_sets": block} if way == "label-sets" else {}),
    }
    write_json(folder / "dataset.json", dataset)


def prepare(folder: Path, way: str) -> None:
    """The data set of a way in a folder of its own, with a network that a CPU trains in a
    minute.
    """
    if (folder / "prepared").is_file():
        return
    from nnunetv2.experiment_planning.plan_and_preprocess_api import (
        extract_fingerprints,
        plan_experiments,
        preprocess,
    )

    set_environment(folder)
    write_raw(folder / "nnUNet_raw" / DATASET, way)
    extract_fingerprints([801], num_processes=1, check_dataset_integrity=True)
    plan_experiments([801])
    plans = folder / "nnUNet_preprocessed" / DATASET / "nnUNetPlans.json"
    cut_down(plans, CONFIGURATION, STUDY.patch, STUDY.features)
    preprocess([801], configurations=[CONFIGURATION], num_processes=[1])
    (folder / "prepared").touch()


def train_and_score(folder: Path, way: str, seed: int, steps: int) -> None:
    """One run, once: `run.json` comes last."""
    target = folder / way / "runs" / f"{steps}_steps" / f"seed {seed}"
    if (target / "run.json").is_file():
        return
    set_environment(folder / way)
    os.environ |= {"nnUNet_n_proc_DA": "0", "nnUNet_results": str(target / "results")}
    preprocessed = folder / way / "nnUNet_preprocessed" / DATASET
    method = METHODS[WAYS[way]]
    training = Training(STUDY, preprocessed, method, target, seed, steps, REGIMES["adamw"])
    images = folder / way / "nnUNet_raw" / DATASET / "imagesTs"
    predict(training.run(), sorted(images.glob("*_0000.nii.gz")), target)
    write_json(target / "run.json", {"method": WAYS[way], "seed": seed, "steps": steps})
    print(f"{way}, seed {seed}: done", flush=True)


def score(folder: Path) -> dict[str, dict[str, Any]]:
    """`{steps: {way: {seed: {case: scores}}}}` of all runs; all test cases are complete."""
    raw = folder / "label-sets" / "nnUNet_raw" / DATASET
    found: dict[str, dict[str, Any]] = {}
    for way in WAYS:
        for mark in sorted((folder / way).glob("runs/*/*/run.json")):
            if not (mark.parent / "evaluation" / "metrics.json").is_file():
                options = ["-djfile", str(raw / "dataset.json"), "-np", "1", "--no-surfaces"]
                nnunet_labelset(["evaluate", str(raw / "labelsTs"), str(mark.parent), *options])
        for steps, methods in collect(folder / way / "runs").items():
            found.setdefault(steps, {})[way] = methods[WAYS[way]]
    return found


def table(methods: dict) -> str:
    """Dice of every region and scanner, and what label-sets win or lose against each way, region by
    region.
    """
    cases, names, lines = sorted(next(iter(methods["label-sets"].values()))), list(REGIONS), []
    found = {
        way: 100 * scores(methods[way], "dice", cases, names) for way in WAYS if way in methods
    }  # (S, cases, R)
    for scanner in ("", *CONTRAST):
        rows = [i for i, case in enumerate(cases) if case.startswith(scanner)]
        lines += head(
            f"scanner of the {scanner} cases" if scanner else "all test cases", "seeds", *names
        )
        for way, values in found.items():
            lines.append(
                row(
                    way,
                    len(values),
                    *(f"{values[:, rows, i].mean():.1f}" for i in range(len(names))),
                )
            )
        for way in list(found)[1:]:
            pairs = [
                (found["label-sets"][:, rows, i], found[way][:, rows, i]) for i in range(len(names))
            ]
            seeds = min(len(found[way]), len(found["label-sets"]))
            lines.append(
                row(f"label-sets minus {way} [95 %]", seeds, *(difference(*pair) for pair in pairs))
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-o", type=Path, required=True, metavar="FOLDER", help="keep everything here"
    )
    parser.add_argument("--steps", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--together", type=int, default=2, help="trainings side by side; default: %(default)s"
    )
    args = parser.parse_args()
    folder = args.o.resolve()
    for way in WAYS:
        prepare(folder / way, way)
    runs = [(folder, way, seed, args.steps) for seed in args.seeds for way in WAYS]
    with multiprocessing.get_context("fork").Pool(args.together, maxtasksperchild=1) as pool:
        pool.starmap(train_and_score, runs, chunksize=1)
    found = score(folder)
    write_json(args.o / "results.json", found)
    (args.o / "results.md").write_text(
        "\n".join(f"## {steps} steps\n\n{table(found[steps])}" for steps in found)
    )
    print((args.o / "results.md").read_text())


if __name__ == "__main__":
    main()
