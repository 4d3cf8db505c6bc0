"""A trained model learns one more structure: nnU-Net's own commands on a data set with a new
leaf.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nnunet_labelset.cli import main
from nnunet_labelset.trainers.leaf_dice import nnUNetTrainerLeafDice
from tests.helpers import tiny
from tests.helpers.errors import refusal

NEW = "Dataset902_More"
OLD_TRAINER = "nnUNetTrainer_short"  # plain nnU-Net
OLD_LABELS = {"background": 0, "shell": 1, "core": 2, "dot": 3, "ignore": 4}
# other values: names count
NEW_LABELS = {"background": 0, "dot": 1, "rim": 2, "core": 3, "shell": 4, "ignore": 5}
PROTOCOLS = {"rim_only": {"background": ["background", "dot", "core", "shell"]}, "full": {}}
VALUES = {"full": [0, 4, 3, 1, 2], "rim_only": [0, 0, 0, 0, 2]}
CASES = {"rim_0": "rim_only", "rim_1": "rim_only", "full_0": "full"}


# what shell, core, dot and rim are stored as
RIM_LAST = {"full": [0, 1, 2, 3, 4], "rim_only": [0, 0, 0, 0, 4]}


def write_new(raw: Path, values: dict[str, list[int]] = VALUES, **changes: Any) -> None:
    folder = raw / NEW
    for seed, (case, protocol) in enumerate(CASES.items()):
        image, labels = tiny.volume(300 + seed)
        labels[-3:] = 4  # the rim
        labels = np.array(values[protocol], np.uint8)[labels]
        tiny.write_volume(folder / "imagesTr" / f"{case}_0000.nii.gz", image)
        tiny.write_volume(folder / "labelsTr" / f"{case}.nii.gz", labels)
    tiny.write_dataset_json(folder, NEW_LABELS, PROTOCOLS, CASES, **changes)


def rows(checkpoint: Path, layer: str) -> dict[str, torch.Tensor]:
    content = torch.load(checkpoint, weights_only=False)
    names = content.get("output_names") or [*OLD_LABELS][:4]
    return dict(zip(names, content["network_weights"][layer], strict=True))


@pytest.fixture(scope="module")
def model(prepared: tiny.NNUNet) -> Path:
    """A plain nnU-Net model of the old labels."""
    prepared.train("3d_fullres", "all", OLD_TRAINER)
    return prepared.model_folder(OLD_TRAINER)


def test_the_whole_road(prepared: tiny.NNUNet, model: Path, tmp_path: Path) -> None:
    write_new(prepared.raw)
    done = prepared.run("nnunet_labelset", "extend", "-m", model, "-d", 902, "-p", "extended")
    assert "new: rim" in done.stdout
    start = prepared.preprocessed / NEW / "start_extended_3d_fullres.pth"
    for layer in ("decoder.seg_layers.0.weight", "decoder.seg_layers.1.bias"):
        old, new = rows(model / "fold_all" / "checkpoint_final.pth", layer), rows(start, layer)
        assert list(new) == ["background", "dot", "rim", "core", "shell"]
        assert all(torch.equal(new[name], old[name]) for name in old)
        assert torch.equal(new["rim"], old["background"] - (2 if layer.endswith("bias") else 0))
    for command in [
        line.split() for line in done.stdout.splitlines() if line.startswith("  nnUNetv2")
    ]:
        prepared.run(*command, "-np", 1)
    command = next(
        line.split()
        for line in done.stdout.splitlines()
        if line.startswith("  nnunet_labelset train")
    )
    # cases of the rim alone leave the old labels open
    assert "nnUNetTrainerLabelSetTeacher" in command
    command[command.index("-tr") + 1] = "nnUNetTrainerLeafDiceCE_short"
    command[command.index("0")] = "all"
    log = prepared.run(*command, "-device", "cpu", nnUNet_n_proc_DA="0").stdout
    assert re.search(rf"Output layers.* 5 .*{re.escape(str(start))}", log)
    trained = prepared.results / NEW / "nnUNetTrainerLeafDiceCE_short__extended__3d_fullres"
    network = torch.load(trained / "fold_all" / "checkpoint_final.pth", weights_only=False)[
        "network_weights"
    ]
    first = torch.load(start, weights_only=False)["network_weights"]
    for (
        key,
        weight,
    ) in first.items():  # two steps with AdamW at 1e-3 move a weight by 2e-3 and a bit
        assert (network[key] - weight).abs().max() < 5e-3, key
    archive = tmp_path / "model.zip"
    arguments = ["-d", 902, "-tr", "nnUNetTrainerLeafDiceCE_short", "-p", "extended", "-o", archive]
    assert "segmentation" in prepared.run("nnunet_labelset", "export", *arguments).stdout
    images = prepared.raw / tiny.NAME / "imagesTs"
    options = [
        "-d",
        902,
        "-c",
        "3d_fullres",
        "-f",
        "all",
        "-tr",
        "nnUNetTrainerLeafDiceCE_short",
        "-p",
        "extended",
    ]
    workers = ["-npp", 1, "-nps", 1, "-device", "cpu", "--disable_tta"]
    prepared.run("nnUNetv2_predict", "-i", images, "-o", tmp_path / "predicted", *options, *workers)
    assert len(list((tmp_path / "predicted").glob("*.nii.gz"))) == 2


def extend(nnunet: tiny.NNUNet, model: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    for name, value in nnunet.environment.items():
        if name.lower().startswith("nnunet"):
            monkeypatch.setenv(name, value)
    return main(["extend", "-m", str(model), "-d", "902", *options])


def test_from_a_zip(
    prepared: tiny.NNUNet, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_new(prepared.raw)
    archive = tmp_path / "model.zip"
    with zipfile.ZipFile(archive, "w") as file:  # as nnUNetv2_export_model_to_zip writes it
        for path in (
            model / "plans.json",
            model / "dataset.json",
            model / "fold_all" / "checkpoint_final.pth",
        ):
            file.write(path, path.relative_to(prepared.results))
        for name in ("plans.json", "postprocessing.pkl"):  # of a model with postprocessing
            file.writestr(
                f"{model.relative_to(prepared.results)}/crossval_results_folds_all/{name}", "{}"
            )
    assert extend(prepared, archive, monkeypatch, "-p", "from_zip") == 0
    start = prepared.preprocessed / NEW / "start_from_zip_3d_fullres.pth"
    assert len(rows(start, "decoder.seg_layers.0.bias")) == 5
    plans = json.loads((prepared.preprocessed / NEW / "from_zip.json").read_text())
    assert plans["dataset_name"] == NEW
    assert plans["configurations"]["3d_fullres"]["data_identifier"] == "from_zip_3d_fullres"


def test_a_start_of_another_network_is_one_line(
    in_process: tiny.NNUNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nnU-Net would stop with an assertion, deep inside."""
    start = tmp_path / "start.pth"
    monkeypatch.setattr(sys, "argv", ["nnUNetv2_train", "-pretrained_weights", str(start)])
    trainer = tiny.make(in_process, nnUNetTrainerLeafDice)
    with refusal(SystemExit, start):
        trainer.initialize()
    weights = {key: value[..., :1] for key, value in trainer.network.state_dict().items()}
    torch.save({"network_weights": weights, "output_names": list(trainer.outputs.names)}, start)
    with refusal(SystemExit, start, "network", "'extend'"):
        tiny.make(in_process, nnUNetTrainerLeafDice).initialize()
    torch.save({"network_weights": weights, "output_names": ["background", "liver"]}, start)
    with refusal(SystemExit, start, "['background', 'liver']", "nnunet_labelset extend"):
        tiny.make(in_process, nnUNetTrainerLeafDice).initialize()


