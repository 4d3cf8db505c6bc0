"""`annotate` between nnU-Net's preprocessing and its training: the quick start, on a tiny data set
without `ignore`.
"""

from __future__ import annotations

import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.io.files import read_json, write_json
from tests.helpers.tiny import CASES, LABELS, NNUNet, shrink_plans, volume, write_volume

NAME = "Dataset901_Tiny"


@pytest.mark.slow
def test_preprocess_annotate_train(tmp_path, monkeypatch, capsys):
    """Background may be the core in some cases, nothing is `ignore`, and nothing is preprocessed
    again.
    """
    nnunet = NNUNet(tmp_path)
    folder = nnunet.raw / NAME
    for seed, case in enumerate(CASES):
        image, labels = volume(seed)
        if case.startswith("part"):
            labels[labels == 2] = 0
        write_volume(folder / "imagesTr" / f"{case}_0000.nii.gz", image)
        write_volume(folder / "labelsTr" / f"{case}.nii.gz", labels.astype(np.uint8))
    labels_json = {name: value for name, value in LABELS.items() if name != "ignore"}
    content = {
        "channel_names": {"0": "T2"},
        "labels": labels_json,
        "numTraining": len(CASES),
        "file_ending": ".nii.gz",
    }
    write_json(folder / "dataset.json", content)
    nnunet.run("nnUNetv2_extract_fingerprint", "-d", 901, "-np", 1)
    nnunet.run("nnUNetv2_plan_experiment", "-d", 901)
    shrink_plans(nnunet.preprocessed / NAME / "nnUNetPlans.json")
    nnunet.run("nnUNetv2_preprocess", "-d", 901, "-c", "3d_fullres", "-np", 1)
    files = {
        path: path.stat().st_mtime_ns for path in nnunet.preprocessed.rglob("*") if path.is_file()
    }
    for variable in ("nnUNet_raw", "nnUNet_preprocessed"):
        monkeypatch.setenv(variable, nnunet.environment[variable])
    assert main(["annotate", "-d", "901", "--missing", "core", "--in", "part_*", "-np", "1"]) == 0
    copy = nnunet.preprocessed / NAME / "dataset.json"
    assert [path for path, time in files.items() if path.stat().st_mtime_ns != time] == [copy]
    assert read_json(copy)["label_sets"] == read_json(folder / "dataset.json")["label_sets"]
    log = nnunet.train("3d_fullres", 0, "nnUNetTrainerLeafDice_short")
    assert "Mean Validation Dice" in log
