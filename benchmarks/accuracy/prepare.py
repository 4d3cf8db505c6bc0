"""From the cases of a study to preprocessed data sets of nnU-Net, one for each way to treat
gaps.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import SimpleITK as sitk  # noqa: N813

from benchmarks.accuracy.studies import Case, Study
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.nnunet.plans import cut_down

CONFIGURATION = "3d_fullres"
INTENSITIES = "foreground_intensity_properties_per_channel"  # of the plans


class Variant(StrEnum):
    """What a gap becomes; the value is the name of the data set."""

    LABEL_SETS = "Dataset801_LabelSets"
    BACKGROUND = "Dataset802_Background"
    COMPLETE = "Dataset803_Complete"  # as if there had been none


def set_environment(folder: Path) -> None:
    """nnU-Net's folders, and its work in this process, so that a seed counts."""
    for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(folder / name)
    os.environ["nnUNet_def_n_proc"] = "1"
    os.environ["nnUNet_n_proc_DA"] = "1"  # planning needs one, trainings take none


def prepare(study: Study, data: Path | None, folder: Path) -> None:
    """Write the raw data sets, plan and preprocess them; done once for a network."""
    done = folder / "prepared"
    network = f"patches of {study.patch}, features {study.features}, batches of {study.batch}\n"
    if done.is_file():
        if done.read_text() != network:
            sys.exit(f"{folder} was made for {done.read_text().strip()}: choose another with -o")
        return
    from nnunetv2.experiment_planning.plan_and_preprocess_api import (
        extract_fingerprints,
        plan_experiments,
        preprocess,
    )

    cases = list(study.cases(data))
    intensities: dict[str, Any] = {}  # of the data set with label-sets, for all
    for variant in Variant:
        number = int(variant[7:10])
        write_raw(study, cases, folder / "nnUNet_raw" / variant, variant)
        extract_fingerprints([number], num_processes=1, check_dataset_integrity=False)
        plan_experiments([number])
        plans = folder / "nnUNet_preprocessed" / variant / "nnUNetPlans.json"
        cut_down(plans, study.configuration, study.patch, study.features, study.batch)
        # nnU-Net takes the window of a CT from all voxels that are not background, gaps included
        intensities = intensities or read_json(plans)[INTENSITIES]
        write_json(plans, {**read_json(plans), INTENSITIES: intensities})
        preprocess([number], configurations=[study.configuration], num_processes=[1])
    check_intensities(study, folder / "nnUNet_preprocessed")
    write_json(folder / "cases.json", {case.name: describe(case) for case in cases})
    done.write_text(network)


def check_intensities(study: Study, preprocessed: Path) -> None:
    """Stop if a case does not look the same in all data sets.

    nnU-Net normalises inside of a mask that it takes from image and labels. A gap that reaches into
    the air changes it in training but not in prediction, and methods are compared no longer.
    """
    folders = [preprocessed / variant / f"nnUNetPlans_{study.configuration}" for variant in Variant]
    for path in sorted(folders[-1].glob("*.b2nd")):
        if path.stem.endswith("_seg"):
            continue
        images = [blosc2.open(str(folder / path.name))[:] for folder in folders]
        if not all(np.allclose(image, images[0], atol=1e-3) for image in images):
            sys.exit(f"{path.stem}: other intensities with gaps than without: keep gaps out of air")


def describe(case: Case) -> dict[str, Any]:
    """What a run has to know about a case."""
    return {
        "group": case.group,
        "protocol": case.protocol,
        "uncertain": list(case.uncertain),
        "complete": case.is_complete,
        "test": case.is_test,
    }


def write_raw(study: Study, cases: list[Case], folder: Path, variant: Variant) -> None:
    """Write the raw data set; with the true labels, cases that have none are left out."""
    if variant is Variant.COMPLETE:
        cases = [case for case in cases if case.is_complete or case.truth is not None]
    gap = len(study.leaves) + 1
    for case in cases:
        part = "Ts" if case.is_test else "Tr"
        images = case.image if case.image.ndim == 4 else case.image[None]
        for channel, image in enumerate(images):
            name = f"{case.name}_{channel:04d}.nii.gz"
            write(folder / f"images{part}" / name, image, case.spacing)
        labels = variant_labels(case, variant, gap)
        write(folder / f"labels{part}" / f"{case.name}.nii.gz", labels, case.spacing)
    write_json(folder / "dataset.json", dataset_json(study, cases, variant))


def variant_labels(case: Case, variant: Variant, gap: int) -> np.ndarray:
    if case.is_test or variant is Variant.COMPLETE:
        return case.labels if case.truth is None else case.truth
    if variant is Variant.BACKGROUND:
        return np.where(case.labels == gap, 0, case.labels)
    return case.labels


def dataset_json(study: Study, cases: list[Case], variant: Variant) -> dict[str, Any]:
    labels = {name: value for value, name in enumerate(("background", *study.leaves))}
    has_gaps = variant is Variant.COMPLETE and study.has_natural_gaps
    if variant is Variant.LABEL_SETS or has_gaps:
        labels["ignore"] = len(labels)
    content: dict[str, Any] = {
        "channel_names": {str(i): study.channel for i in range(study.channels)},
        "labels": labels,
        "numTraining": sum(not case.is_test for case in cases),
        "file_ending": ".nii.gz",
    }
    if variant is Variant.LABEL_SETS:
        protocols = {}
        for case in cases:
            gaps = {"ignore": list(case.uncertain)} if case.uncertain else {}
            itself = {label: [label] for label in study.leaves} if case.vouched else {}
            protocols[case.protocol] = gaps | itself
        listed = {case.name: case.protocol for case in cases}
        content["label_sets"] = {"version": 1, "protocols": protocols, "cases": listed}
    return content


def write(path: Path, array: np.ndarray, spacing: tuple[float, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = sitk.GetImageFromArray(array)
    image.SetSpacing([float(size) for size in spacing[::-1]])
    sitk.WriteImage(image, str(path))
