"""What to do when nnU-Net's copy of dataset.json is older than the data set: copy it, unless label
maps changed too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_json
from nnunet_labelset.training.checks import stopping_at_contract
from nnunet_labelset.training.short import setting
from tests.helpers.errors import refusal

COPY = {"labels": {"background": 0, "liver": 1}}
BLOCK = {"label_sets": {}}


@pytest.mark.parametrize(
    ("raw", "folder", "advice"),
    [
        ({**COPY, **BLOCK}, "labelsTr", "cp "),
        (
            {**COPY, **BLOCK},
            "before_annotate/step_1/labelsTr",
            "run nnUNetv2_plan_and_preprocess again",
        ),
        (
            {**BLOCK, "labels": {**COPY["labels"], "ignore": 2}},
            "labelsTr",
            "run nnUNetv2_plan_and_preprocess again",
        ),
    ],
)
def test_a_copy_is_not_enough_when_label_maps_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: dict, folder: str, advice: str
) -> None:
    for variable in ("nnUNet_raw", "nnUNet_preprocessed"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    (tmp_path / "nnUNet_raw" / "Dataset001_A" / folder).mkdir(parents=True)
    write_json(tmp_path / "nnUNet_raw" / "Dataset001_A" / "dataset.json", raw)
    with (
        refusal(SystemExit, "no block", tmp_path, advice),
        stopping_at_contract("Dataset001_A", COPY),
    ):
        raise LabelSetError("no block")


@pytest.mark.parametrize("text", ["ten", "", "0", "-3", "1.5"])
def test_a_length_that_is_no_number_is_one_line(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("nnunet_labelset_epochs", text)
    with refusal(SystemExit, "nnunet_labelset_epochs", "at least 1", f"'{text}'"):
        setting("epochs", 10)
    monkeypatch.setenv("nnunet_labelset_seed", "0")
    assert setting("seed", 0) == 0