def test_a_model_of_regions(prepared_regions: tiny.NNUNet, tmp_path: Path) -> None:
    """Of plain nnU-Net; a new region has no background to start from, and starts as unlikely
    everywhere.
    """
    nnunet = prepared_regions
    nnunet.train("3d_fullres", "all", OLD_TRAINER)
    model = nnunet.model_folder(OLD_TRAINER)
    protocol = {"background": ["background", "shell", "core", "dot"]}
    block = {
        "version": 2,
        "leaves": {"background": 0, "shell": 1, "core": 2, "dot": 3, "rim": 4},
        "protocols": {"full": {}, "rim_only": protocol},
        "cases": CASES,
    }
    labels = {"background": 0, "rim": 4, "whole": [1, 2, 3], "inner": [2, 3], "dot": 3, "ignore": 5}
    write_new(
        nnunet.raw, RIM_LAST, labels=labels, regions_class_order=[4, 1, 2, 3], label_sets=block
    )
    done = nnunet.run("nnunet_labelset", "extend", "-m", model, "-d", 902, "-p", "extended")
    start = torch.load(
        nnunet.preprocessed / NEW / "start_extended_3d_fullres.pth", weights_only=False
    )
    old = torch.load(model / "fold_all" / "checkpoint_final.pth", weights_only=False)[
        "network_weights"
    ]
    assert start["output_names"] == ["rim", "whole", "inner", "dot"]
    for part, first in (("weight", 0.0), ("bias", -2.0)):
        rows = start["network_weights"][f"decoder.seg_layers.1.{part}"]
        assert torch.equal(rows[1:], old[f"decoder.seg_layers.1.{part}"])
        assert (rows[0] == first).all()
    for command in [
        line.split() for line in done.stdout.splitlines() if line.startswith("  nnUNetv2")
    ]:
        nnunet.run(*command, "-np", 1)
    trainer = "nnUNetTrainerLabelSet_short"
    command = next(
        line.split()
        for line in done.stdout.splitlines()
        if line.startswith("  nnunet_labelset train")
    )
    command[command.index("nnUNetTrainerLabelSet")] = trainer
    command[command.index("0")] = "all"
    assert (
        "Output layers of 4 labels restored"
        in nnunet.run(*command, "-device", "cpu", nnUNet_n_proc_DA="0").stdout
    )
    export = [
        "nnunet_labelset",
        "export",
        "-d",
        902,
        "-tr",
        trainer,
        "-p",
        "extended",
        "-o",
        tmp_path / "model.zip",
    ]
    assert "segmentation" in nnunet.run(*export).stdout


