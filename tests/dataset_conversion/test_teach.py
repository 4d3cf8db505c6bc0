"""Predictions from anywhere fill in what the annotation leaves open, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset import Contract
from nnunet_labelset.cli import main
from nnunet_labelset.contract.completed import check_split
from tests.helpers import tiny
from tests.helpers.volumes import read_array, write_volume

NEW = "Dataset902_Filled"
CASES = list(tiny.CASES)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny data set, and predictions of its core from elsewhere, as value 7; 5 is unknown."""
    nnunet = tiny.NNUNet(tmp_path)
    for name, value in nnunet.environment.items():
        if name.lower().startswith("nnunet"):
            monkeypatch.setenv(name, value)
    tiny.write_raw(nnunet.raw)
    for seed, (case, protocol) in enumerate(tiny.CASES.items()):
        labels = tiny.volume(seed, protocol)[1]
        prediction = np.where(labels == 2, 7, 0).astype(np.uint8)
        prediction[0, 0, 0] = 5
        write_volume(tmp_path / "predictions" / f"{case}.nii.gz", prediction)
        for organ, value in (("CORE", 2), ("DOT", 3)):
            mask = (labels == value).astype(np.uint8)
            write_volume(tmp_path / "masks" / case / f"{organ}.nii.gz", mask)
    (tmp_path / "values.csv").write_text("prediction,label\n7,core\n")
    (tmp_path / "masks.csv").write_text("prediction;label\nCORE;core\nDOT.nii.gz;dot\n")
    return tmp_path


def fill(data: Path, folder: str = "predictions", table: str = "values.csv") -> int:
    words = ["--from", str(data / folder), "--labels", str(data / table)]
    return main(["complete", "-d", "901", *words, "--new-id", "902", "-n", "Filled", "-np", "1"])


def new_dataset(data: Path) -> tuple[dict, Contract]:
    content = json.loads((data / "raw" / NEW / "dataset.json").read_text())
    return content, Contract.from_dataset_json(content)


def sets_of(data: Path, case: str) -> np.ndarray:
    """What every voxel of a case may be, as bits."""
    content, contract = new_dataset(data)
    values = read_array(data / "raw" / NEW / content["dataset"][case]["label"])
    bits = [sum(2**leaf for leaf in labels) for labels in contract.protocol(case).sets]
    return np.array(bits)[values]


def test_only_what_is_open_is_filled(data: Path, capsys: pytest.CaptureFixture) -> None:
    assert fill(data) == 0
    output = capsys.readouterr().out
    assert "5" in output.split("does not list")[1].splitlines()[0]
    _, contract = new_dataset(data)
    for seed, (case, protocol) in enumerate(tiny.CASES.items()):
        truth = tiny.volume(seed, protocol)[1]
        before = sets_of(data, case)
        after = sets_of(data, f"{case}__completed")
        assert contract.cases[case] == protocol  # as people annotated it
        is_open = np.isin(before, [1, 2, 4, 8], invert=True)
        assert np.array_equal(before[~is_open], after[~is_open])
        assert not (after & ~before).any()
        assert (after[is_open & (truth == 2)] == 4).all()
        assert not (after[is_open & (truth != 2)] & 4).any()
    assert {"core", "dot"} <= set(contract.annotated("part_0__completed"))
    assert "dot" not in contract.annotated("merged_0__completed")


def test_masks_of_labels_are_read_too(data: Path) -> None:
    assert fill(data, "masks", "masks.csv") == 0
    truth = tiny.volume(CASES.index("part_0"), "no_core")[1]
    assert np.array_equal(sets_of(data, "part_0__completed"), 2**truth)


def test_masks_that_overlap_stay_a_label_set(data: Path) -> None:
    core = data / "masks" / "part_0" / "CORE.nii.gz"
    both = read_array(core) | read_array(core.with_name("DOT.nii.gz"))
    write_volume(core, both)
    assert fill(data, "masks", "masks.csv") == 0
    truth = tiny.volume(CASES.index("part_0"), "no_core")[1]
    after = sets_of(data, "part_0__completed")
    assert (after[truth == 3] == 4 + 8).all()
    assert (after[truth == 2] == 4).all()


