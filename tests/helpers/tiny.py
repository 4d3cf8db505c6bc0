"""A tiny mixed data set in nnU-Net raw format, and nnU-Net's commands to run on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nnunet_labelset.nnunet.discovery import trainers_folder
from tests.helpers.volumes import write_volume

NAME = "Dataset901_Tiny"
LABELS = {"background": 0, "shell": 1, "core": 2, "dot": 3, "ignore": 4}
PROTOCOLS = {
    "full": {},
    "no_core": {"ignore": ["core", "dot"]},
    "merged": {"shell": ["shell", "core", "dot"]},
}
# case -> protocol; "full" cases may still have ignored voxels
CASES = (
    {f"full_{i}": "full" for i in range(4)}
    | {f"part_{i}": "no_core" for i in range(3)}
    | {"merged_0": "merged"}
)
SHAPE = (24, 28, 24)


# Gray values of background, shell, core and dot. The scanner of the incomplete cases shows the core
# as the other one shows the shell: who learns the core from the complete cases alone is wrong
# there.
CONTRAST = {
    "full": (0.0, 1.0, 2.0, 3.0),
    "no_core": (0.0, 3.0, 1.0, 4.0),
    "merged": (0.0, 1.0, 2.0, 3.0),
}


def volume(
    seed: int, protocol: str = "full", shape: tuple[int, ...] = SHAPE
) -> tuple[np.ndarray, np.ndarray]:
    """An image and its complete label map: a shell around a core with a dot in it."""
    rng = np.random.default_rng(seed)
    centre = np.array(shape) / 2 + rng.uniform(-2, 2, len(shape))
    grid = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1)
    radius = np.linalg.norm(grid - centre, axis=-1)
    outer = min(shape) * rng.uniform(0.35, 0.4)
    labels = np.zeros(shape, np.uint8)
    labels[radius < outer] = 1
    labels[radius < 0.65 * outer] = 2
    labels[radius < 0.3 * outer] = 3
    image = np.array(CONTRAST[protocol], np.float32)[labels] + rng.normal(0, 0.2, shape)
    return image.astype(np.float32), labels


def annotate(labels: np.ndarray, protocol: str) -> np.ndarray:
    """The complete label map as the protocol would have drawn it."""
    table = {"full": [0, 1, 2, 3], "no_core": [0, 1, 4, 4], "merged": [0, 1, 1, 1]}[protocol]
    return np.array(table, np.uint8)[labels]


def write_dataset_json(
    folder: Path,
    labels: dict[str, int],
    protocols: dict[str, Any],
    cases: dict[str, str],
    /,
    **changes: Any,
) -> None:
    dataset = {
        "channel_names": {"0": "T2"},
        "labels": labels,
        "numTraining": len(cases),
        "file_ending": ".nii.gz",
        "label_sets": {"version": 1, "protocols": protocols, "cases": cases},
        **changes,
    }
    (folder / "dataset.json").write_text(json.dumps(dataset))


def write_raw(
    raw: Path, cases: dict[str, str] = CASES, protocols: dict[str, Any] = PROTOCOLS
) -> Path:
    """The data set in nnU-Net raw format, two test images included."""
    folder = raw / NAME
    for seed, (case, protocol) in enumerate(cases.items()):
        image, labels = volume(seed, protocol)
        labels = annotate(labels, protocol)
        if protocol == "full":
            labels[:2] = 4  # plain ignored voxels
        write_volume(folder / "imagesTr" / f"{case}_0000.nii.gz", image)
        write_volume(folder / "labelsTr" / f"{case}.nii.gz", labels)
    for seed, protocol in ((100, "full"), (101, "no_core")):
        image, labels = volume(seed, protocol)
        write_volume(folder / "imagesTs" / f"test_{seed}_0000.nii.gz", image)
        write_volume(folder / "labelsTs" / f"test_{seed}.nii.gz", labels)
    write_dataset_json(folder, LABELS, protocols, cases)
    return folder


# The same volumes as regions; half of the cases show the outermost contour only. (A contour is a
# region, not a leaf.)
REGIONS: dict[str, Any] = {
    "labels": {"background": 0, "whole": [1, 2, 3], "inner": [2, 3], "dot": 3, "ignore": 4},
    "regions_class_order": [1, 2, 3],
    "label_sets": {
        "version": 2,
        "leaves": {"background": 0, "shell": 1, "core": 2, "dot": 3},
        "protocols": {"full": {}, "merged": PROTOCOLS["merged"]},
        "cases": {f"full_{i}": "full" for i in range(4)}
        | {f"whole_{i}": "merged" for i in range(4)},
    },
}


def write_regions(raw: Path) -> None:
    folder = write_raw(raw, REGIONS["label_sets"]["cases"])
    dataset = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**dataset, **REGIONS}))


def shrink_plans(plans: Path) -> None:
    """A network that a CPU trains in moments, and a low-resolution stage with its cascade."""
    content = json.loads(plans.read_text())
    for name, configuration in content["configurations"].items():
        if "architecture" not in configuration:
            continue
        kwargs = configuration["architecture"]["arch_kwargs"]
        stages = 3
        dimensions = len(configuration["patch_size"])
        residual = "n_blocks_per_stage" in kwargs
        configuration["batch_size"] = 2
        configuration["patch_size"] = [16] * dimensions
        kwargs["n_stages"] = stages
        kwargs["features_per_stage"] = [4, 8, 8]
        kwargs["kernel_sizes"] = [[3] * dimensions] * stages
        kwargs["strides"] = [[1] * dimensions] + [[2] * dimensions] * (stages - 1)
        kwargs["n_blocks_per_stage" if residual else "n_conv_per_stage"] = [1] * stages
        kwargs["n_conv_per_stage_decoder"] = [1] * (stages - 1)
        assert name in ("2d", "3d_fullres", "3d_lowres")
    spacing = content["configurations"]["3d_fullres"]["spacing"]
    content["configurations"]["3d_lowres"] = {
        "inherits_from": "3d_fullres",
        "data_identifier": f"{content['plans_name']}_3d_lowres",
        "spacing": [1.5 * s for s in spacing],
        "next_stage": "3d_cascade_fullres",
    }
    content["configurations"]["3d_cascade_fullres"] = {
        "inherits_from": "3d_fullres",
        "previous_stage": "3d_lowres",
    }
    plans.write_text(json.dumps(content))


class NNUNet:
    """nnU-Net's commands in folders of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.raw, self.preprocessed, self.results = (
            root / name for name in ("raw", "preprocessed", "results")
        )
        for folder in (self.raw, self.preprocessed, self.results):
            folder.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "nnUNet_raw": str(self.raw),
            "nnUNet_preprocessed": str(self.preprocessed),
            "nnUNet_results": str(self.results),
            "nnUNet_extTrainer": trainers_folder(),
            "nnUNet_n_proc_DA": "1",  # planning fails with 0
            "nnUNet_def_n_proc": "1",
            "nnunet_labelset_epochs": "1",
            "nnunet_labelset_iterations": "2",
        }

    def run(
        self, command: str, *arguments: object, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess:
        """Run a command that pip installed beside this Python."""
        done = subprocess.run(
            [str(Path(sys.executable).parent / command), *map(str, arguments)],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=1800,
        )
        if check and done.returncode:
            raise AssertionError(
                f"{command} {arguments} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            )
        return done

    def train(
        self, configuration: str, fold: object, trainer: str, *arguments: object, **options: Any
    ) -> str:
        options.setdefault("nnUNet_n_proc_DA", "0")
        done = self.run(
            "nnUNetv2_train",
            901,
            configuration,
            fold,
            "-tr",
            trainer,
            "-device",
            "cpu",
            *arguments,
            **options,
        )
        return done.stdout + done.stderr

    def model_folder(
        self, trainer: str, configuration: str = "3d_fullres", plans: str = "nnUNetPlans"
    ) -> Path:
        return self.results / NAME / f"{trainer}__{plans}__{configuration}"


def dataset_json(nnunet: NNUNet) -> dict[str, Any]:
    return json.loads((nnunet.preprocessed / NAME / "dataset.json").read_text())


def make(
    nnunet: NNUNet,
    cls: type,
    dataset: dict | None = None,
    fold: Any = 0,
    configuration: str = "3d_fullres",
):
    """A trainer in this process, as nnUNetv2_train makes it."""
    plans = json.loads((nnunet.preprocessed / NAME / "nnUNetPlans.json").read_text())
    plans["continue_training"] = False
    return cls(plans, configuration, fold, dataset or dataset_json(nnunet), torch.device("cpu"))


def enter(nnunet: NNUNet, monkeypatch: pytest.MonkeyPatch, results: Path) -> NNUNet:
    """Set nnU-Net's variables for trainers made in this process, with results of their own."""
    for name, value in nnunet.environment.items():
        if name.lower().startswith("nnunet"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("nnUNet_results", str(results))
    monkeypatch.setenv("nnUNet_n_proc_DA", "0")
    return nnunet
