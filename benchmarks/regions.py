"""Regions with missing details: whole tumour > core > enhancing, half of the cases with the outermost contour only.

    python -m benchmarks.regions -o results/

Three ways to train on the same images, each with nnU-Net's own commands, scored on complete volumes that none has seen:

- label-sets: the outermost contour says "in the whole tumour", and nothing about what lies inside;
- ignore: plain nnU-Net; what the contour encloses is ignored, for the whole tumour too, since nnU-Net knows one ignore;
- background: plain nnU-Net; what was not drawn is believed to be absent.

The scanner of the incomplete cases shows everything brighter. Label-sets are sampled by leaf; for the loss alone, set
`nnunet_labelset_sampling=uniform`. A second call goes on where the first one ended.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.accuracy.prepare import write
from benchmarks.accuracy.tables import collect, scores
from benchmarks.commands import Commands, difference, head, row, side_by_side
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.study.phantom.shapes import ellipsoid, smooth_noise

SHAPE = (40, 40, 40)
REGIONS = {"whole": [1, 2, 3], "core": [2, 3], "enhancing": [3]}
CONTRAST = {"complete": (0.0, 1.0, 2.0, 3.0), "contour": (0.0, 1.6, 2.6, 3.6)}
WAYS = {
    "label-sets": ("Dataset921_LabelSets", "nnUNetTrainerLeafDiceCE_unvalidated"),
    "ignore": ("Dataset922_Ignore", "nnUNetTrainer_unvalidated"),
    "background": ("Dataset923_Background", "nnUNetTrainer_unvalidated"),
}
TRAINING, TEST = range(24), range(1000, 1016)


def volume(seed: int, scanner: str) -> tuple[np.ndarray, np.ndarray]:
    """An image and its complete label map: three nested ellipsoids, not concentric, on a patchy background."""
    rng = np.random.default_rng(seed)
    grid = np.meshgrid(*map(np.arange, SHAPE), indexing="ij")
    labels = np.zeros(SHAPE, np.uint8)
    middle, radii = rng.uniform(15, 25, 3), rng.uniform(8, 13, 3)
    for value, shrink in ((1, 1.0), (2, 0.62), (3, 0.33)):
        labels[ellipsoid(*grid, middle + rng.uniform(-1, 1, 3) * (value - 1), radii * shrink)] = value
    image = np.array(CONTRAST[scanner], np.float32)[labels] + 0.25 * smooth_noise(rng, SHAPE, 5)
    return (image + rng.normal(0, 0.3, SHAPE)).astype(np.float32), labels


def write_raw(raw: Path, way: str) -> None:
    """The data set of a way; the test volumes are complete."""
    folder = raw / WAYS[way][0]
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


def cut_down(plans: Path) -> None:
    """A network that a CPU trains in minutes."""
    content = read_json(plans)
    configuration = content["configurations"]["3d_fullres"]
    configuration |= {"batch_size": 2, "patch_size": [32, 32, 32]}
    configuration["architecture"]["arch_kwargs"] |= {
        "n_stages": 3,
        "features_per_stage": [8, 16, 32],
        "kernel_sizes": [[3, 3, 3]] * 3,
        "strides": [[1, 1, 1], [2, 2, 2], [2, 2, 2]],
        "n_conv_per_stage": [2, 2, 2],
        "n_conv_per_stage_decoder": [2, 2],
    }
    write_json(plans, content)


class Study:
    """All runs in one folder, each done once."""

    def __init__(self, folder: Path, epochs: int) -> None:
        self.commands = Commands(folder, nnunet_labelset_epochs=str(epochs))
        self.epochs, self.runs = epochs, self.commands.folder / "runs" / f"{epochs}_epochs"

    def prepare(self, way: str) -> None:
        dataset = WAYS[way][0]
        folder = self.commands.preprocessed / dataset
        if (folder / "prepared").is_file():
            return
        write_raw(self.commands.raw, way)
        self.commands.run("nnUNetv2_plan_and_preprocess", "-d", dataset[7:10], "--no_pp", "-npfp", 1, "-np", 1)
        cut_down(folder / "nnUNetPlans.json")
        self.commands.run("nnUNetv2_preprocess", "-d", dataset[7:10], "-c", "3d_fullres", "-np", 1)
        (folder / "prepared").touch()

    def run(self, way: str, seed: int) -> None:
        """Train, predict, evaluate; `run.json` comes last."""
        target, test = self.runs / f"{way}, seed {seed}", self.commands.raw / WAYS["label-sets"][0]
        if (target / "run.json").is_file():
            return
        model = self.commands.train(*WAYS[way], target / "results", seed)
        self.commands.predict(model, test / "imagesTs", target)
        self.commands.run("nnunet_labelset", "evaluate", test / "labelsTs", target, "-np", 1, "--no_hd95")
        write_json(target / "run.json", {"method": way, "seed": seed, "steps": 50 * self.epochs})
        print(f"{way}, seed {seed}: done", flush=True)


def table(methods: dict) -> str:
    """Dice of every region and scanner, and what label-sets win or lose against each way, region by region."""
    cases, names, lines = sorted(next(iter(methods["label-sets"].values()))), list(REGIONS), []
    found = {way: 100 * scores(methods[way], "dice", cases, names) for way in WAYS if way in methods}  # (S, cases, R)
    for scanner in ("", *CONTRAST):
        rows = [i for i, case in enumerate(cases) if case.startswith(scanner)]
        lines += head(f"scanner of the {scanner} cases" if scanner else "all test cases", "seeds", *names)
        for way, values in found.items():
            lines.append(row(way, len(values), *(f"{values[:, rows, i].mean():.1f}" for i in range(len(names)))))
        for way in list(found)[1:]:
            pairs = [(found["label-sets"][:, rows, i], found[way][:, rows, i]) for i in range(len(names))]
            seeds = min(len(found[way]), len(found["label-sets"]))
            lines.append(row(f"label-sets minus {way} [95 %]", seeds, *(difference(*pair) for pair in pairs)))
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", type=Path, required=True, metavar="FOLDER", help="keep everything here")
    parser.add_argument("--epochs", type=int, default=6, help="of 50 steps; default: %(default)s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--together", type=int, default=2, help="trainings side by side; default: %(default)s")
    args = parser.parse_args()
    study = Study(args.o, args.epochs)
    for way in WAYS:
        study.prepare(way)
    side_by_side(args.together, [partial(study.run, way, seed) for seed in args.seeds for way in WAYS])
    found = collect(args.o / "runs")
    write_json(args.o / "results.json", found)
    (args.o / "results.md").write_text("\n".join(f"## {steps} steps\n\n{table(found[steps])}" for steps in found))
    print((args.o / "results.md").read_text())


if __name__ == "__main__":
    main()
