"""nnU-Net's own commands, end to end, on a data set that carries the contract. The tests of this
file build on each
other: they run in order, in one process, on one data set."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from nnunetv2.evaluation.evaluate_predictions import load_summary_json

from tests.helpers import tiny

LEAF_DICE = "nnUNetTrainerLeafDice_short"


def segmentation(path: Path) -> np.ndarray:
    return sitk.GetArrayFromImage(sitk.ReadImage(str(path)))


def test_train_3d_with_worker_processes(prepared: tiny.NNUNet) -> None:
    log = prepared.train("3d_fullres", 0, LEAF_DICE, "--npz", nnUNet_n_proc_DA="2")
    fold = prepared.model_folder(LEAF_DICE) / "fold_0"
    assert (fold / "checkpoint_final.pth").is_file()
    assert (fold / "progress.png").is_file()
    assert list((fold / "validation").glob("*.npz"))
    assert re.search(r"shell +\d+ of \d+", log)
    assert log.count("Mean Validation Dice") == 1
    summary = load_summary_json(str(fold / "validation" / "summary.json"))
    cases = {
        Path(case["reference_file"]).name[:-7]: case["metrics"]
        for case in summary["metric_per_case"]
    }
    assert len(cases) == 2
    for case, metrics in cases.items():
        assert np.isnan(metrics[2]["Dice"]) == (tiny.CASES[case] != "full")
    assert f"Mean Validation Dice:  {summary['foreground_mean']['Dice']}" in log
    num_annotated = sum(tiny.CASES[case] == "full" for case in cases)
    assert re.search(rf"core .*annotated in {num_annotated}\b", log)


def test_validate_again(prepared: tiny.NNUNet) -> None:
    summary = prepared.model_folder(LEAF_DICE) / "fold_0" / "validation" / "summary.json"
    before = summary.read_text()
    summary.unlink()
    prepared.train("3d_fullres", 0, LEAF_DICE, "--val")
    assert summary.read_text() == before


def test_continue(prepared: tiny.NNUNet) -> None:
    """With our own verb, which needs no nnUNet_extTrainer."""
    words = [
        "nnunet_labelset",
        "train",
        901,
        "3d_fullres",
        0,
        "-tr",
        LEAF_DICE,
        "-device",
        "cpu",
        "--c",
        "--npz",
    ]
    log = prepared.run(
        *words, nnunet_labelset_epochs="2", nnUNet_n_proc_DA="0", nnUNet_extTrainer=""
    ).stdout
    assert "Epoch 1" in log
    assert "Epoch 0" not in log


def test_do_not_continue_with_another_contract(prepared: tiny.NNUNet) -> None:
    dataset = prepared.preprocessed / tiny.NAME / "dataset.json"
    before = dataset.read_text()
    content = json.loads(before)
    content["label_sets"]["cases"]["part_0"] = "full"
    dataset.write_text(json.dumps(content))
    try:
        done = prepared.run(
            "nnUNetv2_train",
            901,
            "3d_fullres",
            0,
            "-tr",
            LEAF_DICE,
            "-device",
            "cpu",
            "--c",
            check=False,
        )
    finally:
        dataset.write_text(before)
    assert done.returncode == 1
    assert re.search("'part_0': no_core .*full", done.stderr)
    assert "Traceback" not in done.stderr


def test_pretrained_weights_and_second_fold(prepared: tiny.NNUNet) -> None:
    weights = prepared.model_folder(LEAF_DICE) / "fold_0" / "checkpoint_final.pth"
    prepared.train("3d_fullres", 1, LEAF_DICE, "-pretrained_weights", weights, "--npz")
    assert (prepared.model_folder(LEAF_DICE) / "fold_1" / "validation" / "summary.json").is_file()


@pytest.mark.parametrize("fold", [0, 1])
def test_train_2d(prepared: tiny.NNUNet, fold: int) -> None:
    prepared.train("2d", fold, LEAF_DICE, "--npz")
    assert (
        prepared.model_folder(LEAF_DICE, "2d") / f"fold_{fold}" / "checkpoint_final.pth"
    ).is_file()


def test_the_teacher_in_2d(prepared: tiny.NNUNet) -> None:
    trainer = "nnUNetTrainerLabelSetTeacher_short"
    prepared.train("2d", 0, trainer)
    assert (prepared.model_folder(trainer, "2d") / "fold_0" / "checkpoint_final.pth").is_file()


def test_low_resolution_and_cascade_on_all_cases(prepared: tiny.NNUNet) -> None:
    trainer = "nnUNetTrainerLabelSet_short"
    prepared.train("3d_lowres", "all", trainer)
    prepared.train("3d_cascade_fullres", "all", trainer)
    validation = prepared.model_folder(trainer, "3d_cascade_fullres") / "fold_all" / "validation"
    assert len(load_summary_json(str(validation / "summary.json"))["metric_per_case"]) == len(
        tiny.CASES
    )


def test_residual_encoder_plans(prepared: tiny.NNUNet) -> None:
    plans = "nnUNetResEncUNetMPlans"
    prepared.train("3d_fullres", 0, "nnUNetTrainerFullySupervisedDice_short", "-p", plans)
    model = prepared.model_folder("nnUNetTrainerFullySupervisedDice_short", plans=plans)
    assert (model / "fold_0" / "validation" / "summary.json").is_file()


def test_predict_ensemble_and_select(prepared: tiny.NNUNet, tmp_path: Path) -> None:
    images = prepared.raw / tiny.NAME / "imagesTs"
    for configuration in ("2d", "3d_fullres"):
        arguments = [
            "-i",
            images,
            "-o",
            tmp_path / configuration,
            "-d",
            901,
            "-c",
            configuration,
            "-tr",
            LEAF_DICE,
        ]
        workers = ["-npp", 1, "-nps", 1, "-device", "cpu", "--disable_tta", "--save_probabilities"]
        prepared.run("nnUNetv2_predict", *arguments, "-f", 0, 1, *workers)
    prepared.run(
        "nnUNetv2_ensemble",
        "-i",
        tmp_path / "2d",
        tmp_path / "3d_fullres",
        "-o",
        tmp_path / "both",
        "-np",
        1,
    )
    for name in ("2d", "3d_fullres", "both"):
        values = segmentation(tmp_path / name / "test_100.nii.gz")
        assert values.shape == tiny.SHAPE
        assert values.max() <= 3
    prepared.run(
        "nnUNetv2_find_best_configuration",
        901,
        "-tr",
        LEAF_DICE,
        "-c",
        "2d",
        "3d_fullres",
        "-f",
        0,
        1,
        "-np",
        1,
    )
    assert (prepared.results / tiny.NAME / "inference_instructions.txt").is_file()
    chosen = next(prepared.results.rglob("postprocessing.pkl"))
    prepared.run(
        "nnUNetv2_apply_postprocessing",
        *(
            "-i",
            tmp_path / "3d_fullres",
            "-o",
            tmp_path / "postprocessed",
            "-np",
            1,
            "-pp_pkl_file",
            chosen,
        ),
        *(
            "-plans_json",
            chosen.with_name("plans.json"),
            "-dataset_json",
            chosen.with_name("dataset.json"),
        ),
    )
    assert (tmp_path / "postprocessed" / "test_100.nii.gz").is_file()


def test_export_for_stock_nnunet(prepared: tiny.NNUNet, tmp_path: Path) -> None:
    archive = tmp_path / "model.zip"
    model = prepared.model_folder(LEAF_DICE)
    content = json.loads((model / "dataset.json").read_text())
    listed = {"training": [{"image": "./imagesTr/part_0.nii.gz"}], "remark": "part_0 is Mr X"}
    (model / "dataset.json").write_text(json.dumps({**content, **listed}))
    chosen = model / "crossval_results_folds_0_1" / "postprocessing.pkl"
    chosen.parent.mkdir(exist_ok=True)
    chosen.write_bytes(pickle.dumps(([], [])))
    words = [
        "nnunet_labelset",
        "export",
        "-d",
        901,
        "-tr",
        LEAF_DICE,
        "-o",
        archive,
        "--model-card",
        "-f",
        1,
        0,
        1,
    ]
    done = prepared.run(*words)
    assert "segmentation" in done.stdout
    again = prepared.run(*words, check=False)
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.md", "model.zip"]
    card = (tmp_path / "model.md").read_text()
    assert f"`{LEAF_DICE}`" in card
    assert "| 3 | dot | 4 of 8 |" in card
    with zipfile.ZipFile(archive) as zipped:
        for name in zipped.namelist():
            assert b"part_0" not in zipped.read(name), f"{name} names a case"

    stock = tiny.NNUNet(tmp_path / "stock")  # a machine without the plugin: no external trainers
    del stock.environment["nnUNet_extTrainer"]
    images = prepared.raw / tiny.NAME / "imagesTs"
    workers = ["-npp", 1, "-nps", 1, "-device", "cpu", "--disable_tta"]
    typed = [line.split() for line in done.stdout.splitlines() if line.startswith("  nnUNetv2_")]
    places = {
        "model.zip": archive,
        "INPUT": images,
        "OUTPUT": tmp_path / "theirs",
        "POSTPROCESSED": tmp_path / "better",
    }
    for command in typed:  # what the export tells the user to type
        arguments = [
            places.get(word, word.replace("$nnUNet_results", str(stock.results)))
            for word in command[1:]
        ]
        stock.run(command[0], *arguments, *(workers if command[0] == "nnUNetv2_predict" else ()))
    assert len(typed) == 3
    arguments = [
        "-i",
        images,
        "-o",
        tmp_path / "ours",
        "-d",
        tiny.NAME,
        "-c",
        "3d_fullres",
        "-tr",
        LEAF_DICE,
    ]
    prepared.run("nnUNetv2_predict", *arguments, "-f", 0, 1, *workers)
    for name in ("test_100.nii.gz", "test_101.nii.gz"):
        assert np.array_equal(
            segmentation(tmp_path / "ours" / name), segmentation(tmp_path / "theirs" / name)
        )
        assert (tmp_path / "better" / name).is_file()


def test_a_mistake_is_one_line_on_the_screen(prepared: tiny.NNUNet) -> None:
    dataset = prepared.preprocessed / tiny.NAME / "dataset.json"
    before = dataset.read_text()
    content = json.loads(before)
    del content["label_sets"]["cases"]["part_0"]
    dataset.write_text(json.dumps(content))
    try:
        arguments = [
            "nnUNetv2_train",
            901,
            "3d_fullres",
            "all",
            "-tr",
            "nnUNetTrainerLeafDice",
            "-device",
            "cpu",
        ]
        done = prepared.run(*arguments, check=False)
    finally:
        dataset.write_text(before)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if "nnunet_labelset: error" in line]
    assert len(errors) == 1
    assert "'part_0'" in errors[0]
    assert "Traceback" not in done.stderr


def children(pid: int) -> list[int]:
    """Processes below `pid`, from the process table."""
    table = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    parents = {int(line.split()[0]): int(line.split()[1]) for line in table.splitlines()}
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        below = [child for child, above in parents.items() if above == parent]
        found += below
        waiting += below
    return found


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs the command ps")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_training_leaves_nothing_behind(
    prepared: tiny.NNUNet, tmp_path: Path, number: int
) -> None:
    # short: sockets in it have paths of at most 107 characters
    temporary = Path(tempfile.mkdtemp())
    command = [str(Path(sys.executable).parent / "nnUNetv2_train"), "901", "3d_fullres", "2"]
    environment = {
        **prepared.environment,
        "nnUNet_n_proc_DA": "2",
        "TMPDIR": str(temporary),
        "PYTHONUNBUFFERED": "1",
    }
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [*command, "-tr", "nnUNetTrainerLeafDice", "-device", "cpu"],
            env=environment,
            stdout=log,
            stderr=log,
            # A shell's background job ignores interrupts, and hands that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    deadline = time.monotonic() + 900
    while "Epoch 0" not in (tmp_path / "log.txt").read_text() and time.monotonic() < deadline:
        assert process.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.2)
    workers = children(process.pid)
    assert workers
    process.send_signal(number)
    process.wait(600)
    deadline = time.monotonic() + 300
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}")]
    assert not list(temporary.glob("pymp-*"))
    shutil.rmtree(temporary)
