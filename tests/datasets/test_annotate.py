"""`annotate`: a block for a data set that exists, checked against its voxels, and taken back
without a trace.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.contract import Contract
from nnunet_labelset.datasets import annotate_files
from nnunet_labelset.datasets.verify.check import verify
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.io.volume import read_voxels
from tests.helpers.conversion import slabs, write_nnunet
from tests.helpers.small_dataset import label_map, write_volume

LABELS = {"background": 0, "liver": 1, "spleen": 2, "tumour": 3}
VALUES = {"a_1": (1, 2, 3), "a_2": (1, 2), "a_3": (1, 2), "b_1": (1,), "b_2": (1, 3)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Five cases of which `b_*` lack the spleen, planned by nnU-Net already."""
    folder = tmp_path / "raw" / "Dataset010_Organs"
    rng = np.random.default_rng(0)
    for case, values in VALUES.items():
        write_volume(
            folder / "imagesTr" / f"{case}_0000.nii.gz",
            rng.normal(size=(8, 6, 5)).astype(np.float32),
        )
        write_volume(folder / "labelsTr" / f"{case}.nii.gz", label_map(*values))
    content = {
        "channel_names": {"0": "CT"},
        "labels": LABELS,
        "numTraining": 5,
        "file_ending": ".nii.gz",
    }
    folder.joinpath("dataset.json").write_text(json.dumps(content))  # not as we would indent it
    write_json(
        tmp_path / "preprocessed" / folder.name / "dataset.json", {**content, "made_by": "nnU-Net"}
    )
    monkeypatch.setenv("nnUNet_raw", str(folder.parent))
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "preprocessed"))
    monkeypatch.chdir(tmp_path)
    return folder


def annotate(*arguments):
    return main(["annotate", "-d", "10", "-np", "1", *map(str, arguments)])


def error(capsys, *arguments):
    """The message of a call that fails and writes nothing."""
    assert annotate(*arguments) == 1
    return capsys.readouterr().err


def contract_of(folder):
    return Contract.from_dataset_json(read_json(folder / "dataset.json"))


BY_ROW = 'case,annotated\na_1,all\na_2,all\na_3,liver;spleen;tumour\nb_1,liver;tumour\nb_2,"tumour, liver"\n'
BY_COLUMN = (
    "case;liver;spleen;tumour\na_1;1;1;1\na_2;yes;Yes;y\na_3;1;1;1\nb_1;1;no;1\nb_2;1;0;TRUE\n"
)


@pytest.mark.parametrize("table", [BY_ROW, BY_COLUMN, BY_COLUMN.replace(";", "\t")])
def test_by_table_and_by_pattern_are_the_same(folder, tmp_path, capsys, table):
    (tmp_path / "cases.csv").write_text(table)
    assert annotate("--annotated", tmp_path / "cases.csv") == 0
    by_table = read_json(folder / "dataset.json")["label_sets"]
    assert annotate("--missing", "spleen", "--in", "b_1", "b_2") == 0
    assert read_json(folder / "dataset.json")["label_sets"] == by_table
    assert annotate("--missing", "spleen", "--in", "b_*") == 0
    assert read_json(folder / "dataset.json")["label_sets"] == by_table
    assert by_table["protocols"] == {
        "complete": {},
        "without spleen": {"background": ["background", "spleen"]},
    }
    contract = contract_of(folder)
    assert contract.coverage() == {"background": 3, "liver": 5, "spleen": 3, "tumour": 5}
    assert contract.protocol("b_1").sets == ({0, 2}, {1}, {2}, {3})
    assert verify(folder)[0] == []


def test_nothing_but_the_block_is_written_and_undo_leaves_no_trace(folder, tmp_path, capsys):
    copy = tmp_path / "preprocessed" / folder.name / "dataset.json"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert annotate("--missing", "spleen", "--in", "b_*") == 0
    out = capsys.readouterr().out
    assert ["without", "spleen", "2", "2", "0", "2"] in [line.split() for line in out.splitlines()]
    assert f"wrote {copy}" in out
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = folder / "dataset_before_annotate.json"
    assert {path for path in after if after[path] != before.get(path)} == {
        folder / "dataset.json",
        copy,
        kept,
    }
    assert after[kept] == before[folder / "dataset.json"]
    assert read_json(copy)["label_sets"] == read_json(folder / "dataset.json")["label_sets"]
    assert read_json(copy)["made_by"] == "nnU-Net"
    assert annotate("--missing", "tumour", "--in", "b_1") == 0  # a second call keeps the first copy
    assert kept.read_bytes() == before[folder / "dataset.json"]
    assert annotate("--undo") == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert "nothing to undo" in error(capsys, "--undo")


