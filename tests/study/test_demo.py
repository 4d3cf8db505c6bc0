"""The demo, whole but tiny: two methods, two steps each, on a handful of phantoms."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.evaluation.statistics import describe
from nnunet_labelset.study import demo
from nnunet_labelset.study.phantom import data as phantom_data

FEW = {"atlas": 3, "controls": 2, "csf": 1, "callosum": 1, "spina_bifida": 2, "test": 1, "feta": 1}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(phantom_data.SIZES, "small", FEW)
    monkeypatch.setattr(demo, "SMALL", demo.Size("small", 1, 2, ("0",), (16, 16, 16), (4, 8, 8)))
    monkeypatch.setattr(demo, "METHODS", {name: demo.METHODS[name] for name in demo.ENSEMBLED})
    return tmp_path / "labelset_demo"


def test_data_only(tiny: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["demo", "--data-only"]) == 0
    assert sorted(path.name for path in (tiny / "data" / "atlas").iterdir()) == [
        f"atlas_{i:03d}" for i in (1, 2, 3)
    ]
    assert not (tiny / "nnUNet_raw").exists()


@pytest.mark.slow
def test_the_whole_road_and_again(tiny: Path, capfd: pytest.CaptureFixture) -> None:
    assert main(["demo"]) == 0
    first = capfd.readouterr().out
    for command in ("convert", "verify", "coverage", "splits", "evaluate", "compare", "report"):
        assert f"$ nnunet_labelset {command} " in first
    for command in ("plan_and_preprocess", "preprocess", "train", "predict", "ensemble"):
        assert re.search(rf"\$ .*nnUNetv2_{command} ", first)
    # One line per training, its log in the folder.
    for trainer in demo.METHODS.values():
        assert f"  {trainer}: trained" in first
    assert "Pseudo dice" not in first
    logs = [path.read_text() for path in (tiny / "logs").glob("*_nnUNetv2_train.txt")]
    assert len(logs) == len(demo.METHODS)
    assert all("Epoch 0" in log for log in logs)
    end = first.split("minutes.")[1].strip().splitlines()
    assert len(end) <= 12
    assert not [line for line in end if "|" in line]
    assert end[-1].endswith("report.html")
    assert "<svg" in (tiny / "report.html").read_text()
    assert main(["demo"]) == 0
    second = capfd.readouterr().out
    assert second.count("done before") == len(re.findall(r"^\$ (?!export)", first, re.M))
    assert second.split("minutes.")[1] == first.split("minutes.")[1]


def test_summary_names_the_best_and_two_methods_per_population(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = {"plain": (0.7, 0.8, 0.6), "ours": (0.85, 0.9, 0.8), "third": (0.8, 0.95, 0.65)}
    evaluations = {name: evaluation(*values) for name, values in dice.items()}
    monkeypatch.setattr(demo, "load_results", lambda _: (evaluations, {}))
    lines = list(demo.summary([(name, tmp_path) for name in dice]))
    assert "ours, 15.0 points ahead of plain" in lines[0]
    assert [line.split() for line in lines[1:7]] == [
        ["Control", "(4", "test", "cases)"],
        ["third", "95.0"],
        ["plain", "80.0"],
        ["Pathological", "(4", "test", "cases)"],
        ["ours", "80.0"],
        ["plain", "60.0"],
    ]


def evaluation(overall: float, control: float, pathological: float) -> SimpleNamespace:
    """The part of an evaluation that the summary reads."""

    def averages(dice: float) -> SimpleNamespace:
        return SimpleNamespace(n_cases=4, mean={"dice": describe([dice])})

    groups = {"Control": averages(control), "Pathological": averages(pathological)}
    return SimpleNamespace(
        averages=SimpleNamespace(overall=averages(overall), groups={"Pathology": groups})
    )


@pytest.mark.slow
def test_a_failing_step_is_named_and_repeated(tiny: Path, capfd: pytest.CaptureFixture) -> None:
    assert main(["demo", "--data-only"]) == 0
    (tiny / "data" / "annotated.csv").unlink()
    assert main(["demo"]) == 1
    captured = capfd.readouterr()
    assert re.search(
        "error: failed: nnunet_labelset convert .*run the demo again",
        captured.err,
    )
    assert "Traceback" not in captured.err
    assert not list((tiny / "logs").glob("*.done"))
