"""`convert` and `merge` for data sets with regions: what they write is contract version 2, and
nnU-Net reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nnunetv2.experiment_planning.verify_dataset_integrity import verify_dataset_integrity
from nnunetv2.utilities.label_handling.label_handling import LabelManager

from nnunet_labelset.cli import main
from nnunet_labelset.io.files import read_json
from tests.helpers.conversion import (
    TOML,
    contract_of,
    convert_example,
    label_sets_of,
    random_image,
    slabs,
    write_nnunet,
    write_volume,
)
from tests.helpers.conversion import convert_mine as convert
from tests.helpers.errors import check_facts

LEAVES = ("background", "edema", "necrosis", "enhancing")
REGIONS = {"background": 0, "whole tumour": [1, 2, 3], "core": [2, 3], "enhancing": 3}
TUMOUR = frozenset(LEAVES[1:])


def block(cases: list[str], **protocol: list[str]) -> dict[str, Any]:
    leaves = {name: value for value, name in enumerate(LEAVES)}
    return {
        "version": 2,
        "leaves": leaves,
        "protocols": {"p": protocol},
        "cases": dict.fromkeys(cases, "p"),
    }


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tumours with regions; outlines of tumours with other values of the regions; ventricles;
    outlines as a label.
    """
    raw = tmp_path / "raw"
    monkeypatch.setenv("nnUNet_raw", str(raw))
    order: dict[str, Any] = {"regions_class_order": [1, 2, 3]}
    write_nnunet(
        raw, "Dataset001_Complete", REGIONS, {"a": slabs(1, 2, 3)}, label_sets=block(["a"]), **order
    )
    outline = block(["b"], edema=["edema", "necrosis", "enhancing"])
    write_nnunet(
        raw, "Dataset002_Outline", REGIONS, {"b": slabs(1, 0, 1)}, label_sets=outline, **order
    )
    write_nnunet(raw, "Dataset003_Ventricles", {"background": 0, "ventricles": 1}, {"c": slabs(1)})
    write_nnunet(raw, "Dataset004_Tumour", {"background": 0, "tumour": 1}, {"d": slabs(1)})
    other = {**block(["e"]), "leaves": {"background": 0, "edema": 1, "enhancing": 2}}
    labels = {"background": 0, "core": [1, 2], "enhancing": 2}
    write_nnunet(
        raw,
        "Dataset005_Other",
        labels,
        {"e": slabs(1, 2)},
        label_sets=other,
        regions_class_order=[1, 2],
    )
    return raw


def merge(*arguments: str) -> int:
    return main(["merge", "-d", "50", "-n", "All", "-np", "1", *arguments])


def test_regions_of_equal_names_stay(raw: Path) -> None:
    assert merge("1", "2") == 0
    content = read_json(raw / "Dataset050_All" / "dataset.json")
    assert {name: content["labels"][name] for name in REGIONS} == {**REGIONS, "enhancing": [3]}
    assert content["regions_class_order"] == [1, 2, 3]
    assert content["label_sets"]["version"] == 2
    assert set(label_sets_of(raw / "Dataset050_All", "b")[slabs(1, 0, 1) == 1]) == {TUMOUR}


def test_a_data_set_without_regions_brings_its_leaves(raw: Path) -> None:
    label = ["--label", "4:tumour=edema+necrosis+enhancing"]
    assert merge("3", "1", "4", *label, "--fully-annotated", "3", "4") == 0
    dataset = raw / "Dataset050_All"
    contract = contract_of(dataset)
    assert contract.leaf_names == ("background", "ventricles", *LEAVES[1:])
    assert contract.regions is not None
    named = {
        name: {contract.leaf_names[leaf] for leaf in leaves}
        for name, leaves in contract.regions.items()
    }
    assert named == {
        "whole tumour": set(TUMOUR),
        "core": {"necrosis", "enhancing"},
        "enhancing": {"enhancing"},
        "ventricles": {"ventricles"},
    }
    assert [contract.leaf_names[value] for value in contract.regions_class_order] == [
        *LEAVES[1:],
        "ventricles",
    ]
    assert set(label_sets_of(dataset, "d")[slabs(1) == 1]) == {TUMOUR}
    assert set(label_sets_of(dataset, "c")[slabs(1) == 0]) == {TUMOUR | {"background"}}
    content = read_json(dataset / "dataset.json")
    manager = LabelManager(content["labels"], content["regions_class_order"])
    assert manager.num_segmentation_heads == 4
    verify_dataset_integrity(str(dataset), 1)


