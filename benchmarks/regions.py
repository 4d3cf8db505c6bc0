"""Regions with missing details: whole tumour > core > enhancing, half of the cases with the outermost contour only.

    python benchmarks/regions.py --folder /tmp/regions --epochs 10 --seeds 3

Three ways to train on the same images, each with nnU-Net's own commands, scored on complete volumes that none has seen:

- label-sets: the outermost contour says "in the whole tumour", and nothing about what lies inside;
- ignore: plain nnU-Net; what the contour encloses is ignored, for the whole tumour too, since nnU-Net knows one ignore;
- background: plain nnU-Net; what was not drawn is believed to be absent.

The scanner of the incomplete cases shows everything brighter. Label-sets are sampled by leaf; for the loss alone, set
`nnunet_labelset_sampling=uniform`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.nnunet.discovery import trainers_folder
from nnunet_labelset.study.phantom.shapes import ellipsoid, smooth_noise

SHAPE = (40, 40, 40)
REGIONS = {"whole": [1, 2, 3], "core": [2, 3], "enhancing": [3]}
CONTRAST = {"complete": (0.0, 1.0, 2.0, 3.0), "contour": (0.0, 1.6, 2.6, 3.6)}
WAYS = {"label-sets": (921, "nnUNetTrainerLeafDiceCE_short"), "ignore": (922, "nnUNetTrainer_short")}
WAYS |= {"background": (923, "nnUNetTrainer_short")}


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


def write(raw: Path, way: str, cases: int) -> None:
    number, _ = WAYS[way]
    folder = raw / f"Dataset{number}_Regions"
    names = {}
    for seed in range(cases):
        scanner = "complete" if seed % 2 == 0 else "contour"
        image, labels = volume(seed, scanner)
        if scanner == "contour":
            labels = np.where(labels > 0, {"label-sets": 1, "ignore": 4, "background": 1}[way], 0).astype(np.uint8)
        name = f"{scanner}_{seed:03d}"
        names[name] = scanner
        save(folder / "imagesTr" / f"{name}_0000.nii.gz", image)
        save(folder / "labelsTr" / f"{name}.nii.gz", labels)
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
        "numTraining": cases,
        "file_ending": ".nii.gz",
        **({"label_sets": block} if way == "label-sets" else {}),
    }
    (folder / "dataset.json").write_text(json.dumps(dataset))


def save(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(sitk.GetImageFromArray(array), str(path))


def shrink(plans: Path) -> None:
    """A network that a CPU trains in minutes."""
    content = json.loads(plans.read_text())
    configuration = content["configurations"]["3d_fullres"]
    configuration |= {"batch_size": 2, "patch_size": [32, 32, 32]}
    configuration["architecture"]["arch_kwargs"] |= {
        "n_stages": 3,
        "features_per_stage": [12, 24, 48],
        "kernel_sizes": [[3, 3, 3]] * 3,
        "strides": [[1, 1, 1], [2, 2, 2], [2, 2, 2]],
        "n_conv_per_stage": [2, 2, 2],
        "n_conv_per_stage_decoder": [2, 2],
    }
    plans.write_text(json.dumps(content))


def dice(folder: Path, test: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Mean Dice of every region, by scanner of the test volume."""
    scores: dict[str, dict[str, list[float]]] = {scanner: {name: [] for name in REGIONS} for scanner in CONTRAST}
    for case, labels in test.items():
        predicted = sitk.GetArrayFromImage(sitk.ReadImage(str(folder / f"{case}.nii.gz")))
        for name, values in REGIONS.items():
            a, b = np.isin(predicted, values), np.isin(labels, values)
            scores[case.split("_")[0]][name].append(float(2 * (a & b).sum() / (a.sum() + b.sum())))
    return {scanner: {name: float(np.mean(found)) for name, found in by.items()} for scanner, by in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    folders = {f"nnUNet_{name}": args.folder / name for name in ("raw", "preprocessed", "results")}
    environment = {**os.environ, **{name: str(path) for name, path in folders.items()}, "nnUNet_def_n_proc": "1"}
    environment |= {"nnUNet_extTrainer": trainers_folder(), "nnunet_labelset_epochs": str(args.epochs)}

    def run(command: str, *arguments: object, **more: str) -> None:
        program = [str(Path(sys.executable).parent / command), *map(str, arguments)]
        subprocess.run(program, env={**environment, **more}, check=True, stdout=subprocess.DEVNULL)

    test = {}
    for seed in range(1000, 1008):
        scanner = "complete" if seed % 2 == 0 else "contour"
        image, test[f"{scanner}_{seed}"] = volume(seed, scanner)
        save(args.folder / "images" / f"{scanner}_{seed}_0000.nii.gz", image)
    results: dict[str, dict[str, dict]] = {way: {} for way in WAYS}
    for way, (number, _) in WAYS.items():
        write(folders["nnUNet_raw"], way, args.cases)
        run("nnUNetv2_plan_and_preprocess", "-d", number, "--no_pp", "-np", 1, nnUNet_n_proc_DA="1")
        shrink(folders["nnUNet_preprocessed"] / f"Dataset{number}_Regions" / "nnUNetPlans.json")
        run("nnUNetv2_preprocess", "-d", number, "-c", "3d_fullres", "-np", 1)
    for seed in range(args.seeds):
        for way, (number, trainer) in WAYS.items():
            options = {"nnunet_labelset_seed": str(seed), "nnUNet_n_proc_DA": "0"}
            run("nnUNetv2_train", number, "3d_fullres", "all", "-tr", trainer, "-device", "cpu", **options)
            output = args.folder / "predicted" / way / str(seed)
            model = ["-d", number, "-c", "3d_fullres", "-tr", trainer, "-f", "all", "-device", "cpu"]
            run("nnUNetv2_predict", "-i", args.folder / "images", "-o", output, *model, "-npp", 1, "-nps", 1)
            results[way][str(seed)] = dice(output, test)
            print(json.dumps({"way": way, "seed": seed, "dice": results[way][str(seed)]}), flush=True)
    (args.folder / "results.json").write_text(json.dumps({"epochs": args.epochs, "dice": results}, indent=2))


if __name__ == "__main__":
    main()
