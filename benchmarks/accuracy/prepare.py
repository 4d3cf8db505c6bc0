"""From the cases of a study to preprocessed data sets: one with label-sets, one with gaps as
background.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813

from benchmarks.accuracy.studies import Case, Study
from nnunet_labelset.io.files import write_json
from nnunet_labelset.nnunet.plans import cut_down

DATASETS = {"label-sets": "Dataset801_LabelSets", "background": "Dataset802_Background"}
CONFIGURATION = "3d_fullres"


def set_environment(folder: Path) -> None:
    """nnU-Net's folders, and its work in this process, so that a seed counts."""
    for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(folder / name)
    os.environ["nnUNet_def_n_proc"] = "1"
    os.environ["nnUNet_n_proc_DA"] = "1"


def prepare(study: Study, data: Path | None, folder: Path) -> None:
    """Write both raw data sets, plan and preprocess them; done once for a network."""
    done, network = folder / "prepared", f"patches of {study.patch}, features {study.features}\n"
    if done.is_file():
        if done.read_text() != network:
            sys.exit(
                f"{folder} was made for {done.read_text().strip() or 'another network'}: give another folder with -o"
            )
        return
    from nnunetv2.experiment_planning.plan_and_preprocess_api import (
        extract_fingerprints,
        plan_experiments,
        preprocess,
    )

    cases = list(study.cases(data))
    for number, (variant, name) in enumerate(DATASETS.items(), 801):
        write_raw(study, cases, folder / "nnUNet_raw" / name, variant == "label-sets")
        extract_fingerprints([number], num_processes=1, check_dataset_integrity=True)
        plan_experiments([number])
        plans = folder / "nnUNet_preprocessed" / name / "nnUNetPlans.json"
        cut_down(plans, CONFIGURATION, study.patch, study.features)
        preprocess([number], configurations=[CONFIGURATION], num_processes=[1])
    done.write_text(network)


def write_raw(study: Study, cases: list[Case], folder: Path, label_sets: bool) -> None:
    """A raw data set; without label-sets every voxel that nobody annotated is background."""
    protocols, listed = {}, {}
    ignore = len(study.leaves) + 1
    for case in cases:
        part = "Ts" if case.is_test else "Tr"
        labels = case.labels if label_sets else np.where(case.labels == ignore, 0, case.labels)
        write(folder / f"images{part}" / f"{case.name}_0000.nii.gz", case.image, case.spacing)
        write(folder / f"labels{part}" / f"{case.name}.nii.gz", labels, case.spacing)
        protocol = "+".join(case.uncertain) or "complete"
        protocols[protocol] = {"ignore": list(case.uncertain)} if case.uncertain else {}
        listed[case.name] = protocol
    names = {name: value for value, name in enumerate(("background", *study.leaves))}
    content = {
        "channel_names": {"0": study.channel},
        "labels": {**names, "ignore": ignore} if label_sets else names,
        "numTraining": sum(not case.is_test for case in cases),
        "file_ending": ".nii.gz",
    }
    if label_sets:
        content["label_sets"] = {"version": 1, "protocols": protocols, "cases": listed}
        rows = [f"{case.name}\t{case.group}" for case in cases if case.is_test]
        (folder / "groups.tsv").write_text("\n".join(["case\tgroup", *rows]) + "\n")
    write_json(folder / "dataset.json", content)


def write(path: Path, array: np.ndarray, spacing: tuple[float, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = sitk.GetImageFromArray(array)
    image.SetSpacing([float(size) for size in spacing[::-1]])
    sitk.WriteImage(image, str(path))