def test_undo_keeps_what_was_changed_since(folder, capsys):
    assert annotate("--missing", "spleen", "--in", "b_*") == 0
    write_json(folder / "dataset.json", {**read_json(folder / "dataset.json"), "licence": "CC0"})
    assert annotate("--undo") == 0
    content = read_json(folder / "dataset.json")
    assert content["licence"] == "CC0"
    assert "label_sets" not in content


def test_several_groups(folder, capsys):
    assert (
        annotate("--missing", "spleen", "--in", "b_*", "--missing", "tumour", "--in", "a_2", "b_1")
        == 0
    )
    contract = contract_of(folder)
    assert contract.cases["b_1"] == "only liver"
    assert contract.protocol("b_1").sets[0] == {0, 2, 3}
    assert contract.protocol("a_2").sets[0] == {0, 3}


def test_voxels_are_checked(folder, capsys):
    message = error(capsys, "--missing", "spleen", "--in", "a_1", "b_*")
    assert "a_1 has 30 voxels of 'spleen', but is said to lack it" in message
    assert "label_sets" not in read_json(folder / "dataset.json")
    assert not (folder / "dataset_before_annotate.json").exists()
    assert annotate("--missing", "spleen", "--in", "b_1") == 0
    out = capsys.readouterr().out
    assert "'spleen' has no voxel in 1 of the 4 training cases that annotate it (b_2)" in out
    assert (
        "'tumour' has no voxel in 3 of the 5 training cases that annotate it (a_2, a_3, b_1)" in out
    )
    write_volume(folder / "labelsTr" / "a_1.nii.gz", label_map(1, 7))
    assert "a_1.nii.gz: values that 'labels' (0..3) does not declare: 7" in error(
        capsys, "--missing", "spleen", "--in", "b_*"
    )
    (folder / "labelsTr" / "a_1.nii.gz").write_bytes(b"no image")
    assert "a_1.nii.gz: not readable" in error(capsys, "--missing", "spleen", "--in", "b_*")


def test_suggestion_is_a_table_to_correct(folder, tmp_path, capsys):
    before = (folder / "dataset.json").read_bytes()
    assert annotate("--suggest") == 0
    table = tmp_path / "Dataset010_Organs_annotated.csv"
    assert table.read_text().splitlines() == [
        "case,liver,spleen,tumour,hint",
        "a_1,yes,yes,yes,",
        "a_2,yes,yes,no,",
        "a_3,yes,yes,no,",
        "b_1,yes,no,no,spleen is in 3 of 5 cases: forgotten here?",
        "b_2,yes,no,yes,spleen is in 3 of 5 cases: forgotten here?",
    ]
    assert (folder / "dataset.json").read_bytes() == before  # nothing is declared
    assert "may have been corrected" in error(capsys, "--suggest")
    assert annotate("--annotated", table) == 0
    assert contract_of(folder).coverage() == {"background": 1, "liver": 5, "spleen": 3, "tumour": 2}


BAD_TABLES = {
    "2 training case(s) not listed: b_1, b_2": "case,annotated\na_1,all\na_2,all\na_3,all\n",
    "no case 'a_9' with a label map": BY_ROW + "a_9,all\n",
    "unknown leaf 'splen'; did you mean 'spleen'?": "case,annotated\na_1,splen\n",
    "line 2: column 'liver': expected yes or no (1 or 0), but got '?'": "case,liver,spleen,tumour\na_1,?,1,1\n",
    "column 'livr' is no leaf; did you mean 'liver'?": "case,livr,spleen,tumour\na_1,1,1,1\n",
    "no column tumour": "case,liver,spleen\na_1,1,1\n",
    "expected the columns 'case' and either": "name,liver,spleen,tumour\na_1,1,1,1\n",
    "line 3: listed more than once: a_1": "case,annotated\na_1,all\na_1,all\n",
}


