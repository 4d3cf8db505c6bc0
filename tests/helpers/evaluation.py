"""Small label maps on disk, for the tests of evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from nnunet_labelset.evaluation.averages import evaluation
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.results import Case, Evaluation, Outcome, Score, Settings
from nnunet_labelset.io.files import write_json
from nnunet_labelset.io.records import to_json
from tests.helpers.volumes import write_volume

LABELS = {"background": 0, "white_matter": 1, "ventricles": 2, "corpus_callosum": 3, "ignore": 4}
LEAVES = ("white_matter", "ventricles", "corpus_callosum")
PROTOCOLS = {
    "full": {},
    "basic": {"ignore": ["ventricles", "corpus_callosum"]},
    "feta": {"white_matter": ["white_matter", "corpus_callosum"]},
}


def dataset(cases: dict[str, str], **more: object) -> dict:
    """A dataset.json with the contract of these tests."""
    block = {"version": 1, "protocols": PROTOCOLS, "cases": cases}
    return {
        "labels": LABELS,
        "file_ending": ".nii.gz",
        "channel_names": {"0": "T2"},
        "label_sets": block,
        **more,
    }


def write_dataset(folder: Path, cases: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").write_text(json.dumps(dataset(cases)))
    return folder / "dataset.json"


def write_labels(path: Path, array, spacing=(), **geometry) -> Path:
    """Write an array (z, y, x); `spacing` in array order too."""
    array = np.asarray(array)
    array = array.astype(np.uint8) if array.dtype.kind in "bi" else array
    return write_volume(path, array, tuple(reversed(spacing or ())), **geometry)


def row(*values: int) -> np.ndarray:
    """A volume of one row, for counts that can be done by hand."""
    return np.array([[values]], dtype=np.uint8)


Values = Mapping[str, Mapping[str, float | None]]  # metric by leaf


def made_score(values: Mapping[str, float | None], n_ref: int = 10, **more: object) -> Score:
    """A score with these metrics; the others are undefined."""
    fields = {
        "outcome": Outcome.SCORED,
        "dice_low": None,
        "dice_high": None,
        "tolerance": None,
        "tp": n_ref,
        "fp": 0,
        "fn": 0,
        "tn": 0,
        "n_ref": n_ref,
        "n_pred": n_ref,
    }
    fields |= {"values": dict.fromkeys(METRICS) | dict(values), **more}
    return Score(**{**fields, "outcome": Outcome(fields["outcome"])})


def made_case(case: str, leaves: Mapping[str, Score], **more: object) -> Case:
    fields = {
        **{
            "protocol": "full",
            "reference_file": f"ref/{case}.nii.gz",
            "prediction_file": f"pred/{case}.nii.gz",
        },
        **{
            "shape": (4, 4, 4),
            "spacing": (1.0, 1.0, 1.0),
            "known": 100,
            "known_wrong": 0,
            "known_wrong_volume": 0.0,
        },
        **{"files": ((1, 1), (1, 1)), "meaning": "", "reference_digest": ""},
        **{"worst_distance": None},
    }
    return Case(case, **{**fields, "leaves": dict(leaves), **more})


def made_evaluation(
    cases: Sequence[Case], metrics: Sequence[str] = ("dice",), **settings: object
) -> Evaluation:
    """An evaluation of cases that no image was read for."""
    given = {
        **{
            "reference_folder": "ref",
            "prediction_folder": "pred",
            "dataset_json": "dataset.json",
            "annotated": None,
        },
        **{
            "file_ending": ".nii.gz",
            "metrics": tuple(metrics),
            "cap": None,
            "tolerance": None,
            "tolerances": {},
            **settings,
        },
    }
    leaves = list(cases[0].leaves)
    return evaluation(
        cases,
        {name: value for value, name in enumerate(leaves, 1)},
        leaves,
        {},
        {},
        Settings(**given),
    )


def save_evaluation(folder: Path, content: Evaluation | dict) -> str:
    write_json(folder / "metrics.json", to_json(content))
    return str(folder)
