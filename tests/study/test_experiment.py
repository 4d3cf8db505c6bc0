"""The workflow of a study is really run, with stand-ins for the commands on PATH that record how
they were called.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from nnunet_labelset.cli import main, module_of
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.study.experiment import parse_folds

TRAINERS = ["nnUNetTrainer", "nnUNetTrainerLeafDice"]
STAND_IN_FILE = Path(__file__).parents[1] / "helpers" / "stand_in.py"
STAND_IN = f"#!{sys.executable} -S\n" + STAND_IN_FILE.read_text()
COMMANDS = (
    "nnUNetv2_plan_and_preprocess",
    "nnUNetv2_extract_fingerprint",
    "nnUNetv2_preprocess",
    "nnUNetv2_train",
    "nnUNetv2_predict",
    "nnUNetv2_ensemble",
    "nnunet_labelset",
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
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "RECORD": str(self.record),
        }

    def write(self, *options: str) -> int:
        folds = [] if "--cv" in options else ["-f", "0-1"]
        return main(
            ["experiment", "-d", "27", "-o", str(self.folder), "-tr", *TRAINERS, *folds, *options]
        )

    def command(self, *options: str) -> list[str]:
        """One job at a time, so that the order of the calls is that of the steps."""
        cores = [] if "--cores" in options else ["--cores", "1"]
        return [sys.executable, "-m", "snakemake", *cores, *options]

    def run(self, *options: str, code: int = 0, **environment: str) -> str:
        done = subprocess.run(
            self.command(*options),
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def status(self, capsys: pytest.CaptureFixture[str]) -> list[str]:
        capsys.readouterr()
        assert main(["experiment", "-o", str(self.folder), "--status"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 100
        return [line for line in lines if line.startswith("  ")]

    def network(self, trainer: str, fold: int, configuration: str = "3d_fullres") -> Path:
        model = f"{trainer}__nnUNetPlans__{configuration}"
        return self.root / "results" / "Dataset027_Brain" / model / f"fold_{fold}"

    def calls(self) -> list[list[str]]:
        """The calls since the last look."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        self.record.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def names(self) -> list[str]:
        return [step(call) for call in self.calls()]


def step(call: list[str]) -> str:
    return call[1] if call[0] == "nnunet_labelset" else call[0].removeprefix("nnUNetv2_")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    study = Study(tmp_path, monkeypatch)
    assert study.write() == 0
    return study


def value(call: list[str], flag: str) -> str:
    return call[call.index(flag) + 1]


def ensembled_cases(study: Study, trainer: str) -> str:
    folder = (
        study.folder / "predictions" / "Dataset027_Brain" / f"{trainer}__nnUNetPlans__3d_fullres"
    )
    return (folder / "ensemble" / "result.nii.gz").read_text()


def test_whole_study_runs_every_step_once(study: Study) -> None:
    plan = study.run("-n", "-p")
    assert "nnUNetv2_train Dataset027_Brain 3d_fullres 0 " in plan
    assert study.calls() == []
    study.run()
    calls = study.calls()
    steps = [step(call) for call in calls]
    assert steps[:3] == ["plan_and_preprocess", "splits", "preprocess"]
    assert sorted(steps[3:-2]) == sorted(
        ["train"] * 4 + ["predict"] * 4 + ["ensemble"] * 2 + ["evaluate"] * 2
    )
    assert sorted(steps[-2:]) == ["compare", "report"]
    trainings = [call for call in calls if call[0] == "nnUNetv2_train"]
    assert sorted((value(call, "-tr"), call[3]) for call in trainings) == [
        (trainer, fold) for trainer in TRAINERS for fold in "01"
    ]
    assert not any("--c" in call or "--val" in call for call in trainings)
    assert calls[1][2:] == ["-d", "Dataset027_Brain", "--random", "2", "--val-fraction", "0.1"]
    (comparison,) = [call for call in calls if step(call) == "compare"]
    assert [word.partition("=")[0] for word in comparison[2:4]] == TRAINERS
    for trainer in TRAINERS:
        # Both networks had predicted both test cases when their probabilities were averaged.
        assert ensembled_cases(study, trainer) == "2 2"
    assert not list(study.folder.glob("predictions/**/*.npz")), "deleted after use"
    study.run()
    assert study.names() == []