@pytest.mark.parametrize("message", BAD_TABLES)
def test_bad_tables(folder, tmp_path, capsys, message):
    (tmp_path / "cases.csv").write_text(BAD_TABLES[message])
    assert message in error(capsys, "--annotated", tmp_path / "cases.csv")
    assert "label_sets" not in read_json(folder / "dataset.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "expected one of --annotated FILE, --missing LABEL --in CASE, --merged LABEL LABEL --in CASE, --fully-",
        ),
        (["--missing", "spleen"], "every --missing and --merged needs an --in"),
        (["--in", "a_1"], "every --missing and --merged needs an --in"),
        (["--suggest", "--undo"], "expected one of"),
        (
            ["--missing", "splen", "--in", "b_1"],
            "--missing splen: no such label; did you mean 'spleen'?",
        ),
        (["--missing", "background", "--in", "b_1"], "--missing background: no such label"),
        (["--missing", "spleen", "--in", "c_*"], "--in c_*: no such case"),
        (
            ["--suggest", "--mask", "masks"],
            "--mask belongs to --annotated, or to --missing and --in",
        ),
        (
            ["--missing", "spleen", "--in", "b_1", "--mask", "nowhere"],
            "no mask of a case that lacks a label",
        ),
    ],
)
def test_bad_arguments(folder, capsys, arguments, message):
    assert message in error(capsys, *arguments)


def test_a_block_of_another_origin_is_not_replaced(folder, capsys):
    block = {"version": 1, "protocols": {"p": {}}, "cases": dict.fromkeys(VALUES, "p")}
    write_json(folder / "dataset.json", {**read_json(folder / "dataset.json"), "label_sets": block})
    assert "has a 'label_sets' block that annotate did not write" in error(
        capsys, "--missing", "spleen", "--in", "b_*"
    )


def test_labels_that_changed_since_planning(folder, tmp_path, capsys):
    copy = tmp_path / "preprocessed" / folder.name / "dataset.json"
    write_json(copy, {**read_json(copy), "labels": {"background": 0, "liver": 1}})
    assert "plan and preprocess again first" in error(capsys, "--missing", "spleen", "--in", "b_*")
    assert "label_sets" not in read_json(folder / "dataset.json")


def test_regions(folder, capsys):
    content = read_json(folder / "dataset.json")
    labels = {"background": 0, "abdomen": [1, 2], "tumour": 3}
    for path in (
        folder / "dataset.json",
        folder.parents[1] / "preprocessed" / folder.name / "dataset.json",
    ):
        write_json(path, {**content, "labels": labels, "regions_class_order": [1, 3]})
    assert "--leaves NAME_OF_1" in error(capsys, "--missing", "spleen", "--in", "b_*")
    assert (
        annotate("--leaves", "liver", "spleen", "tumour", "--missing", "spleen", "--in", "b_*") == 0
    )
    contract = contract_of(folder)
    assert contract.regions == {"abdomen": {1, 2}, "tumour": {3}}
    assert contract.protocol("b_1").sets[0] == {0, 2}
    assert annotate("--missing", "spleen", "--in", "b_1", "b_2") == 0  # the names are known now
    assert contract_of(folder) == contract


@pytest.fixture
def masks(folder, tmp_path):
    """A mask of the lower half for b_1; its label map has liver (1) in the first of eight slices."""
    mask = np.zeros((8, 6, 5), np.uint8)
    mask[:4] = 1
    write_volume(tmp_path / "masks" / "b_1.nii.gz", mask)
    return tmp_path / "masks"


def values_of(path):
    return read_voxels(path)[0][:, 0, 0].tolist()


