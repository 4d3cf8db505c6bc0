"""`explain` shows at a glance what a declaration says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.cli import main
from tests.helpers.volumes import write_volume

LABELS = {"background": 0, "liver": 1, "spleen": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    raw = tmp_path / "Dataset010_Organs"
    for case, values in (("site1_a", [0, 1, 2]), ("site2_b", [0, 1, 1])):
        array = np.zeros((3, 3, 3), np.uint8)
        array[0, 0] = values
        write_volume(raw / "labelsTr" / f"{case}.nii.gz", array)
        write_volume(raw / "imagesTr" / f"{case}_0000.nii.gz", array.astype(np.float32))
    content = {
        "labels": LABELS,
        "channel_names": {"0": "CT"},
        "numTraining": 2,
        "file_ending": ".nii.gz",
    }
    (raw / "dataset.json").write_text(json.dumps(content))
    return raw


def explain(capsys: pytest.CaptureFixture, folder: Path, *cases: str) -> str:
    capsys.readouterr()
    assert main(["explain", "-d", str(folder), *cases]) == 0
    return capsys.readouterr().out


def test_values_labels_and_reasons_of_a_case(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["annotate", "-d", str(folder), "--missing", "spleen", "--in", "site2_*"]) == 0
    text = explain(capsys, folder, "site2_b")
    rows = {line.split()[0]: line.split(maxsplit=2)[-1] for line in text.splitlines() if line}
    assert rows["0"] == "background or spleen"
    assert rows["1"] == "liver"
    assert "spleen: not annotated" in text
    assert "liver: annotated" in text
    assert "--missing" in text.splitlines()[0]
    assert "spleen: annotated" in explain(capsys, folder, "site1_a")


def test_groups_with_what_they_annotate(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["annotate", "-d", str(folder), "--missing", "spleen", "--in", "site2_*"]) == 0
    lines = explain(capsys, folder).splitlines()
    place = lines.index("without spleen (1 case(s))")
    assert lines[place + 1].split()[-1] == "liver"
    assert lines[place + 2].split()[-1] == "spleen"


def test_an_unknown_case_is_one_line(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["annotate", "-d", str(folder), "--fully-annotated"]) == 0
    assert main(["explain", "-d", str(folder), "site3_x"]) == 1
    assert "site3_x" in capsys.readouterr().err
