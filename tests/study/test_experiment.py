"""The scripts of a study are really run, with stand-ins for the commands on PATH that record how they were called."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnunet_labelset.cli import main, module_of
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.study.experiment import parse_folds
from nnunet_labelset.study.experiment_scripts import assignments

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="the scripts need bash")

TRAINERS = ["nnUNetTrainer", "nnUNetTrainerLeafDice"]
STAND_IN = """#!{python} -S
import json, os, sys
from pathlib import Path
name, words = Path(sys.argv[0]).name, sys.argv[1:]
with open(os.environ["RECORD"], "a") as record:
    record.write(json.dumps([name, *words]) + "\\n")
def flag(word):
    return words[words.index(word) + 1]
def write(path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
# A call that contains this text is interrupted.
broken = "BREAK" in os.environ and os.environ["BREAK"] in " ".join([name, *words])
raw, preprocessed, results = (Path(os.environ["nnUNet_" + n]) for n in ("raw", "preprocessed", "results"))
if name == "nnUNetv2_plan_and_preprocess":
    (folder,) = raw.glob(f"Dataset{{int(flag('-d')):03d}}_*")
    write(preprocessed / folder.name / "nnUNetPlans.json", "{{}}")
elif name == "nnUNetv2_train":
    folder = results / words[0] / f"{{flag('-tr')}}__{{flag('-p')}}__{{words[1]}}" / f"fold_{{words[2]}}"
    if broken:
        write(folder / "checkpoint_best.pth")
        sys.exit(1)
    if "--val" not in words:
        write(folder / "checkpoint_final.pth")
        write(folder / "checkpoint_best.pth")
    if "NO_VALIDATION" not in os.environ:
        write(folder / "validation" / "summary.json")
elif name == "nnUNetv2_predict":
    cases = sorted(path.name[:-12] for path in Path(flag("-i")).glob("*_0000.nii.gz"))
    for case in cases[: 1 if broken else None]:
        write(Path(flag("-o")) / f"{{case}}.npz")
elif name == "nnUNetv2_ensemble":
    folders = [Path(word) for word in words[1 : words.index("-o")]]
    write(Path(flag("-o")) / "result.nii.gz", " ".join(str(len(list(folder.glob("*.npz")))) for folder in folders))
elif name == "nnunet_labelset" and words[0] == "trainers":
    print("/the trainers")
elif name == "nnunet_labelset" and words[0] == "splits":
    splits = [{{"train": [], "val": []}}] * int(flag("--random"))
    write(preprocessed / flag("-d") / "splits_final.json", json.dumps(splits))
elif name == "nnunet_labelset" and words[0] == "evaluate":
    assert os.environ["nnUNet_extTrainer"].startswith("/the trainers"), os.environ["nnUNet_extTrainer"]
    write(Path(flag("-o")) / "metrics.json")
elif name == "sbatch":
    job = next(i for i, word in enumerate(words) if word.endswith("run.sh"))
    tasks = [word.split("=0-")[1] for word in words if word.startswith("--array=")]
    for task in range(int(tasks[0]) + 1) if tasks else [None]:
        environment = {{**os.environ, **({{}} if task is None else {{"SLURM_ARRAY_TASK_ID": str(task)}})}}
        import subprocess
        subprocess.run(["bash", *words[job:]], env=environment, check=True, stdout=sys.stderr)
    print(sum(1 for line in open(os.environ["RECORD"]) if "sbatch" in line))
if broken:
    sys.exit(1)
"""
COMMANDS = (
    *("nnUNetv2_plan_and_preprocess", "nnUNetv2_train", "nnUNetv2_predict", "nnUNetv2_ensemble"),
    *("nnunet_labelset", "sbatch"),
)


class Study:
    """A data set with two test cases in folders with awkward names, and the scripts of a study of it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root / 'it\'s a $tudy; `x` "y"'
        self.folder = self.root / "out put"
        self.record = self.root / "record"
        raw = self.root / "raw" / "Dataset027_Brain"
        for name in ("imagesTs/a_0000", "imagesTs/b_0000", "labelsTs/a", "labelsTs/b"):
            path = raw / f"{name}.nii.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        block = {"version": 1, "protocols": {"full": {}}, "cases": {"a": "full", "b": "full"}}
        labels = {"background": 0, "tissue": 1, "ignore": 2}
        (raw / "dataset.json").write_text(json.dumps({"labels": labels, "label_sets": block, "file_ending": ".nii.gz"}))
        programs = self.root / "bin"
        programs.mkdir()
        for command in COMMANDS:
            (programs / command).write_text(STAND_IN.format(python=sys.executable))
            (programs / command).chmod(0o755)
        for variable in ("raw", "preprocessed", "results"):
            monkeypatch.setenv(f"nnUNet_{variable}", str(self.root / variable))
        monkeypatch.delenv("nnUNet_extTrainer", raising=False)
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "RECORD": str(self.record)}

    def write(self, *options: str) -> int:
        return main(["experiment", "-d", "27", "-o", str(self.folder), "-tr", *TRAINERS, "-f", "0-1", *options])

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
        lines = [json.loads(line) for line in self.record.read_text().splitlines()] if self.record.exists() else []
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
    assert [(value(call, "-tr"), call[3]) for call in trainings] == [(t, f) for t in TRAINERS for f in "01"]
    assert not any("--c" in call or "--val" in call for call in trainings)
    assert calls[1] == ["nnunet_labelset", "splits", "-d", "Dataset027_Brain", "--random", "2", "--val-fraction", "0.1"]
    for trainer in TRAINERS:
        # Both networks had predicted both test cases when their probabilities were averaged.
        assert (study.folder / "predictions" / trainer / "ensemble" / "result.nii.gz").read_text() == "2 2"
    assert not list(study.folder.rglob("*.npz")), "probabilities are deleted after use"
    assert "+ nnUNetv2_train Dataset027_Brain 3d_fullres 0 -tr nnUNetTrainer " in output
    study.bash()
    assert study.names() == FINISH, "a second run repeats nothing but the table and the report"