def test_interrupted_training_continues(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    study.run(code=1, BREAK="3d_fullres 1 -tr nnUNetTrainerLeafDice")
    assert study.names().count("train") == 4
    states = [line.rpartition("  ")[2] for line in study.status(capsys)]
    assert states == ["finished, without probabilities"] * 3 + ["started"]
    study.run()
    (call,) = [call for call in study.calls() if step(call) == "train"]
    assert call[3] == "1"
    assert value(call, "-tr") == "nnUNetTrainerLeafDice"
    assert "--c" in call


@pytest.mark.slow
def test_training_without_validation_is_only_validated(study: Study) -> None:
    study.run(code=1, NO_VALIDATION="1")
    study.calls()
    study.run()
    trainings = [call for call in study.calls() if step(call) == "train"]
    assert len(trainings) == 4
    assert all("--val" in call and "--c" not in call for call in trainings)


@pytest.mark.slow
def test_networks_that_were_trained_before_are_not_trained_again(study: Study) -> None:
    folder = study.network("nnUNetTrainer", 0)
    (folder / "validation").mkdir(parents=True)
    (folder / "checkpoint_final.pth").write_text("trained by hand")
    (folder / "validation" / "summary.json").write_text("{}")
    study.run()
    assert study.names().count("train") == 3
    assert (folder / "checkpoint_final.pth").read_text() == "trained by hand"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "repeated"),
    [
        ("nnUNetTrainerLeafDice -p nnUNetPlans -f 1", ["predict", "ensemble", "evaluate"]),
        ("nnUNetv2_ensemble", ["ensemble", "ensemble", "evaluate", "evaluate"]),
        ("nnunet_labelset evaluate", ["evaluate", "evaluate"]),
    ],
)
def test_interrupted_later_steps_continue(study: Study, where: str, repeated: list[str]) -> None:
    study.run(code=1, BREAK=where)
    study.calls()
    study.run()
    assert sorted(study.names()) == sorted([*repeated, "compare", "report"])
    for trainer in TRAINERS:
        assert ensembled_cases(study, trainer) == "2 2"


@pytest.mark.slow
def test_plans_and_data_of_others_are_kept_and_what_is_missing_is_preprocessed(
    study: Study,
) -> None:
    study.run()
    study.calls()
    plans = next(study.root.rglob("nnUNetPlans.json"))
    content = plans.read_text()
    shutil.rmtree(study.folder)
    assert study.write("-c", "2d", "3d_fullres") == 0
    study.run()
    calls = study.calls()
    assert plans.read_text() == content
    assert "plan_and_preprocess" not in [step(call) for call in calls]
    (call,) = [call for call in calls if step(call) == "preprocess"]
    assert call[call.index("-c") + 1 :] == ["2d"]
    trainings = [call for call in calls if step(call) == "train"]
    assert [call[2] for call in trainings] == ["2d"] * 4
    assert "splits" not in [step(call) for call in calls]


@pytest.mark.slow
def test_interrupted_preprocessing_is_repeated(study: Study) -> None:
    study.run(code=1, BREAK="nnUNetv2_preprocess")
    assert study.names() == ["plan_and_preprocess", "splits", "preprocess"]
    study.run()
    assert study.names()[:2] == ["preprocess", "train"]


@pytest.mark.slow
def test_new_networks_renew_the_ensemble(study: Study) -> None:
    study.run()
    study.calls()
    checkpoint = study.network("nnUNetTrainer", 0) / "checkpoint_final.pth"
    checkpoint.write_text("trained again")
    later = time.time() + 10
    os.utime(checkpoint, (later, later))
    study.run()
    again = ["predict"] * 2 + ["ensemble", "evaluate", "compare", "report"]
    assert sorted(study.names()) == sorted(again)


@pytest.mark.slow
@pytest.mark.parametrize("options", [["-f", "1"], ["-chk", "checkpoint_best.pth"]])
def test_other_folds_or_checkpoints_renew_the_ensemble(study: Study, options: list[str]) -> None:
    study.run()
    study.calls()
    assert study.write(*options) == 0
    study.run()
    names = study.names()
    assert "train" not in names
    assert names.count("predict") == (2 if "-f" in options else 4)
    assert names.count("ensemble") == names.count("evaluate") == 2


@pytest.mark.slow
def test_changed_settings_renew_what_depends_on_them(study: Study) -> None:
    study.run()
    study.calls()
    raw = study.root / "raw" / "Dataset027_Brain"
    later = time.time() + 10
    os.utime(raw / "labelsTs" / "a.nii.gz", (later, later))
    (raw / "labelsTs" / "a.nii.gz").write_bytes(b"drawn again")
    study.run()
    assert sorted(study.names()) == ["compare", "evaluate", "evaluate", "report"]
    for name in ("imagesTs/c_0000.nii.gz", "labelsTs/c.nii.gz"):
        (raw / name).write_bytes(b"x")
    study.run()
    assert study.names().count("predict") == 4
    plans = study.root / "preprocessed" / "Dataset027_Brain" / "nnUNetPlans.json"
    plans.with_name("otherPlans.json").write_text(plans.read_text())
    config = study.folder / "config.yaml"
    config.write_text(config.read_text().replace("plans: nnUNetPlans", "plans: otherPlans"))
    study.run()
    trainings = [call for call in study.calls() if step(call) == "train"]
    assert [value(call, "-p") for call in trainings] == ["otherPlans"] * 4


