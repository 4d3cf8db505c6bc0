"""What an export leaves behind and does not touch; the whole of it runs in
tests/training/test_nnunet_commands.py.
"""

from __future__ import annotations

import json
from pathlib import Path

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.export import export
from nnunet_labelset.nnunet.raw import without_cases
from tests.helpers.errors import refusal


def test_no_case_is_named() -> None:
    block = {
        "version": 1,
        "protocols": {"secret_1": {"background": ["background", "liver"]}, "complete": {}},
        "cases": {"secret_1": "secret_1", "secret_2": "complete"},
    }
    content = {
        "labels": {"background": 0, "liver": 1},
        "name": "Livers",
        "release": ["secret_1"],
        "label_sets": block,
    }
    kept = without_cases({**content, "training": ["secret_1"], "reference": {"of": "secret_2"}})
    assert "secret" not in json.dumps(kept)
    assert kept["name"] == "Livers"
    protocols = {"protocol_1": {"background": ["background", "liver"]}, "complete": {}}
    assert kept["label_sets"] == {"version": 1, "protocols": protocols, "cases": {}}


def test_no_protocol_is_lost() -> None:
    protocols = {"protocol_1": {}, "case": {"background": ["background", "liver"]}}
    block = {"version": 1, "protocols": protocols, "cases": {"case": "case"}}
    kept = without_cases({"labels": {"background": 0, "liver": 1}, "label_sets": block})[
        "label_sets"
    ]["protocols"]
    assert kept == {"protocol_1": {}, "protocol_2": {"background": ["background", "liver"]}}


def test_regions_stay_a_contract() -> None:
    content = {
        "labels": {"background": 0, "whole": [1, 2], "core": 2},
        "regions_class_order": [1, 2],
        "label_sets": {
            "version": 2,
            "leaves": {"background": 0, "edema": 1, "core": 2},
            "protocols": {"outline": {"edema": ["edema", "core"]}},
            "cases": {"a": "outline"},
        },
    }
    before, after = (
        Contract.from_dataset_json(content),
        Contract.from_dataset_json(without_cases(content)),
    )
    assert (after.leaf_names, after.regions, after.protocols) == (
        before.leaf_names,
        before.regions,
        before.protocols,
    )
    assert not after.cases


def test_a_file_in_the_place_of_the_model_card_stays(tmp_path: Path) -> None:
    (tmp_path / "model.md").write_text("precious")
    with refusal(LabelSetError, "model.md", "--overwrite"):
        export(tmp_path, tmp_path / "model.zip", card=True)
    assert (tmp_path / "model.md").read_text() == "precious"