def test_a_region_inside_of_one_of_another_data_set_is_written_after_it(raw: Path) -> None:
    """In the order of the data sets, the outline would cover all of the core in every
    segmentation.
    """
    labels = {"background": 0, "core": [2, 3], "enhancing": 3, "rim": 1}
    other: dict[str, Any] = {"regions_class_order": [2, 3, 1], "label_sets": block(["f"])}
    write_nnunet(raw, "Dataset006_Core", labels, {"f": slabs(1, 2, 3)}, **other)
    assert merge("6", "1") == 0
    contract = contract_of(raw / "Dataset050_All")
    assert list(contract.regions or {}) == ["whole tumour", "core", "enhancing", "rim"]
    assert contract.regions_class_order == (1, 2, 3, 1)


def test_a_region_that_means_two_things(raw: Path, capsys: pytest.CaptureFixture) -> None:
    assert merge("1", "5") == 1
    error = capsys.readouterr().err
    check_facts(error, "'core'", "necrosis, enhancing", "edema, enhancing", "in 5", "--label")
    assert error.count("\n") == 1
    assert not (raw / "Dataset050_All").exists()


def test_the_manifest_of_the_documentation(tmp_path: Path) -> None:
    for path, labels in (("BraTS/x/seg", slabs(1, 2, 4)), ("hospital/y_outline", slabs(1))):
        write_volume(tmp_path / f"{path}.nii.gz", labels)
    for path in ("BraTS/x/flair", "hospital/y_flair"):
        write_volume(tmp_path / f"{path}.nii.gz", random_image())
    dataset = convert_example(tmp_path, "tumours.toml")
    contract = contract_of(dataset)
    assert contract.regions == {"whole tumour": {1, 2, 3}, "core": {2, 3}, "enhancing": {3}}
    assert contract.regions_class_order == (1, 2, 3)
    assert set(label_sets_of(dataset, "y")[slabs(1) == 1]) == {TUMOUR}
    assert set(label_sets_of(dataset, "x")[slabs(1, 2, 4) == 1]) == {frozenset(["necrosis"])}
    assert contract.coverage()["whole tumour"] == 2


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('regions_class_order = ["edema", "necrosis", "enhancing"]', "", "regions_class_order: expected 3 labels, one for each of whole tumour, core, enhancing"),
        ('core = ["necrosis", "enhancing"]', "core = []", "region 'core' has no labels"),
        ('core = ["necrosis", "enhancing"]', 'core = "tumor"', "regions.core: unknown label 'tumor'"),
        ('"whole tumour" = ["edema", "necrosis", "enhancing"]', '"whole tumour" = ["edema", "enhancing"]\nx = "edema"', "to list 4 values"),
        ('order = ["edema", "necrosis"', 'order = ["enhancing", "edema"', "1 is no value of region 'core'"),
        ('order = ["edema", "necrosis"', 'order = ["oedema", "necrosis"', "unknown label 'oedema'; did you mean"),
        ('leaves = ["background",', 'leaves = ["background", "cyst",', "label 'cyst' is in no region"),
    ],
)  # fmt: skip
def test_mistakes_are_told_before_any_case_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture, before: str, after: str, message: str
) -> None:
    assert before in TOML["tumours.toml"]
    (tmp_path / "x.toml").write_text(TOML["tumours.toml"].replace(before, after))
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "x.toml")) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "raw").exists()


def test_complete_refuses_regions(raw: Path, capsys: pytest.CaptureFixture) -> None:
    """The probabilities of a region must not be taken for those of a leaf."""
    assert main(["complete", "-d", "1", "--new-id", "60", "-n", "Completed"]) == 1
    check_facts(capsys.readouterr().err, "Dataset001_Complete", "regions")
    assert not (raw / "Dataset060_Completed").exists()
