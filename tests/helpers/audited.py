"""A generated data set with planted faults, and cross-validated predictions made from the truth.

    python -m tests.helpers.audited FOLDER

writes `nnUNet_raw`, `nnUNet_preprocessed` and `nnUNet_results` there, as a training would leave
them, for a look at `nnunet_labelset audit -d 44`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from tests.helpers.volumes import write_volume

NAME = "Dataset044_Audited"
MODEL = "nnUNetTrainerLabelSet__nnUNetPlans__3d_fullres"
LABELS = {"background": 0, "liver": 1, "kidney_left": 2, "kidney_right": 3}
SHAPE = (16, 24, 28)
CASES = tuple(f"case_{number:02d}" for number in range(15))
FOLDS = 5
WITHOUT_LIVER = "case_14"  # declared: the liver was not drawn
# What audit has to find: labels and reason.
FAULTS = {
    "case_00": (("liver",), "forgotten"),
    "case_01": (("kidney_left", "kidney_right"), "swapped sides"),
    "case_02": (("liver", "kidney_left"), "swapped labels"),
    "case_03": (("kidney_right",), "drawn elsewhere"),
    "case_04": (("liver", "kidney_left", "kidney_right"), "wrong image"),
}


def truth(seed: int) -> np.ndarray:
    """A liver between two kidneys, a little elsewhere in every case."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(SHAPE, np.uint8)
    for value, middle in ((1, (8, 7, 14)), (2, (8, 16, 6)), (3, (8, 16, 21))):
        centre = np.array(middle) + rng.uniform(-1, 1, 3)
        grid = np.indices(SHAPE).transpose(1, 2, 3, 0)
        labels[np.linalg.norm(grid - centre, axis=-1) < 4] = value
    return labels


def drawn(case: str, labels: np.ndarray) -> np.ndarray:
    """The truth as it was drawn: with the fault of the case."""
    reason = FAULTS[case][1] if case in FAULTS else ""
    if case == WITHOUT_LIVER or reason == "forgotten":
        return np.where(labels == 1, 0, labels)
    if reason == "swapped sides":
        return np.array([0, 1, 3, 2], np.uint8)[labels]
    if reason == "swapped labels":
        return np.array([0, 2, 1, 3], np.uint8)[labels]
    if reason == "drawn elsewhere":
        moved = np.roll(labels == 3, -5, axis=1)
        return np.where(moved, 3, np.where(labels == 3, 0, labels))
    return np.roll(labels, 5, axis=(0, 1)) if reason == "wrong image" else labels


def probabilities(labels: np.ndarray, seed: int) -> np.ndarray:
    """What a good network says `(C, *S)`: the truth, unsure at the borders."""
    rng = np.random.default_rng(seed)
    shifted = np.roll(labels, int(rng.choice([-1, 1])), axis=int(rng.integers(3)))
    onehot = [0.6 * (labels == value) + 0.37 * (shifted == value) for value in range(4)]
    return (np.stack(onehot) + 0.0075).astype(np.float16)


def write(root: Path, npz: bool = True) -> Path:
    """Write the three folders of nnU-Net; returns the raw data set."""
    raw = root / "nnUNet_raw" / NAME
    model = root / "nnUNet_results" / NAME / MODEL
    splits = []
    for fold in range(FOLDS):
        held_out = CASES[fold::FOLDS]
        splits.append({"train": [case for case in CASES if case not in held_out], "val": held_out})
    for seed, case in enumerate(CASES):
        labels = truth(seed)
        image = labels * 40.0 + np.random.default_rng(seed).normal(0, 5, SHAPE)
        write_volume(raw / "imagesTr" / f"{case}_0000.nii.gz", image.astype(np.float32))
        write_volume(raw / "labelsTr" / f"{case}.nii.gz", drawn(case, labels).astype(np.uint8))
        target = model / f"fold_{seed % FOLDS}" / "validation"
        scores = probabilities(labels, seed)
        write_volume(target / f"{case}.nii.gz", scores.argmax(0).astype(np.uint8))
        if npz:
            np.savez_compressed(target / f"{case}.npz", probabilities=scores)
    protocols = {"complete": {}, "no liver": {"background": ["background", "liver"]}}
    cases = {case: "no liver" if case == WITHOUT_LIVER else "complete" for case in CASES}
    content = {
        "channel_names": {"0": "CT"},
        "labels": LABELS,
        "numTraining": len(CASES),
        "file_ending": ".nii.gz",
        "label_sets": {"version": 1, "protocols": protocols, "cases": cases},
    }
    preprocessed = root / "nnUNet_preprocessed" / NAME
    preprocessed.mkdir(parents=True)
    for folder in (raw, preprocessed, model):
        (folder / "dataset.json").write_text(json.dumps(content))
    (preprocessed / "splits_final.json").write_text(json.dumps(splits))
    (model / "plans.json").write_text(json.dumps({"image_reader_writer": "SimpleITKIO"}))
    return raw


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
