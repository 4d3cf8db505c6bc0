"""`nnunet_labelset merge`: data sets with different labels in one label space."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnunet_labelset.cli import main
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.nnunet.folders import find_dataset
from tests.helpers.conversion import (
    SHAPE,
    contract_of,
    label_sets_of,
    random_image,
    read_array,
    slabs,
    write_nnunet,
    write_volume,
)
from tests.helpers.errors import check_facts

BACKGROUND = "background"


@pytest.fixture
def raw(tmp_path, monkeypatch) -> Path:
    """Liver with cancer; spleen; liver that includes the tumour, beside ignored voxels."""
    raw = tmp_path / "raw"
    monkeypatch.setenv("nnUNet_raw", str(raw))
    write_nnunet(
        raw, "Dataset003_Liver", {BACKGROUND: 0, "liver": 1, "cancer": 2}, {"liver_1": slabs(1, 2)}
    )
    write_nnunet(raw, "Dataset009_Spleen", {BACKGROUND: 0, "spleen": 1}, {"spleen_2": slabs(1)})
    labels = {BACKGROUND: 0, "kidney": 1, "liver": 2, "ignore": 3}
    write_nnunet(raw, "Dataset012_Organs", labels, {"organs_3": slabs(1, 2, 3)})
    return raw


RENAMES = ["--label", "3:cancer=tumour", "--label", "Dataset012_Organs:liver=liver+tumour"]


def merge(*arguments: str, complete: bool = True) -> int:
    """Merge data sets; those without a contract are said to be complete."""
    given = list(arguments[: next((i for i, a in enumerate(arguments) if a.startswith("-")), None)])
    silent = [name for name in given if complete and not _has_contract(name)]
    declared = ["--fully-annotated", *silent] if silent else []
    return main(["merge", "-d", "50", "-n", "All", "-np", "1", *arguments, *declared])


def _has_contract(name: str) -> bool:
    try:
        return "label_sets" in read_json(find_dataset(name) / "dataset.json")
    except LabelSetError:
        return True


def test_merge_by_name(raw, capsys):
    write_volume(raw / "Dataset009_Spleen" / "imagesTs" / "spleen_9_0000.nii.gz", random_image(9))
    assert merge("3", "9", "12", *RENAMES) == 0
    dataset = raw / "Dataset050_All"
    contract = contract_of(dataset)
    assert contract.leaf_names == (BACKGROUND, "liver", "tumour", "spleen", "kidney")
    expected = {
        "liver_1": {0: {BACKGROUND, "spleen", "kidney"}, 1: {"liver"}, 2: {"tumour"}},
        "spleen_2": {0: {BACKGROUND, "liver", "tumour", "kidney"}, 1: {"spleen"}},
        "organs_3": {
            0: {BACKGROUND, "spleen"},
            1: {"kidney"},
            2: {"liver", "tumour"},
            3: set(contract.leaf_names),
        },
    }
    files = {"liver_1": slabs(1, 2), "spleen_2": slabs(1), "organs_3": slabs(1, 2, 3)}
    for case, meanings in expected.items():
        sets = label_sets_of(dataset, case)
        for value, leaves in meanings.items():
            assert set(sets[files[case] == value]) == {frozenset(leaves)}, (case, value)
    image = dataset / "imagesTr" / "liver_1_0000.nii.gz"
    assert image.is_symlink()
    assert np.array_equal(read_array(image), random_image(0))
    assert read_json(dataset / "dataset.json")["channel_names"] == {"0": "CT"}
    assert contract.coverage() == {BACKGROUND: 0, "liver": 1, "tumour": 1, "spleen": 1, "kidney": 1}
    assert (dataset / "imagesTs" / "spleen_9_0000.nii.gz").exists()
    out = capsys.readouterr().out
    check_facts(out, "3 training", "1 test", "without label map: spleen_9")
    assert main(["verify", "-d", "50"]) == 0


def test_merge_keeps_protocols_and_lists_in_place(raw):
    """A data set with a contract, whose files are listed in place, beside one with a leaf that it
    does not know.
    """
    elsewhere = raw.parent / "elsewhere"
    for case in ("full", "part"):
        write_volume(elsewhere / f"{case}_image.nii.gz", random_image(7))
        write_volume(elsewhere / f"{case}_label.nii.gz", slabs(1, 2, 3))
    files = {case: {"images": [f"{elsewhere}/{case}_image.nii.gz"], "label": f"{elsewhere}/{case}_label.nii.gz"}
             for case in ("full", "part")}  # fmt: skip
    protocols = {"all": {}, "some": {"ignore": ["fat", "bone"], "fat": ["fat", "bone"]}}
    write_nnunet(
        raw, "Dataset020_Body", {BACKGROUND: 0, "bone": 1, "fat": 2, "ignore": 3}, {}, numTraining=2, dataset=files,
        label_sets={"version": 1, "protocols": protocols, "cases": {"full": "all", "part": "some"}},
    )  # fmt: skip
    assert merge("20", "9", "--copy") == 0
    dataset = raw / "Dataset050_All"
    labels = slabs(1, 2, 3)
    everything = {BACKGROUND, "bone", "fat", "spleen"}
    for case, sets in {
        "full": [{BACKGROUND, "spleen"}, {"bone"}, {"fat"}, everything],
        "part": [{BACKGROUND, "spleen"}, {"bone"}, {"bone", "fat"}, {"bone", "fat"}],
    }.items():
        after = label_sets_of(dataset, case)
        for value, leaves in enumerate(sets):
            assert set(after[labels == value]) == {frozenset(leaves)}, (case, value)
    assert not (dataset / "imagesTr" / "full_0000.nii.gz").is_symlink()
    assert contract_of(dataset).cases == {
        "full": "Body_all",
        "part": "Body_some",
        "spleen_2": "Spleen",
    }


@settings(max_examples=15)
@given(st.data())
def test_label_sets_survive(tmp_path_factory, data):
    """Two data sets with random labels of a common body: what a voxel may be contains the truth,
    and is exact unless values ran out.
    """
    organs = ["a", "b", "c", "d", "e"]
    raw = tmp_path_factory.mktemp("raw")
    truths, drawn_in = {}, {}
    for number in (1, 2):
        drawn = data.draw(st.lists(st.sampled_from(organs), min_size=1, unique=True))
        truth = np.random.default_rng(data.draw(st.integers(0, 50))).integers(0, 6, SHAPE)
        labels = np.zeros(SHAPE, np.uint8)
        for value, organ in enumerate(drawn, start=1):
            labels[truth == 1 + organs.index(organ)] = value
        write_nnunet(raw, f"Dataset{number:03d}_P{number}", {BACKGROUND: 0} | {o: v for v, o in enumerate(drawn, 1)},
                     {f"case{number}": labels})  # fmt: skip
        truths[f"case{number}"], drawn_in[f"case{number}"] = truth, drawn
    folders = [str(raw / f"Dataset{number:03d}_P{number}") for number in (1, 2)]
    assert merge(*folders, "-o", str(raw)) == 0
    known = set().union(*drawn_in.values())
    for case, truth in truths.items():
        sets = label_sets_of(raw / "Dataset050_All", case)
        for value, organ in enumerate([BACKGROUND, *organs]):
            exact = (
                {organ} if organ in drawn_in[case] else {BACKGROUND} | (known - set(drawn_in[case]))
            )
            assert set(sets[truth == value]) == {frozenset(exact)}


def test_names_that_are_for_the_user_to_confirm(raw, capsys):
    """Equal names are united, nearly equal ones are not: both are told."""
    labels = {BACKGROUND: 0, "Liver": 1, "cancer": 2, "vertebra_1": 3}
    write_nnunet(raw, "Dataset030_More", labels, {"m": slabs(1, 2, 3)})
    write_nnunet(raw, "Dataset031_Bones", {BACKGROUND: 0, "vertebra_2": 1}, {"b": slabs(1)})
    assert merge("3", "30", "31") == 0
    out = capsys.readouterr().out
    assert "united because their names are equal; the same structure? cancer (3, 30)" in out
    assert "kept apart, though their names are nearly equal: 'liver' (3) and 'Liver' (30)" in out
    assert "--label '30:Liver=liver'" in out
    assert "'vertebra_1'" not in out  # other numbers are other bones
    assert "images are links into the data sets that were merged: --copy copies them" in out
    assert merge("3", "30", "31", "--label", "30:Liver=liver", "--copy", "--overwrite") == 0
    out = capsys.readouterr().out
    assert "nearly equal" not in out
    assert "links" not in out


def test_label_for_folders_and_prefixes_that_are_unique(tmp_path):
    """Two data sets of one name in two places; options may name a data set by its folder, with or
    without a slash.
    """
    folders = []
    for place in ("one", "two:b"):
        folders.append(
            write_nnunet(
                tmp_path / place, "Dataset003_Liver", {BACKGROUND: 0, "x": 1}, {"c": slabs(1)}
            )
        )
    given = [f"{folder}/" for folder in folders]
    labels = [
        f"--label={folder}:x={leaf}"
        for folder, leaf in zip(folders, ("liver", "spleen"), strict=True)
    ]
    assert merge(*given, "-o", str(tmp_path), "--prefix", *labels) == 0
    contract = contract_of(tmp_path / "Dataset050_All")
    assert contract.leaf_names == (BACKGROUND, "liver", "spleen")
    assert list(contract.cases) == ["Dataset003_Liver_1_c", "Dataset003_Liver_2_c"]


MISTAKES = {
    "only_in_a_set": (
        ["3", "9", "--label", "9:spleen=spleen+livre"],
        "no data set has a label 'livre'; did you mean 'liver'?",
    ),
    "label_dataset_is_named": (
        ["3", "9", "--label", "9:spleeen=x"],
        "9 has no such label; did you mean 'spleen'?",
    ),
    "twice": (["3", "Dataset003_Liver"], "is given twice"),
    "unknown": (["3", "4"], "no data set 4"),
    "label_syntax": (["3", "9", "--label", "cancer=tumour"], "expected DATASET:LABEL=NAME"),
    "label_name": (
        ["3", "9", "--label", "3:cancr=tumour"],
        "no such label; did you mean 'cancer'?",
    ),
    "label_dataset": (["3", "9", "--label", "4:cancer=tumour"], "no such data set among 3, 9"),
    "channels": (["3", "30"], "different channels (Dataset003_Liver: CT; Dataset030_MR: MR)"),
    "same_case": (["3", "31"], "case 'liver_1' is also in"),
    "regions": (["3", "32"], "is a region"),
    "target_is_source": (["3", "50", "--overwrite"], "lies in the data set that would be written"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(raw, capsys, mistake):
    write_nnunet(
        raw, "Dataset030_MR", {BACKGROUND: 0, "x": 1}, {"m": slabs(1)}, channel_names={"0": "MR"}
    )
    write_nnunet(raw, "Dataset031_Again", {BACKGROUND: 0, "x": 1}, {"liver_1": slabs(1)})
    write_nnunet(raw, "Dataset032_Regions", {BACKGROUND: 0, "x": [1, 2], "y": 2}, {"r": slabs(1)})
    if mistake == "target_is_source":
        write_nnunet(raw, "Dataset050_All", {BACKGROUND: 0, "x": 1}, {"a": slabs(1)})
    before = sorted(os.listdir(raw))
    arguments, message = MISTAKES[mistake]
    assert merge(*arguments) == 1
    assert message in capsys.readouterr().err
    assert sorted(os.listdir(raw)) == before


def test_options_that_mend_mistakes(raw):
    write_nnunet(
        raw,
        "Dataset030_MR",
        {BACKGROUND: 0, "x": 1},
        {"liver_1": slabs(1)},
        channel_names={"0": "MR"},
    )
    assert merge("3", "30", "--prefix", "--channels", "scan") == 0
    assert set(contract_of(raw / "Dataset050_All").cases) == {"Liver_liver_1", "MR_liver_1"}
    assert read_json(raw / "Dataset050_All" / "dataset.json")["channel_names"] == {"0": "scan"}


def test_labels_that_share_no_name_are_told_with_the_option_to_type(raw, capsys):
    write_nnunet(raw, "Dataset040_Kidney", {BACKGROUND: 0, "kidney": 1}, {"k": slabs(1)})
    sides = {BACKGROUND: 0, "left_kidney": 1, "right_kidney": 2}
    write_nnunet(raw, "Dataset041_Sides", sides, {"s": slabs(1, 2)})
    assert merge("40", "41") == 0
    out = capsys.readouterr().out
    assert "--label '40:kidney=kidney+left_kidney+right_kidney'" in out
    assert out.count("'40:kidney=") == 1  # two options for one label are refused
    assert "Dataset041_Sides shares no label" in out
    renames = ["--label", "41:left_kidney=kidney", "--label", "41:right_kidney=kidney"]
    assert merge("40", "41", "--overwrite", *renames) == 0
    assert contract_of(raw / "Dataset050_All").leaf_names == (BACKGROUND, "kidney")


def test_one_of_three_data_sets_without_a_common_label_is_told(raw, capsys):
    write_nnunet(raw, "Dataset040_Kidneys", {BACKGROUND: 0, "kidneys": 1}, {"k": slabs(1)})
    sides = {BACKGROUND: 0, "left_kidney": 1, "liver": 2}
    write_nnunet(raw, "Dataset041_Sides", sides, {"s": slabs(1, 2)})
    assert merge("3", "40", "41") == 0  # 3 has a liver
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines() if "shares no label" in line] == [
        "Dataset040_Kidneys"
    ]
    assert "--label '40:kidneys=kidneys+left_kidney'" in out


@pytest.mark.parametrize("name", ["\ud800", "all", "a;b"])
def test_labels_that_no_table_could_name(raw, capsys, name):
    write_nnunet(raw, "Dataset040_Odd", {BACKGROUND: 0, name: 1}, {"k": slabs(1)})
    assert merge("3", "40") == 1
    assert repr(name) in capsys.readouterr().err
    assert not (raw / "Dataset050_All").exists()


def test_overwriting_withdraws_what_nnunet_has_preprocessed(raw, monkeypatch):
    """Its copy of dataset.json would go on declaring the data set that was replaced."""
    preprocessed = raw.parent / "preprocessed"
    monkeypatch.setenv("nnUNet_preprocessed", str(preprocessed))
    assert merge("3", "9") == 0
    copy = preprocessed / "Dataset050_All" / "dataset.json"
    content = read_json(raw / "Dataset050_All" / "dataset.json")
    write_json(copy, content)
    assert merge("3", "12", "--overwrite") == 0
    del content["label_sets"]
    assert read_json(copy) == content


@pytest.mark.parametrize("arguments", [(), ("--channels", "T1", "T2")])
def test_channels_in_another_order_are_put_in_order_by_name(raw, capsys, arguments):
    for number, names in ((60, ("T1", "T2")), (61, ("t2", "t1"))):
        folder = f"Dataset0{number}_N{number}"
        channels = {str(place): name for place, name in enumerate(names)}
        labels = {BACKGROUND: 0, "liver": 1}
        write_nnunet(raw, folder, labels, {f"c{number}": slabs(1)}, channel_names=channels)
        for place, name in enumerate(names):
            image = np.full(SHAPE, 1.0 if name.lower() == "t1" else 2.0, np.float32)
            write_volume(raw / folder / "imagesTr" / f"c{number}_{place:04d}.nii.gz", image)
    assert merge("60", "61", *arguments) == 0
    assert "Dataset061_N61" in capsys.readouterr().out
    for case in ("c60", "c61"):
        for place, expected in enumerate((1.0, 2.0)):
            image = read_array(raw / "Dataset050_All" / "imagesTr" / f"{case}_{place:04d}.nii.gz")
            assert (image == expected).all()
    assert merge("60", "61", "--overwrite", "--channels", "T1", "FLAIR") == 1  # t1 is elsewhere


def test_channels_that_differ_by_capitals_are_the_same(raw, capsys):
    labels = {BACKGROUND: 0, "Leber": 1}
    channels = {"0": "ct"}
    write_nnunet(raw, "Dataset030_Koeln", labels, {"k": slabs(1)}, channel_names=channels)
    assert merge("3", "30", "--label", "30:Leber=liver") == 0
    assert "shares no label" not in capsys.readouterr().out  # --label unites them