def test_other_commands_know_the_result(data: Path, capsys: pytest.CaptureFixture) -> None:
    assert fill(data) == 0
    content, _ = new_dataset(data)
    splits = json.loads((data / "preprocessed" / NEW / "splits_final.json").read_text())
    for split in splits:
        check_split(content, split["train"], split["val"])
        assert set(split["val"]) <= set(CASES)
        assert any(case.endswith("__completed") for case in split["train"])
    assert main(["verify", "-d", "902", "-np", "1"]) == 0
    capsys.readouterr()
    assert main(["coverage", "-d", "902", "--format", "csv"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    (annotated,) = [row for row in rows if row[:2] == ["training", "all"]]
    assert annotated[2:] == ["8", "7", "4", "4"]  # as people drew them
    assert main(["explain", "-d", "902", "part_0__completed"]) == 0
    assert "'part_0'" in capsys.readouterr().out
    assert main(["splits", "-d", "902"]) == 1  # it would validate on completed copies
    labels = str(data / "raw" / NEW / "labelsCompleted")
    assert main(["evaluate", labels, labels, "-o", str(data / "scores")]) == 1
    assert "completed" in capsys.readouterr().err


def test_a_case_without_prediction_stays_as_annotated(
    data: Path, capsys: pytest.CaptureFixture
) -> None:
    (data / "predictions" / "part_1.nii.gz").unlink()
    assert fill(data) == 0
    assert "part_1" in capsys.readouterr().out.split("no prediction")[0].splitlines()[-1]
    content, _ = new_dataset(data)
    assert "part_1" in content["dataset"]
    assert "part_1__completed" not in content["dataset"]


def refused(data: Path, capsys: pytest.CaptureFixture, *arguments: str) -> str:
    assert fill(data, *arguments) == 1
    assert not (data / "raw" / NEW).exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_mistakes_are_one_line_and_leave_nothing(data: Path, capsys: pytest.CaptureFixture) -> None:
    assert "nowhere" in refused(data, capsys, "nowhere")
    (data / "empty").mkdir()
    assert "empty" in refused(data, capsys, "empty")
    table = data / "values.csv"
    for text, fact in (
        ("prediction,label\n7,cor\n", "core"),  # did you mean
        ("value,label\n7,core\n", "prediction"),
        ("prediction,label\n7,core\n7,dot\n", "7"),
        ("prediction,label\nliver,core\n", "liver"),
        ("prediction,label\n07,core\n", "07"),
        ("prediction,label\n7,background\n", "values.csv"),
    ):
        table.write_text(text)
        assert fact in refused(data, capsys)
    assert "CORES" in _with_table(data, capsys, "prediction,label\nCORES,core\n")
    write_volume(data / "masks" / "part_0" / "CORE.nii.gz", np.full(tiny.SHAPE, 3, np.uint8))
    write_volume(data / "masks" / "part_0" / "DOT.nii.gz", np.zeros((3, 3, 3), np.uint8))
    assert "DOT.nii.gz" in refused(data, capsys, "masks", "masks.csv")
    table.write_text("prediction,label\n7,core\n")
    options = ["--from", str(data / "predictions"), "--labels", str(table), "--new-id", "902"]
    assert main(["complete", "-d", "901", *options, "-n", "F", "--threshold", "0.9"]) == 1
    assert "--threshold" in capsys.readouterr().err
    write_volume(data / "predictions" / "part_0.nii.gz", np.full(tiny.SHAPE, np.nan))
    assert "part_0" in refused(data, capsys)
    assert main(["complete", "-d", "901", "--from", "x", "--new-id", "902", "-n", "F"]) == 1
    assert "--labels" in capsys.readouterr().err


def _with_table(data: Path, capsys: pytest.CaptureFixture, text: str) -> str:
    (data / "other.csv").write_text(text)
    return refused(data, capsys, "masks", "other.csv")


def test_a_label_that_occurs_nowhere_is_a_warning(
    data: Path, capsys: pytest.CaptureFixture
) -> None:
    (data / "values.csv").write_text("prediction,label\n7,core\n9,dot\n")
    assert fill(data) == 0
    assert "'dot'" in capsys.readouterr().out.split("WARNING")[1]


def test_images_need_no_annotation(data: Path) -> None:
    folder = data / "raw" / tiny.NAME
    shutil.rmtree(folder / "labelsTr")
    content = json.loads((folder / "dataset.json").read_text())
    del content["label_sets"]
    (folder / "dataset.json").write_text(json.dumps(content))
    assert fill(data, "masks", "masks.csv") == 0
    _, contract = new_dataset(data)
    assert contract.annotated("full_0") == ()
    assert (sets_of(data, "full_0") == 15).all()
    truth = tiny.volume(0)[1]
    after = sets_of(data, "full_0__completed")
    assert (after[truth == 2] == 4).all()
    assert (after[truth < 2] == 1 + 2).all()  # nobody asked about the shell
    assert main(["verify", "-d", "902", "-np", "1"]) == 0
