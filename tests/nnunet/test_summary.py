"""`label_set_summary`: nnU-Net's summary.json, counted with label-sets."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO

from nnunet_labelset import Contract, LabelSetError
from nnunet_labelset.contract.protocol import membership_matrix
from nnunet_labelset.evaluation.counts import (
    Counts,
    dice,
    hard_confusion,
    label_set_counts,
)
from nnunet_labelset.nnunet.summary import label_set_summary
from tests.helpers.errors import refusal
from tests.helpers.evaluation import dataset, row, write_labels

CASES = {"a": "full", "b": "basic", "c": "feta"}
# a: everything is annotated, b: 4 may be ventricles or corpus callosum, c: 1 may be white matter or
# corpus callosum.
REFERENCES = {"a": row(0, 1, 1, 2, 3, 4), "b": row(0, 1, 1, 4, 4, 4), "c": row(0, 1, 1, 2, 2, 4)}
PREDICTIONS = {"a": row(1, 1, 0, 2, 3, 2), "b": row(0, 1, 1, 1, 2, 3), "c": row(0, 1, 3, 2, 0, 1)}


@pytest.fixture
def folders(tmp_path):
    for case in CASES:
        write_labels(tmp_path / "ref" / f"{case}.nii.gz", REFERENCES[case])
        write_labels(tmp_path / "pred" / f"{case}.nii.gz", PREDICTIONS[case])
    return tmp_path / "ref", tmp_path / "pred"


def test_by_hand(folders):
    summary = label_set_summary(*folders, Contract.from_dataset_json(dataset(CASES)), ".nii.gz", 1)
    a, b, c = (case["metrics"] for case in summary["metric_per_case"])
    # a: full ignore (the last voxel) counts nowhere
    assert a[1] == {
        "Dice": 2 / 4,
        "IoU": 1 / 3,
        "TP": 1,
        "FP": 1,
        "FN": 1,
        "TN": 2,
        "n_pred": 2,
        "n_ref": 2,
    }
    assert a[2] == {
        "Dice": 1,
        "IoU": 1,
        "TP": 1,
        "FP": 0,
        "FN": 0,
        "TN": 4,
        "n_pred": 1,
        "n_ref": 1,
    }
    # b: white matter predicted where it is known not to be; the others have no score
    assert b[1] == {
        "Dice": 4 / 5,
        "IoU": 2 / 3,
        "TP": 2,
        "FP": 1,
        "FN": 0,
        "TN": 3,
        "n_pred": 3,
        "n_ref": 2,
    }
    assert all(math.isnan(value) for value in [*b[2].values(), *b[3].values()])
    # c: ventricles are annotated, white matter and corpus callosum cannot be told apart
    assert c[2]["Dice"] == 2 / 3
    assert math.isnan(c[1]["Dice"])
    assert math.isnan(c[3]["Dice"])
    assert summary["mean"][1]["Dice"] == pytest.approx((1 / 2 + 4 / 5) / 2)
    assert summary["mean"][2]["Dice"] == pytest.approx((1 + 2 / 3) / 2)
    assert summary["mean"][3]["Dice"] == 1
    assert summary["foreground_mean"]["Dice"] == pytest.approx((0.65 + 5 / 6 + 1) / 3)
    assert summary["annotated_cases"] == {"1": 2, "2": 2, "3": 1}
    # b: two of the three voxels that are ventricles or corpus callosum are; c: white matter or
    # corpus callosum
    assert summary["unions"] == {
        "ventricles+corpus_callosum": 4 / 5,
        "white_matter+corpus_callosum": 1,
    }
    assert summary["known_wrong"] == pytest.approx((2 / 5 + 1 / 6 + 1 / 5) / 3)


def test_leaf_without_any_score_is_left_out(tmp_path):
    write_labels(tmp_path / "ref" / "b.nii.gz", REFERENCES["b"])
    write_labels(tmp_path / "pred" / "b.nii.gz", PREDICTIONS["b"])
    contract = Contract.from_dataset_json(dataset({"b": "basic"}))
    summary = label_set_summary(tmp_path / "ref", tmp_path / "pred", contract, ".nii.gz", 1)
    assert math.isnan(summary["mean"][2]["Dice"])
    assert summary["foreground_mean"]["Dice"] == 4 / 5


def test_one_rule_for_what_is_annotated(tmp_path):
    """The protocol does not annotate ventricles: though somebody drew two voxels of them, they have
    no score.

    Coverage and splits say the same. What is known about those voxels counts all the same: two
    predictions are wrong.
    """
    write_labels(tmp_path / "ref" / "b.nii.gz", row(0, 1, 2, 2, 4))
    write_labels(tmp_path / "pred" / "b.nii.gz", row(2, 1, 2, 0, 2))
    contract = Contract.from_dataset_json(dataset({"b": "basic"}))
    summary = label_set_summary(tmp_path / "ref", tmp_path / "pred", contract, ".nii.gz", 1)
    assert math.isnan(summary["metric_per_case"][0]["metrics"][2]["Dice"])
    assert contract.coverage()["ventricles"] == summary["annotated_cases"]["2"] == 0
    assert summary["known_wrong"] == 2 / 5
    assert summary["unions"] == {"ventricles+corpus_callosum": pytest.approx(2 * 2 / (3 + 3))}


@pytest.mark.slow
def test_equals_nnunet_where_everything_is_annotated(tmp_path):
    from nnunetv2.evaluation.evaluate_predictions import compute_metrics_on_folder
    from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO

    rng = np.random.default_rng(0)
    for case in "xy":
        write_labels(tmp_path / "ref" / f"{case}.nii.gz", rng.integers(0, 5, (4, 5, 6)))
        write_labels(tmp_path / "pred" / f"{case}.nii.gz", rng.integers(0, 3, (4, 5, 6)))
    ours = label_set_summary(
        tmp_path / "ref",
        tmp_path / "pred",
        Contract.from_dataset_json(dataset({"x": "full", "y": "full"})),
        ".nii.gz",
        2,
    )
    theirs = compute_metrics_on_folder(
        str(tmp_path / "ref"),
        str(tmp_path / "pred"),
        None,
        SimpleITKIO(),
        ".nii.gz",
        [1, 2, 3],
        4,
        1,
    )
    assert ours.pop("annotated_cases") == {"1": 2, "2": 2, "3": 2}
    assert ours.pop("unions") == {}
    assert ours.pop("label_set_dice") == pytest.approx(theirs["foreground_mean"]["Dice"])
    ours.pop("known_wrong")
    assert ours == theirs


def test_nnunet_reads_what_it_writes(folders, tmp_path):
    from nnunetv2.evaluation.evaluate_predictions import load_summary_json, save_summary_json

    summary = label_set_summary(*folders, Contract.from_dataset_json(dataset(CASES)), ".nii.gz", 1)
    save_summary_json(summary, str(tmp_path / "summary.json"))
    read = load_summary_json(str(tmp_path / "summary.json"))
    assert read["foreground_mean"] == summary["foreground_mean"]
    assert read["mean"] == summary["mean"]
    assert read["metric_per_case"][0] == summary["metric_per_case"][0]
    assert math.isnan(read["metric_per_case"][1]["metrics"][3]["Dice"])


def test_missing_predictions(folders):
    (folders[1] / "b.nii.gz").unlink()
    contract = Contract.from_dataset_json(dataset(CASES))
    assert len(label_set_summary(*folders, contract, ".nii.gz", 1)["metric_per_case"]) == 2


def test_read_as_nnunet_reads(folders):
    """Its validation goes on where origins differ, which only its check of the data set
    mentions.
    """
    contract = Contract.from_dataset_json(dataset(CASES))
    before = label_set_summary(*folders, contract, ".nii.gz", 1)
    for case in CASES:
        write_labels(folders[0] / f"{case}.nii.gz", REFERENCES[case], origin=(0.3, 0, 0))
    with refusal(LabelSetError, "origin", folders[0], folders[1]):
        label_set_summary(*folders, contract, ".nii.gz", 1)
    assert str(label_set_summary(*folders, contract, ".nii.gz", 2, SimpleITKIO())) == str(before)
    write_labels(folders[0] / "a.nii.gz", row(0, 1))
    with refusal(LabelSetError, "a.nii.gz", "(1, 1, 2)", "(1, 1, 6)"):
        label_set_summary(*folders, contract, ".nii.gz", 1, SimpleITKIO())


def test_union_counts():
    """Label-sets {0}, {1}, {2}, {1, 2}, {0, 1}; region {1, 2}."""
    membership = membership_matrix(tuple(map(frozenset, [[0], [1], [2], [1, 2], [0, 1]])), 3)
    confusion = hard_confusion(
        np.array([0, 0, 1, 2, 3, 3, 3, 4]), np.array([0, 1, 2, 0, 1, 2, 0, 1]), 5, 3
    )
    counts = label_set_counts(
        confusion, membership, np.array([[False, True, True], [False, True, False]])
    )
    assert [int(count[0]) for count in counts] == [3, 1, 2, 1]  # tp, fp, fn, tn of the union
    single = label_set_counts(confusion, membership)
    assert [int(count[1]) for count in counts] == [int(count[1]) for count in single]
    assert dice(Counts(*(count[:1] for count in counts)))[0] == 6 / 9


def test_workers_do_not_import_torch():
    code = "import sys, nnunet_labelset.nnunet.summary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