def test_masks(folder, masks, tmp_path, capsys):
    """Outside of the mask background is known; inside it is one of two; a case without mask is as
    ever.
    """
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    copy = tmp_path / "preprocessed" / folder.name / "dataset.json"
    assert (
        annotate(
            "--missing", "spleen", "tumour", "--in", "b_1", "--missing", "spleen", "--in", "b_2"
        )
        == 0
    )
    assert annotate("--missing", "spleen", "tumour", "--in", "b_1", "--missing", "spleen", "--in", "b_2",
                    "--mask", masks) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "wrote 1 label maps" in out
    assert "without mask, as before: b_2" in out
    assert "nnUNetv2_plan_and_preprocess -d 10" in out.rpartition("next:")[2]
    assert values_of(folder / "labelsTr" / "b_1.nii.gz") == [1, 4, 4, 4, 0, 0, 0, 0]
    assert values_of(folder / "labelsTr" / "b_2.nii.gz") == [1, 3, 0, 0, 0, 0, 0, 0]
    assert read_json(folder / "dataset.json")["labels"] == {**LABELS, "ignore": 4}
    contract = contract_of(folder)
    assert contract.protocol("b_1").sets == ({0}, {1}, {2}, {3}, {2, 3})
    assert contract.protocol("b_2").sets == ({0, 2}, {1}, {2}, {3}, {0, 1, 2, 3})
    assert contract.annotated("b_1") == ("background", "liver")
    assert verify(folder)[0] == []
    assert "label_sets" not in read_json(copy)  # nothing is trained before it is preprocessed again
    assert "--undo' comes first" in error(capsys, "--missing", "spleen", "--in", "b_1")
    assert annotate("--undo") == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not list(folder.glob("labelsTr_*"))


def test_a_mask_and_one_missing_label_keep_background_possible(folder, masks, capsys):
    assert annotate("--missing", "spleen", "--in", "b_1", "--mask", masks) == 0
    assert contract_of(folder).protocol("b_1").sets[4] == {0, 2}
    assert contract_of(folder).protocol("b_1").sets[0] == {0}


def test_undo_after_the_masked_data_set_was_preprocessed(folder, masks, tmp_path, capsys):
    """nnU-Net's copy belongs to what nnU-Net has preprocessed: it stays until that is renewed."""
    copy = tmp_path / "preprocessed" / folder.name / "dataset.json"
    assert annotate("--missing", "spleen", "--in", "b_1", "--mask", masks) == 0
    write_json(copy, read_json(folder / "dataset.json"))
    content = copy.read_bytes()
    assert annotate("--undo") == 0
    assert copy.read_bytes() == content
    assert read_json(folder / "dataset.json")["labels"] == LABELS


@pytest.mark.parametrize("stopped_at", ["second label map", "dataset.json"])
def test_a_stop_between_label_maps_and_dataset_json_can_be_undone(
    folder, masks, tmp_path, monkeypatch, stopped_at
):
    write_volume(masks / "b_2.nii.gz", read_voxels(masks / "b_1.nii.gz")[0])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def kill(*_):
        raise SystemExit(137)

    real, calls = annotate_files._exchange, []

    def exchange(*paths):
        calls.append(paths)
        (kill if len(calls) == 2 else real)(*paths)

    arguments = [
        "--missing",
        "spleen",
        "tumour",
        "--in",
        "b_1",
        "--missing",
        "spleen",
        "--in",
        "b_2",
        "--mask",
        masks,
    ]
    with monkeypatch.context() as patch:
        if stopped_at == "dataset.json":
            patch.setattr(annotate_files, "write_json", kill)
        else:
            patch.setattr(annotate_files, "_exchange", exchange)
        with pytest.raises(SystemExit):
            annotate(*arguments)
    assert 4 in values_of(folder / "labelsTr" / "b_1.nii.gz")
    problems, _ = verify(folder)  # not declared: nobody can train with it
    assert any("4" in str(problem) for problem in problems)
    assert annotate("--undo") == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_bad_masks_change_nothing(folder, masks, tmp_path, capsys):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write_volume(masks / "b_2.nii.gz", np.zeros((8, 6, 5), np.uint8))
    arguments = ("--missing", "spleen", "--in", "b_*", "--mask", masks)
    assert "b_2.nii.gz: the mask is empty" in error(capsys, *arguments)
    write_volume(masks / "b_2.nii.gz", np.ones((8, 6, 4), np.uint8))
    assert "b_2.nii.gz: other geometry than the label map: size" in error(capsys, *arguments)
    (masks / "b_2.nii.gz").write_bytes(b"no image")
    assert "b_2.nii.gz: not readable" in error(capsys, *arguments)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_drawn_as_one(folder, capsys):
    """One contour around liver and tumour is neither a missing tumour nor certainly liver."""
    words = ["--merged", "liver", "tumour", "--in", "b_1", "--missing", "spleen", "--in", "b_*"]
    assert annotate(*words) == 0
    contract = contract_of(folder)
    liver, spleen, tumour = (
        contract.leaf_names.index(name) for name in ("liver", "spleen", "tumour")
    )
    assert contract.cases["b_1"] == "without spleen, liver+tumour merged"
    sets = contract.protocol("b_1").sets
    assert (sets[0], sets[liver], sets[spleen]) == ({0, spleen}, {liver, tumour}, {spleen})
    assert contract.protocol("b_2").sets[liver] == {liver}
    for words, message in (
        (
            ["--merged", "liver", "--in", "b_1"],
            "expected the labels that were drawn as one, two or more",
        ),
        (
            ["--merged", "liver", "tumor", "--in", "b_1"],
            "--merged tumor: no such label; did you mean 'tumour'?",
        ),
        (
            ["--merged", "liver", "spleen", "--in", "b_1", "--missing", "spleen", "--in", "b_*"],
            "to be missing, and",
        ),
    ):
        assert message in error(capsys, *words)
    assert contract_of(folder) == contract


