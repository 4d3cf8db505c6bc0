"""Many models into one: real models predict images, and what they say becomes a data set."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset import Contract
from nnunet_labelset.cli import main
from nnunet_labelset.dataset_conversion.statements import combined
from tests.helpers import tiny
from tests.helpers.volumes import read_array, write_volume

NEW = "Dataset910_One"
ALL = frozenset(range(4))


def write_model(
    nnunet: tiny.NNUNet, labels: dict[str, int], folder: Path, channel: str = "T2"
) -> Path:
    """Return the folder of an untrained plain nnU-Net with these labels."""
    dataset = {**tiny.dataset_json(nnunet), "channel_names": {"0": channel}, "labels": labels}
    del dataset["label_sets"]
    trainer = tiny.make(nnunet, nnUNetTrainer, dataset, fold="all")
    trainer.initialize()
    model = folder / Path(trainer.output_folder).parent.name
    (model / "fold_all").mkdir(parents=True)
    trainer.save_checkpoint(str(model / "fold_all" / "checkpoint_final.pth"))
    (model / "dataset.json").write_text(json.dumps(dataset))
    shutil.copy(nnunet.preprocessed / tiny.NAME / "nnUNetPlans.json", model / "plans.json")
    return model


def zip_model(model: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as file:
        for path in model.rglob("*"):
            file.write(path, path.relative_to(model.parent))
    return archive


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
    archive = zip_model(folders[1], tmp_path / "b.zip")
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


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "many_models.md"
TAUGHT_BY = {
    "liver": {"background": 0, "liver": 1},
    "kidneys": {"background": 0, "kidney_left": 1, "kidney_right": 2},
    "vertebrae": {"background": 0, "vertebrae": 1},
}


def block_of_page(language: str, fact: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (block,) = [block for block in blocks if fact in block]
    return block


def write_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images without contours, as on the page; its commands run where they are."""
    for variable in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        (tmp_path / variable).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "nnUNet_raw" / "Dataset040_Images"
    for seed in range(3):
        write_volume(folder / "imagesTr" / f"case_{seed}_0000.nii.gz", tiny.volume(seed)[0])
    (folder / "dataset.json").write_text(block_of_page("json", "channel_names"))
    return folder


def contract_of(folder: Path) -> Contract:
    return Contract.from_dataset_json(json.loads((folder / "dataset.json").read_text()))


def test_models_of_the_page_become_one_data_set(
    in_process: tiny.NNUNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {
        organ: write_model(in_process, labels, tmp_path / organ, channel="CT")
        for organ, labels in TAUGHT_BY.items()
    }
    folder = write_images(tmp_path, monkeypatch)
    for organ, model in models.items():
        zip_model(model, tmp_path / f"{organ}.zip")
    command = block_of_page("bash", "extend -m").splitlines()[0]
    assert main([*shlex.split(command)[1:], "-np", "1"]) == 0
    contract = contract_of(folder.parent / "Dataset041_Together")
    assert len(contract.cases) == 6  # every image, and its completed copy
    copies = [case for case in contract.cases if case.endswith("__completed")]
    assert {contract.annotated(case) for case in copies} == {contract.leaf_names}


def test_masks_of_the_page_become_one_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_images(tmp_path, monkeypatch)
    table = block_of_page("csv", "prediction,label")
    (tmp_path / "map.csv").write_text(table)
    masks = [line.split(",")[0] for line in table.splitlines()[1:]]
    for seed in range(3):
        for layer, mask in enumerate(masks):
            array = np.zeros(tiny.SHAPE, np.uint8)
            array[layer] = 1
            write_volume(tmp_path / "totalsegmentator" / f"case_{seed}" / f"{mask}.nii.gz", array)
    command = block_of_page("bash", "complete -d 40 --from")
    assert main([*shlex.split(command)[1:], "-np", "1"]) == 0
    contract = contract_of(images.parent / "Dataset041_Together")
    assert contract.annotated("case_0__completed") == contract.leaf_names


def plans_of(model: Path, **architecture: Any) -> None:
    """Change how the network is built."""
    file = model / "plans.json"
    content = json.loads(file.read_text())
    arguments = content["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"]
    arguments.update(architecture)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("locator", ["os.system", "torch.nn.functional.torch.os.system"])
def test_plans_of_a_stranger_run_nothing(
    models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture, locator: str
) -> None:
    proof = tmp_path / "proof"
    plans_of(models[0], nonlin=locator, nonlin_kwargs={"command": f"touch {proof}"})
    assert extend(models, "--new-id", "910", "-n", "One") == 1
    error = capsys.readouterr().err
    assert not proof.exists()
    assert f"'{locator}'" in error
    assert "--trust" in error
    assert error.count("\n") == 1


def with_labels(model: Path, labels: Any) -> None:
    file = model / "dataset.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "labels": labels}))


def with_plans(model: Path, **changes: Any) -> None:
    file = model / "plans.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def without_init_args(model: Path) -> None:
    file = model / "fold_all" / "checkpoint_final.pth"
    content = torch.load(file, weights_only=False)
    del content["init_args"]
    torch.save(content, file)


@pytest.mark.parametrize(
    ("spoil", "facts"),
    [
        (partial(with_labels, labels=["background", "core"]), ["dataset.json", "labels"]),
        (partial(with_labels, labels={"background": "a", "core": "b"}), ["dataset.json", "labels"]),
        (partial(with_labels, labels={"background": 0, "core": 1, "dot": 2}), ["predict"]),
        (partial(with_plans, configurations=[]), ["plans.json", "3d_fullres"]),
        (partial(with_plans, configurations={"2d": {}}), ["plans.json", "3d_fullres"]),
        (partial(with_plans, image_reader_writer="Unheard"), ["Unheard"]),
        (partial(with_plans, image_reader_writer="NaturalImage2DIO"), ["full_0_0000.nii.gz"]),
        (without_init_args, ["init_args"]),
    ],
)
def test_models_that_nnunet_cannot_use_are_one_line(
    models: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    spoil: Callable[[Path], None],
    facts: list[str],
) -> None:
    spoil(models[0])
    assert extend(models, "--new-id", "910", "-n", "One") == 1
    error = capsys.readouterr().err
    assert [fact for fact in [str(models[0]), *facts] if fact not in error] == []
    assert error.count("\n") == 1
    assert [path.name for path in (tmp_path / "raw").iterdir()] == [tiny.NAME]


@pytest.mark.parametrize(("local", "central", "value"), [(6, 8, 1), (8, 10, 97)])
def test_zips_that_python_cannot_read_are_one_line(
    models: list[Path], capsys: pytest.CaptureFixture, local: int, central: int, value: int
) -> None:
    """Encrypted, and of an unknown compression: a byte of both headers of every file."""
    content = bytearray(models[1].read_bytes())
    for signature, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        position = content.find(signature)
        while position >= 0:
            content[position + offset] = value
            position = content.find(signature, position + 4)
    models[1].write_bytes(content)
    assert extend(models, "--new-id", "910", "-n", "One") == 1
    error = capsys.readouterr().err
    assert str(models[1]) in error
    assert error.count("\n") == 1