@pytest.mark.slow
def test_a_new_configuration_leaves_the_predictions_of_others(study: Study) -> None:
    study.run()
    study.calls()
    assert study.write("-c", "3d_fullres", "2d") == 0
    study.run()
    calls = study.calls()
    predictions = [call for call in calls if step(call) == "predict"]
    assert [value(call, "-c") for call in predictions] == ["2d"] * 4


def test_settings_that_contradict_the_splits_are_refused_after_the_trainings(study: Study) -> None:
    study.run()
    study.calls()
    splits = study.root / "preprocessed" / "Dataset027_Brain" / "splits_final.json"
    splits.write_text(json.dumps([{"train": ["t1"], "val": ["t2"]}] * 3))
    assert study.write("--exclude", "t1") == 0
    assert "--exclude t1" in study.run(code=1)
    assert study.write("--cv", "2") == 0
    assert "--cv 2" in study.run(code=1)
    assert study.names() == []


def test_a_fold_without_a_split_is_named_before_any_training(study: Study) -> None:
    splits_file = study.root / "preprocessed" / "Dataset027_Brain" / "splits_final.json"
    splits_file.parent.mkdir(parents=True)
    splits_file.write_text('[{"train": ["a"], "val": ["b"]}]')
    output = study.run(code=1)
    assert "fold 1: " in output
    assert "has 1 splits" in output
    assert study.names() == []


@pytest.mark.slow
def test_cross_validation_of_several_configurations(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--cv", "3", "-c", "3d_cascade_fullres", "3d_lowres", "--exclude", "t1")
    shutil.rmtree(study.root / "raw" / "Dataset027_Brain" / "labelsTs")  # no test set is needed
    assert study.write(*options) == 0
    study.run()
    calls = study.calls()
    assert calls[1][2:] == ["-d", "Dataset027_Brain", "-k", "3", "--exclude", "t1"]
    assert sorted(value(call, "-c") for call in calls[2:4]) == ["3d_fullres", "3d_lowres"]
    trainings = [call for call in calls if step(call) == "train"]
    for trainer in TRAINERS:  # a cascade waits for all folds of its first stage
        order = [call[2] for call in trainings if value(call, "-tr") == trainer]
        assert order == ["3d_lowres"] * 3 + ["3d_cascade_fullres"] * 3
    assert all("--npz" in call for call in trainings)
    names = [step(call) for call in calls[16:]]
    assert sorted(names) == sorted(
        ["find_best_configuration", *["evaluate"] * 4, "compare", "report"]
    )
    assert calls[16][2:] == [
        *("Dataset027_Brain", "-tr", *TRAINERS, "-c", "3d_cascade_fullres", "3d_lowres"),
        *("-p", "nnUNetPlans", "-f", "0", "1", "2"),
    ]
    study.run()
    assert study.calls() == []
    # Probabilities that are missing are made by a validation, not by a training.
    next(study.network("nnUNetTrainer", 2, "3d_lowres").glob("validation/*.npz")).unlink()
    (line,) = [line for line in study.status(capsys) if not line.endswith("  finished")]
    assert line.endswith("finished, without probabilities")
    (study.folder / "best_configuration" / "Dataset027_Brain.txt").unlink()
    study.run()
    (call,) = [call for call in study.calls() if step(call) == "train"]
    assert {"--val", "--npz"} < set(call)


@pytest.mark.slow
def test_rounds_on_what_the_networks_complete(study: Study) -> None:
    assert study.write("--cv", "2", "-tr", "nnUNetTrainerLeafDice", "--complete", "28", "29") == 0
    study.run()
    calls = study.calls()
    steps = [step(call) for call in calls]
    assert steps.count("train") == 6
    assert steps.count("plan_and_preprocess") == steps.count("splits") == 1
    assert steps.count("extract_fingerprint") == steps.count("complete") == 2
    assert steps.count("preprocess") == steps.count("find_best_configuration") == 3
    completions = [call for call in calls if step(call) == "complete"]
    assert [(value(call, "-d"), value(call, "--new-id")) for call in completions] == [
        ("Dataset027_Brain", "28"),
        ("Dataset028_BrainCompleted", "29"),
    ]
    assert {value(call, "-n") for call in completions} == {"BrainCompleted"}
    (comparison,) = [call for call in calls if step(call) == "compare"]
    datasets = ["Dataset027_Brain", "Dataset028_BrainCompleted", "Dataset029_BrainCompleted"]
    assert comparison[2:5] == [
        "nnUNetTrainerLeafDice "
        f"{name}=evaluation/{name}/nnUNetTrainerLeafDice__nnUNetPlans__3d_fullres"
        for name in datasets
    ]
    study.run()
    assert study.names() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "repeated"),
    [
        ("nnunet_labelset complete", ["extract_fingerprint", "preprocess"]),
        ("nnUNetv2_preprocess -d 28", ["preprocess"]),
        ("nnUNetv2_train Dataset028", []),
    ],
)
def test_a_round_goes_on_where_it_was_interrupted(
    study: Study, where: str, repeated: list[str]
) -> None:
    assert study.write("--cv", "2", "-tr", "nnUNetTrainerLeafDice", "--complete", "28") == 0
    study.run(code=1, BREAK=where)
    study.calls()
    study.run()
    names = study.names()
    assert [name for name in names if name in ("extract_fingerprint", "preprocess")] == repeated
    assert names.count("train") == 2
    assert "complete" not in names


