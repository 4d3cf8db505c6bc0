"""Many models into one: real models predict images, and what they say becomes a data set."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset import Contract
from nnunet_labelset.cli import main
from nnunet_labelset.dataset_conversion.statements import combined
from tests.helpers import tiny
from tests.helpers.volumes import read_array

NEW = "Dataset910_One"
ALL = frozenset(range(4))


def write_model(nnunet: tiny.NNUNet, labels: dict[str, int], folder: Path) -> Path:
    """Return the folder of an untrained plain nnU-Net with these labels."""
    dataset = tiny.dataset_json(nnunet)
    dataset["labels"] = labels
    del dataset["label_sets"]
    trainer = tiny.make(nnunet, nnUNetTrainer, dataset, fold="all")
    trainer.initialize()
    model = folder / Path(trainer.output_folder).parent.name
    (model / "fold_all").mkdir(parents=True)
    trainer.save_checkpoint(str(model / "fold_all" / "checkpoint_final.pth"))
    (model / "dataset.json").write_text(json.dumps(dataset))
    shutil.copy(nnunet.preprocessed / tiny.NAME / "nnUNetPlans.json", model / "plans.json")
    return model


@pytest.fixture
def models(in_process: tiny.NNUNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two untrained networks: one knows the core, the other one dot, core and a foreign label."""
    raw = tmp_path / "raw"
    shutil.copytree(in_process.raw / tiny.NAME, raw / tiny.NAME)
    shutil.rmtree(raw / tiny.NAME / "labelsTr")
    content = json.loads((raw / tiny.NAME / "dataset.json").read_text())
    del content["label_sets"]
    (raw / tiny.NAME / "dataset.json").write_text(json.dumps(content))
    first = {"background": 0, "core": 1}
    second = {"background": 0, "dot": 1, "foreign": 2, "core": 3}
    folders = [
        write_model(in_process, labels, tmp_path / name)
        for name, labels in (("a", first), ("b", second))
    ]
    archive = tmp_path / "b.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in folders[1].rglob("*"):
            file.write(path, path.relative_to(folders[1].parent))
    monkeypatch.setenv("nnUNet_raw", str(raw))
    (tmp_path / "preprocessed").mkdir()
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "preprocessed"))
    return [folders[0], archive]


def extend(models: list[Path], *options: str) -> int:
    words = [word for model in models for word in ("-m", str(model))]
    return main(["extend", *words, "-d", "901", "-np", "1", *options])


def test_two_models_become_one_data_set(
    models: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    from nnunet_labelset.dataset_conversion import teach

    predictions = []
    original = teach.predict_cases

    def remembered(*arguments):
        teacher = original(*arguments)
        cases = list(tiny.CASES)
        maps = {case: read_array(teacher.folder / f"{case}.nii.gz") for case in cases}
        predictions.append((teacher.labels, maps))
        return teacher

    monkeypatch.setattr(teach, "predict_cases", remembered)
    assert extend(models, "--new-id", "910", "-n", "One") == 0
    assert "foreign" in capsys.readouterr().out
    folder = tmp_path / "raw" / NEW
    content = json.loads((folder / "dataset.json").read_text())
    contract = Contract.from_dataset_json(content)
    names = contract.leaf_names
    for case in tiny.CASES:
        copy = f"{case}__completed"
        values = read_array(folder / content["dataset"][copy]["label"])
        sets = contract.protocol(copy).sets
        (first, _), (second, _) = predictions
        maps = [entry[1][case] for entry in predictions]
        tables = [{value: name for name, value in labels.items()} for labels in (first, second)]
        for voxel in [*np.ndindex(values.shape)][:: values.size // 300]:
            said = [tables[number][int(label_map[voxel])] for number, label_map in enumerate(maps)]
            claims = frozenset(names.index(name) for name in said if name in names[1:])
            known = [{"core"}, {"core", "dot"}]
            denied = [
                labels for name, labels in zip(said, known, strict=True) if name not in names[1:]
            ]
            leaves = frozenset(names.index(name) for labels in denied for name in labels)
            expected = combined(ALL, claims, ALL - leaves)
            assert sets[values[voxel]] >= expected
    assert {"core", "dot"} <= set(contract.annotated("full_0__completed"))
    assert "shell" not in contract.annotated("full_0__completed")
    assert not (tmp_path / "preprocessed" / NEW / "teachers").exists()
    assert (tmp_path / "preprocessed" / NEW / "splits_final.json").is_file()