def test_the_outline_of_a_region(folder):
    content = read_json(folder / "dataset.json")
    labels = {"background": 0, "abdomen": [1, 2], "tumour": 3}
    for path in (
        folder / "dataset.json",
        folder.parents[1] / "preprocessed" / folder.name / "dataset.json",
    ):
        write_json(path, {**content, "labels": labels, "regions_class_order": [1, 3]})
    assert (
        annotate("--leaves", "liver", "spleen", "tumour", "--merged", "abdomen", "--in", "b_1") == 0
    )
    contract = contract_of(folder)
    assert contract.protocol("b_1").sets == ({0}, {1, 2}, {1, 2}, {3})
    assert contract.annotated_regions(contract.cases["b_1"]) == ("abdomen", "tumour")


def test_drawn_as_one_and_yet_told_apart_is_noted(folder, capsys):
    assert annotate("--merged", "liver", "tumour", "--in", "b_*") == 0
    assert (
        "1 case(s) (b_2) have voxels of 'liver' and of 'tumour': were they drawn as one?"
        in capsys.readouterr().out
    )


def test_everything_was_drawn(folder, capsys):
    """For a complete data set (to withhold labels from it), and for scribbles, whose `ignore` is
    nnU-Net's.
    """
    content = read_json(folder / "dataset.json")
    write_json(folder / "dataset.json", {**content, "labels": {**LABELS, "ignore": 4}})
    write_json(
        folder.parents[1] / "preprocessed" / folder.name / "dataset.json",
        read_json(folder / "dataset.json"),
    )
    write_volume(folder / "labelsTr" / "b_1.nii.gz", label_map(1, 4))
    assert annotate("--fully-annotated") == 0
    contract = contract_of(folder)
    assert set(contract.cases.values()) == {"complete"}
    assert contract.protocol("b_1").sets[4] == contract.full_set
    assert "'tumour' has no voxel in 3 of the 5 training cases" in capsys.readouterr().out
    assert "expected one of" in error(capsys, "--fully-annotated", "--suggest")
    assert "--mask belongs to" in error(capsys, "--fully-annotated", "--mask", folder)


def test_a_region_is_not_missing_by_its_name(folder, capsys):
    regions = {"background": 0, "organ": [1, 2, 3], "rest": [2, 3], "tumour": 3}
    for path in (folder, folder.parents[1] / "preprocessed" / folder.name):
        content = {
            **read_json(path / "dataset.json"),
            "labels": regions,
            "regions_class_order": [1, 2, 3],
        }
        write_json(path / "dataset.json", content)
    message = error(
        capsys, "--leaves", "liver", "spleen", "tumour", "--missing", "rest", "--in", "b_1"
    )
    assert "a region: name its leaves (liver, spleen, tumour)" in message
    assert "--merged 'rest'" in message


def test_a_case_without_any_label_is_annotated_nowhere(tmp_path, monkeypatch):
    """All labels are missing: a voxel may be every leaf, as if it were ignored, but nobody drew
    anything.
    """
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    labels = {"background": 0, "liver": 1}
    folder = write_nnunet(tmp_path, "Dataset003_Liver", labels, {"a": slabs(1), "b": slabs(0)})
    assert main(["annotate", "-d", "3", "--missing", "liver", "--in", "b", "-np", "1"]) == 0
    assert contract_of(folder).coverage() == {"background": 1, "liver": 1}