def test_configurations_that_the_plans_lack_are_named_before_any_training(study: Study) -> None:
    assert study.write("--cv", "2", "-c", "2d", "3d_lowres") == 0
    assert "-c 3d_lowres: " in study.run(code=1, PLANNED="2d 3d_fullres")
    assert "train" not in study.names()


@pytest.mark.slow
def test_excluded_cases_in_old_splits_are_named(study: Study) -> None:
    assert study.write("-f", "0", "--exclude", "t1") == 0
    splits_file = study.root / "preprocessed" / "Dataset027_Brain" / "splits_final.json"
    splits_file.parent.mkdir(parents=True)
    splits_file.write_text('[{"train": ["t1"], "val": ["t2"]}]')
    assert "--exclude t1: " in study.run(code=1)
    splits_file.write_text('[{"train": ["t10"], "val": ["t2"]}]')
    study.run()


@pytest.mark.slow
def test_one_network_on_each_gpu_and_a_failure_leaves_the_other_at_work(study: Study) -> None:
    assert study.write("--gpus", "1,3") == 0
    broken = "3d_fullres 0 -tr nnUNetTrainer "
    study.run("--cores", "24", code=1, MEET="2", BREAK=broken)
    assert {path.read_text() for path in study.root.glob("results/*/*/fold_*/gpu")} == {"1", "3"}
    assert study.names().count("train") == 4
    study.run("--cores", "24")
    (call,) = [call for call in study.calls() if step(call) == "train"]
    assert "--c" in call


def test_ctrl_c_stops_the_trainings(study: Study) -> None:
    workflow = subprocess.Popen(
        study.command(),
        cwd=study.folder,
        env={**study.environment, "LINGER": "1"},
        start_new_session=True,  # a terminal signals the whole group
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (pids := [path.read_text() for path in study.root.rglob("pid") if path.read_text()]):
        assert workflow.poll() is None
        time.sleep(0.05)
    while workflow.poll() is None:  # Snakemake may miss one at work: press again
        os.killpg(workflow.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            workflow.wait(30)
    assert workflow.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids[0]), 0)
    study.run()


@pytest.mark.slow
def test_commands_are_called_with_flags_that_they_have(study: Study) -> None:
    assert study.write("--cap", "57.6") == 0
    study.run()
    options = ("--cv", "2", "-c", "2d", "3d_fullres", "--exclude", "t1")
    assert study.write("--cap", "57.6", *options) == 0
    shutil.rmtree(study.root / "preprocessed")
    shutil.rmtree(study.folder / "prepared")
    study.run()
    seen = set()
    for call in study.calls():
        seen.add(step(call))
        if call[0] == "nnunet_labelset":
            parser = argparse.ArgumentParser(exit_on_error=False)
            module_of(call[1]).configure(parser)
            parser.parse_args(call[2:])
        else:
            assert unknown_flags(call) == []
    assert seen == {
        *("plan_and_preprocess", "preprocess", "train", "predict", "ensemble"),
        *("splits", "evaluate", "compare", "report", "find_best_configuration"),
    }


def unknown_flags(call: list[str]) -> list[str]:
    planning = "experiment_planning/plan_and_preprocess_entrypoints.py"
    module = {
        "nnUNetv2_train": "run/run_training.py",
        "nnUNetv2_predict": "inference/predict_from_raw_data.py",
        "nnUNetv2_ensemble": "ensembling/ensemble.py",
        "nnUNetv2_plan_and_preprocess": planning,
        "nnUNetv2_preprocess": planning,
    }[call[0]]
    spec = find_spec("nnunetv2")
    assert spec is not None
    text = Path((spec.submodule_search_locations or [""])[0], module).read_text()
    flags = [word for word in call if word.startswith("-")]
    return [flag for flag in flags if not re.search(f"['\"]{flag}['\"]", text)]


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