@pytest.mark.parametrize(
    ("changes", "options", "facts"),
    [
        ({"channel_names": {"0": "T2", "1": "T1"}}, [], ["['T2']", "['T2', 'T1']"]),
        ({"channel_names": {"0": "CT"}}, [], ["['T2']", "['CT']"]),
        ({"labels": {"background": 0, "liver": 1}}, [], ["shell", "liver"]),
        ({"labels": {**NEW_LABELS, "Shell": 4, "shell": 6}}, [], ["'ignore'", "highest"]),
        ({"labels": {"background": 0, "shel": 1, "core": 2, "dot": 3}}, [], ["'shell'", "'shel'"]),
        ({"label_sets": None}, [], ["'label_sets'"]),
        ({}, ["-p", "my__plans"], ["'my__plans'", "'__'"]),
        ({}, ["-p", "../plans"], ["'../plans'"]),
        ({}, ["-f", "3"], ["fold 3", "all"]),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    prepared: tiny.NNUNet,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    changes: dict[str, Any],
    options: list[str],
    facts: list[str],
) -> None:
    changes = {
        "label_sets": {
            "version": 1,
            "protocols": {"full": {}},
            "cases": dict.fromkeys(CASES, "full"),
        },
        **changes,
    }
    write_new(prepared.raw, **changes)
    before = set((prepared.preprocessed).rglob("*"))
    assert extend(prepared, model, monkeypatch, "-p", "wrong", *options) == 1
    error = capsys.readouterr().err
    assert [fact for fact in facts if fact not in error] == []
    assert error.count("\n") == 1
    assert set((prepared.preprocessed).rglob("*")) == before


def test_no_model(
    prepared: tiny.NNUNet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    write_new(prepared.raw)
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 nothing")
    (tmp_path / "renamed" / "fold_0").mkdir(parents=True)
    for name in ("plans.json", "dataset.json", "fold_0/checkpoint_final.pth"):
        (tmp_path / "renamed" / name).write_text("{}")
    for path, message in (
        (tmp_path, "no model"),
        (tmp_path / "renamed", "no model"),
        (tmp_path / "broken.zip", "not a zip that nnU-Net exported"),
    ):
        assert extend(prepared, path, monkeypatch) == 1
        assert message in capsys.readouterr().err