def test_interrupted_training_continues(study: Study) -> None:
    study.bash(code=1, BREAK="3d_fullres 1 -tr nnUNetTrainerLeafDice")
    assert study.names() == ["nnUNetv2_plan_and_preprocess", "nnunet_labelset splits", *["nnUNetv2_train"] * 4]
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
    if where == "evaluate":  # the stand-in is interrupted after the file is written; nothing is to be done again
        (study.folder / "evaluation" / TRAINERS[0] / "metrics.json").unlink()
    study.bash()
    names = study.names()
    assert [name for name in names if name == "nnUNetv2_predict"] == again
    assert names[-2:] == FINISH
    for trainer in TRAINERS:
        assert (study.folder / "predictions" / trainer / "ensemble" / "result.nii.gz").read_text() == "2 2"


def test_interrupted_preparation_is_repeated_and_that_of_others_is_kept(study: Study) -> None:
    study.bash("prepare", code=1, BREAK="nnUNetv2_plan_and_preprocess")
    study.calls()
    study.bash("prepare")
    assert study.names() == ["nnUNetv2_plan_and_preprocess", "nnunet_labelset splits"]
    study.bash("prepare")
    assert study.names() == []


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
    assert study.names() == ["nnUNetv2_predict"] * 2 + ["nnUNetv2_ensemble", "nnunet_labelset evaluate"]


def test_fewer_folds_renew_the_ensemble(study: Study) -> None:
    study.bash()
    study.calls()
    assert study.write("-f", "1") == 0
    study.bash()
    assert study.names() == ["nnUNetv2_predict"] * 2 + ["nnUNetv2_ensemble", "nnunet_labelset evaluate"] * 2 + FINISH


def test_slurm_runs_the_same_study(study: Study) -> None:
    assert study.write("-num_gpus", "2") == 0
    study.bash("--partition=gpu", "--time=1-0", script="submit_slurm.sh")
    calls = study.calls()
    jobs = [call for call in calls if call[0] == "sbatch"]
    assert [call[-1] for call in jobs] == ["prepare", "train", "predict", "ensemble", "finish"]
    assert all("--partition=gpu" in call and "--time=1-0" in call for call in jobs)
    assert [[word for word in call if word.startswith(("--array", "--dependency", "--gres"))] for call in jobs] == [
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
    assert "'nnUNetTrainerX' is not part of this study" in study.bash("train", "nnUNetTrainerX", code=1)
    assert "unknown step 'go'" in study.bash("go", code=1)
    splits_file = study.root / "preprocessed" / "Dataset027_Brain" / "splits_final.json"
    splits_file.parent.mkdir(parents=True)
    splits_file.write_text('[{"train": ["a"], "val": ["b"]}]')
    assert "fold 1:" in study.bash("prepare", code=1)
    study.environment["PATH"] = "/usr/bin:/bin"
    assert "is not on PATH" in study.bash(code=1)


@pytest.mark.parametrize("script", ["run.sh", "submit_slurm.sh"])
def test_scripts_are_clean(study: Study, script: str) -> None:
    subprocess.run(["bash", "-n", str(study.folder / script)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--shell=bash", "--severity=style", str(study.folder / script)], check=True)


def test_commands_are_called_with_flags_that_they_have(study: Study) -> None:
    assert study.write("--cap", "57.6") == 0
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
            assert [word for word in call if word.startswith("-") and not re.search(f"['\"]{word}['\"]", text)] == []
    assert seen == {"splits", "evaluate", "compare", "report"}


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
        (["-p", "a b"], "plans 'a b'"),
        (["-d", "28"], "no data set 28"),
    ],
)
def test_bad_input_is_one_line(study: Study, capsys: pytest.CaptureFixture, options: list[str], message: str) -> None:
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


def test_own_trainers_are_known(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    (study.root / "own").mkdir()
    (study.root / "own" / "mine.py").write_text("class nnUNetTrainerMine(nnUNetTrainer):\n    pass\n")
    assert study.write("-tr", "nnUNetTrainerMine") == 1
    monkeypatch.setenv("nnUNet_extTrainer", str(study.root / "own"))
    assert study.write("-tr", "nnUNetTrainerMine") == 0


def test_folds() -> None:
    assert parse_folds(["0-2", "1", "all", "7"]) == ["0", "1", "2", "all", "7"]
    with pytest.raises(LabelSetError, match="0-9"):
        parse_folds(["-1"])


@given(st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])), min_size=1, max_size=5))
def test_any_text_survives_the_shell(words: list[str]) -> None:
    script = assignments({"words": words, "first": words[0]}) + 'printf \'%s\\0\' "${words[@]}" "$first"'
    printed = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert printed.decode().split("\0")[:-1] == [*words, words[0]]
