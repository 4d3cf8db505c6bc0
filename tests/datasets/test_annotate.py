"""`annotate`: a block for a data set that exists, checked against its voxels, and taken back
without a trace.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.annotated_table import (
    AnnotatedTable,
    contract_with_list,
    with_names_of_cases,
)
from nnunet_labelset.datasets.annotate import history
from nnunet_labelset.datasets.verify.check import verify
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.io.volume import read_voxels
from tests.helpers.conversion import slabs, write_nnunet
from tests.helpers.conversion import write_volume as write_mask
from tests.helpers.errors import check_facts
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
    assert annotate("--undo") == 0
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


def files_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_but_the_block_is_written_and_undo_leaves_no_trace(folder, tmp_path, capsys):
    copy = tmp_path / "preprocessed" / folder.name / "dataset.json"
    before = files_below(tmp_path)
    assert annotate("--missing", "spleen", "--in", "b_*") == 0
    out = capsys.readouterr().out
    assert ["without", "spleen", "2", "2", "0", "2"] in [line.split() for line in out.splitlines()]
    assert f"wrote {copy}" in out
    after = files_below(tmp_path)
    kept = folder / "before_annotate" / "step_1"
    assert {path for path in after if after[path] != before.get(path)} == {
        folder / "dataset.json",
        copy,
        kept / "dataset.json",
        kept / "step.json",
    }
    assert after[kept / "dataset.json"] == before[folder / "dataset.json"]
    assert read_json(copy)["label_sets"] == read_json(folder / "dataset.json")["label_sets"]
    assert read_json(copy)["made_by"] == "nnU-Net"
    assert annotate("--undo") == 0
    assert files_below(tmp_path) == before
    assert "nothing to undo" in error(capsys, "--undo")


def test_undo_goes_back_step_by_step(folder, tmp_path, capsys):
    states = [files_below(tmp_path)]
    for words in (
        ["--missing", "spleen", "--in", "b_1"],
        ["--missing", "spleen", "--in", "b_2", "--add"],
        ["--missing", "tumour", "--in", "a_3", "--add"],
    ):
        assert annotate(*words) == 0
        states.append(files_below(tmp_path))
    for state in reversed(states[:-1]):
        assert annotate("--undo") == 0
        assert files_below(tmp_path) == state
    assert "nothing to undo" in error(capsys, "--undo")


class TestASecondCall:
    def test_does_not_wipe_the_first(self, folder, capsys):
        """One new gap, and the declared ones would have become "complete"."""
        assert annotate("--missing", "spleen", "--in", "b_*") == 0
        contract = contract_of(folder)
        message = error(capsys, "--missing", "tumour", "--in", "a_3")
        assert "b_1" in message
        assert "b_2" in message
        assert "--replace" in message
        assert "--add" in message
        assert contract_of(folder) == contract

    def test_does_not_make_a_gap_absent(self, folder, capsys):
        """Unlabelled voxels might be spleen; after it they were certainly not."""
        assert annotate("--missing", "spleen", "--in", "b_1") == 0
        contract = contract_of(folder)
        words = ["--merged", "spleen", "tumour", "--in", "b_1"]
        message = error(capsys, *words)
        assert "b_1" in message
        assert "spleen" in message.splitlines()[-1]
        assert contract_of(folder) == contract
        assert annotate(*words, "--replace") == 0

    def test_adds(self, folder, capsys):
        assert annotate("--missing", "spleen", "--in", "b_*") == 0
        assert annotate("--missing", "tumour", "--in", "a_3", "b_1", "--add") == 0
        contract = contract_of(folder)
        assert contract.protocol("b_1").sets[0] == {0, 2, 3}
        assert contract.protocol("b_2").sets[0] == {0, 2}
        assert contract.protocol("a_3").sets[0] == {0, 3}
        assert contract.cases["a_1"] == "complete"
        lines = [line for line in capsys.readouterr().out.splitlines() if "->" in line]
        assert [line.split(": ", 1)[1] for line in lines] == [
            "complete -> without tumour: 1 case(s) (a_3)",
            "without spleen -> only liver: 1 case(s) (b_1)",
        ]

    def test_replaces_when_asked(self, folder):
        assert annotate("--missing", "spleen", "--in", "b_*") == 0
        assert annotate("--missing", "tumour", "--in", "a_3", "--replace") == 0
        assert contract_of(folder).cases["b_1"] == "complete"

    def test_may_declare_more_gaps_without_asking(self, folder):
        assert annotate("--missing", "spleen", "--in", "b_1") == 0
        assert annotate("--missing", "spleen", "--in", "b_*") == 0
        assert contract_of(folder).cases["b_2"] == "without spleen"

    def test_new_cases_are_added(self, folder, tmp_path, capsys):
        assert annotate("--missing", "spleen", "--in", "b_*") == 0
        for case in ("c_1", "c_2"):
            image = np.random.default_rng(9).normal(size=(8, 6, 5)).astype(np.float32)
            write_volume(folder / "imagesTr" / f"{case}_0000.nii.gz", image)
            write_volume(folder / "labelsTr" / f"{case}.nii.gz", label_map(1, 2))
        assert annotate("--missing", "tumour", "--in", "c_1", "--add") == 0
        assert "c_2" not in contract_of(folder).cases  # never taken for complete
        assert "c_2" in capsys.readouterr().out
        (tmp_path / "new.csv").write_text("case,annotated\nc_2,liver;spleen\n")
        assert annotate("--annotated", tmp_path / "new.csv", "--add") == 0
        contract = contract_of(folder)
        assert contract.cases["c_1"] == contract.cases["c_2"] == "without tumour"
        assert contract.cases["b_1"] == "without spleen"
        assert "declared already" in error(capsys, "--fully-annotated", "--add")

    def test_extends_a_block_of_another_origin(self, folder, capsys):
        """Cases of `convert` or of a hand-made block keep their protocols."""
        block = {
            "version": 1,
            "protocols": {"complete": {"background": ["background", "tumour"]}},
            "cases": dict.fromkeys(list(VALUES)[1:], "complete"),
        }
        content = {**read_json(folder / "dataset.json"), "label_sets": block}
        write_json(folder / "dataset.json", content)
        message = error(capsys, "--missing", "spleen", "--in", "b_*")
        assert "did not write" in message
        assert "--add" in message
        assert annotate("--fully-annotated", "--add") == 0
        contract = contract_of(folder)
        assert contract.annotated("a_1") == contract.leaf_names
        assert contract.protocol("b_1").sets[0] == {0, 3}


def test_an_exact_name_wins_over_the_pattern_that_it_is(folder):
    for case in ("pat1", "pat[1]"):
        write_volume(
            folder / "imagesTr" / f"{case}_0000.nii.gz",
            np.random.default_rng(3).normal(size=(8, 6, 5)).astype(np.float32),
        )
        write_volume(folder / "labelsTr" / f"{case}.nii.gz", label_map(1, 3))
    assert annotate("--missing", "spleen", "--in", "pat[1]") == 0
    contract = contract_of(folder)
    assert (contract.cases["pat[1]"], contract.cases["pat1"]) == ("without spleen", "complete")


def test_patterns_match_training_cases_unless_test_cases_are_asked_for(folder, capsys):
    """A complete test case of a site whose training cases lack a label."""
    write_volume(folder / "labelsTs" / "b_9.nii.gz", label_map(1, 2, 3))
    write_volume(folder / "labelsTs" / "c_9.nii.gz", label_map(1, 2, 3))
    assert annotate("--missing", "spleen", "--in", "b_*") == 0
    contract = contract_of(folder)
    assert contract.cases["b_1"] == "without spleen"
    assert "b_9" not in contract.cases  # nobody said what it annotates
    assert contract.cases["c_9"] == "complete"
    out = capsys.readouterr().out
    assert "b_9" in out
    assert "--test" in out
    assert annotate("--fully-annotated", "--add") == 0
    assert contract_of(folder).cases["b_9"] == "complete"
    assert annotate("--undo") == 0
    assert "b_9" in error(capsys, "--missing", "spleen", "--in", "b_*", "--test")  # it has one
    assert "--test" in error(capsys, "--missing", "spleen", "--in", "c_*")


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
    assert "a_1 has 30 'spleen' voxels" in message
    assert "label_sets" not in read_json(folder / "dataset.json")
    assert not (folder / "before_annotate").exists()
    assert annotate("--missing", "spleen", "--in", "b_1") == 0
    out = capsys.readouterr().out
    notes = [line for line in out.splitlines() if "no voxel in" in line]
    assert ["1 of the 4" in line and "(b_2)" in line for line in notes] == [True, False]
    assert "3 of the 5" in notes[1]
    assert "'tumour'" in notes[1]
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
    ("2 training", "b_1, b_2"): "case,annotated\na_1,all\na_2,all\na_3,all\n",
    ("'a_9'",): BY_ROW + "a_9,all\n",
    ("'splen'", "'spleen'"): "case,annotated\na_1,splen\n",
    ("'liver+spleen'", "merged_labels.md"): "case,annotated\na_1,liver+spleen\n",
    ("'liver/spleen'", "merged_labels.md"): "case,annotated\na_1,liver/spleen\n",
    ("line 2", "'liver'", "'maybe'"): "case,liver,spleen,tumour\na_1,maybe,1,1\n",
    ("line 3", "'12'"): "case,liver,spleen,tumour\na_1,1,1,1\nTotal,12,7,3\n",
    ("liver", "'livr'"): "case,livr,spleen,tumour\na_1,1,1,1\n",
    ("tumour", "case, liver, spleen"): "case,liver,spleen\na_1,1,1\n",
    ("columns where, liver, spleen",): "where,liver,spleen,tumour\na_1,1,1,1\n",
    ("line 3", "a_1"): "case,annotated\na_1,all\na_1,all\n",
    ("'liver'", "'Liver'"): "case,liver,Liver,spleen,tumour\na_1,1,0,1,1\n",
    ("'annotated'", "liver"): "case,annotated,liver,spleen,tumour\na_1,liver,1,1,1\n",
}


@pytest.mark.parametrize("facts", BAD_TABLES)
def test_bad_tables(folder, tmp_path, capsys, facts):
    (tmp_path / "cases.csv").write_text(BAD_TABLES[facts])
    check_facts(error(capsys, "--annotated", tmp_path / "cases.csv"), *facts)
    assert "label_sets" not in read_json(folder / "dataset.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "expected one of --annotated FILE",
        ),
        (["--missing", "spleen"], "needs an --in"),
        (["--in", "a_1"], "needs an --in"),
        (["--undo", "--add"], "--add"),
        (["--slices", "9-2", "--in", "b_1"], "--slices 9-2"),
        (["--slices", "2-8", "--in", "b_1"], "has 8 slices"),
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
    assert "--value-names NAME_OF_1" in error(capsys, "--missing", "spleen", "--in", "b_*")
    assert (
        annotate("--value-names", "liver", "spleen", "tumour", "--missing", "spleen", "--in", "b_*")
        == 0
    )
    contract = contract_of(folder)
    assert contract.regions == {"abdomen": {1, 2}, "tumour": {3}}
    assert contract.protocol("b_1").sets[0] == {0, 2}
    assert annotate("--missing", "spleen", "--in", "b_1", "b_2") == 0  # the names are known now
    assert contract_of(folder) == contract


@pytest.fixture
def masks(folder, tmp_path):
    """A mask of the lower half for b_1; its label map has liver (1) in the first of eight
    slices.
    """
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
    words = ["--missing", "spleen", "tumour", "--in", "b_1", "--missing", "spleen", "--in", "b_2"]
    assert annotate(*words, "--mask", masks) == 0
    out = capsys.readouterr().out
    assert "wrote 1 label map" in out
    assert "b_2" in out
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
    assert annotate("--undo") == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not list(folder.glob("labelsTr_*"))


def test_a_step_after_masks_leaves_them_alone(folder, masks, tmp_path):
    """nnU-Net's copy waits for new voxels; what is declared next must not make it look ready."""
    copy = tmp_path / "preprocessed" / folder.name / "dataset.json"
    before = files_below(tmp_path)
    assert annotate("--missing", "spleen", "tumour", "--in", "b_1", "--mask", masks) == 0
    masked = files_below(tmp_path)
    assert annotate("--missing", "spleen", "--in", "b_2", "--add") == 0
    contract = contract_of(folder)
    assert contract.protocol("b_1").sets[4] == {2, 3}
    assert contract.protocol("b_2").sets[0] == {0, 2}
    assert "label_sets" not in read_json(copy)
    write_json(copy, read_json(folder / "dataset.json"))  # preprocessed again
    assert annotate("--missing", "tumour", "--in", "a_2", "--add") == 0
    assert read_json(copy)["label_sets"] == read_json(folder / "dataset.json")["label_sets"]
    for _ in range(2):
        assert annotate("--undo") == 0
    copy.write_bytes(masked[copy])
    assert files_below(tmp_path) == masked
    assert annotate("--undo") == 0
    assert files_below(tmp_path) == before


def test_undo_keeps_corrections_of_label_maps(folder, masks, capsys):
    old = (folder / "labelsTr" / "b_1.nii.gz").read_bytes()
    assert annotate("--missing", "spleen", "tumour", "--in", "b_1", "--mask", masks) == 0
    write_volume(folder / "labelsTr" / "b_1.nii.gz", label_map(1, 1, 4))
    corrected = (folder / "labelsTr" / "b_1.nii.gz").read_bytes()
    capsys.readouterr()
    assert annotate("--undo") == 0
    kept = folder / "labelsTr_corrected" / "b_1.nii.gz"
    assert kept.read_bytes() == corrected
    assert str(kept) in capsys.readouterr().out
    assert (folder / "labelsTr" / "b_1.nii.gz").read_bytes() == old


def test_masks_do_not_change_another_data_set(folder, masks, capsys):
    """A label folder that is a link belongs to another data set, too."""
    other = folder.parent / "Dataset011_Other"
    other.mkdir()
    (folder / "labelsTr").rename(other / "labelsTr")
    (folder / "labelsTr").symlink_to(other / "labelsTr")
    before = files_below(other)
    message = error(capsys, "--missing", "spleen", "--in", "b_1", "--mask", masks)
    assert str(other / "labelsTr") in message
    assert files_below(other) == before
    assert annotate("--missing", "spleen", "--in", "b_1") == 0  # writes dataset.json only


def test_a_mask_does_not_turn_a_missing_label_into_an_annotated_one(tmp_path, monkeypatch):
    """With one label, `ignore` may be every label there is."""
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    monkeypatch.delenv("nnUNet_preprocessed", raising=False)
    labels = {"background": 0, "liver": 1}
    folder = write_nnunet(tmp_path, "Dataset003_Liver", labels, {"a": slabs(1), "b": slabs(0)})
    write_mask(tmp_path / "masks" / "b.nii.gz", np.ones_like(slabs(0)))
    words = ["--missing", "liver", "--in", "b", "--mask", str(tmp_path / "masks")]
    assert main(["annotate", "-d", "3", *words, "-np", "1"]) == 0
    assert contract_of(folder).coverage()["liver"] == 1
    assert "liver" not in contract_of(folder).annotated("b")


def test_a_mask_and_one_missing_label_keep_background_possible(folder, masks, capsys):
    assert annotate("--missing", "spleen", "--in", "b_1", "--mask", masks) == 0
    assert contract_of(folder).protocol("b_1").sets[4] == {0, 2}
    assert contract_of(folder).protocol("b_1").sets[0] == {0}


def test_later_declarations_do_not_trust_a_wrong_label(folder, masks, tmp_path, capsys):
    table = tmp_path / "table.csv"
    rows = "".join(f"{case},all,\n" for case in VALUES if case != "b_1")
    table.write_text(f"case,annotated,wrong\nb_1,tumour,liver\n{rows}")
    assert annotate("--annotated", table) == 0
    assert contract_of(folder).protocol("b_1").sets[1] == {0, 1, 2}
    again = ["--add", "--missing", "spleen", "--in", "b_1", "--mask", masks]
    assert "b_1" in error(capsys, *again)
    assert annotate("--add", "--scribbles", "--in", "b_1") == 0
    assert contract_of(folder).protocol("b_1").sets[1] == {0, 1, 2, 3}


def test_a_mask_and_scribbles_in_one_case_are_refused(folder, masks, tmp_path, capsys):
    """The mask would have been ignored without a word."""
    before = files_below(tmp_path)
    words = ["--missing", "spleen", "--in", "b_1", "--scribbles", "--in", "b_1", "--mask", masks]
    message = error(capsys, *words)
    assert "--scribbles" in message
    assert "b_1" in message
    assert files_below(tmp_path) == before


def test_undo_after_the_masked_data_set_was_preprocessed(folder, masks, tmp_path, capsys):
    """nnU-Net's copy belongs to what nnU-Net has preprocessed: it stays until that is renewed."""
    copy = tmp_path / "preprocessed" / folder.name / "dataset.json"
    assert annotate("--missing", "spleen", "--in", "b_1", "--mask", masks) == 0
    write_json(copy, read_json(folder / "dataset.json"))
    content = copy.read_bytes()
    assert annotate("--undo") == 0
    assert copy.read_bytes() == content
    assert read_json(folder / "dataset.json")["labels"] == LABELS


def test_undo_of_a_second_mask_leaves_voxels_without_a_block(folder, masks, tmp_path):
    """nnU-Net's copy has the voxels from before both masks: the block of the first one is not about
    them.
    """
    copy = tmp_path / "preprocessed" / folder.name / "dataset.json"
    # `ignore` is declared, so that labels never differ
    for path in (folder / "dataset.json", copy):
        write_json(path, {**read_json(path), "labels": {**LABELS, "ignore": 4}})
    write_volume(masks / "b_2.nii.gz", read_voxels(masks / "b_1.nii.gz")[0])
    before = files_below(tmp_path)
    for case in ("b_1", "b_2"):
        words = ["--missing", "spleen", "--in", case, "--mask", masks]
        assert annotate(*words, "--add") == 0
    for _ in range(2):
        assert "label_sets" not in read_json(copy)
        assert annotate("--undo") == 0
    assert files_below(tmp_path) == before


KILLED = """
import os, sys
from nnunet_labelset.cli import main
from nnunet_labelset.datasets.annotate import history
real, calls = getattr(history, {function!r}), []
def killed(*arguments):
    calls.append(arguments)
    if len(calls) == {number}:
        os._exit(137)
    return real(*arguments)
setattr(history, {function!r}, killed)
main(sys.argv[1:])
"""
STOPS = [
    ("_exchange", 1),
    ("_exchange", 2),
    ("write_json", 1),
    ("write_json", 2),
    ("write_bytes", 1),
]


@pytest.mark.parametrize(("function", "number"), STOPS)
@pytest.mark.parametrize("then", ["--undo", "the same again"])
def test_a_killed_call_is_taken_back(folder, masks, tmp_path, function, number, then):
    write_volume(masks / "b_2.nii.gz", read_voxels(masks / "b_1.nii.gz")[0])
    before = files_below(tmp_path)
    words = ["--missing", "spleen", "tumour", "--in", "b_1", "--missing", "spleen", "--in", "b_2"]
    command = ["annotate", "-d", "10", "-np", "1", *words, "--mask", str(masks)]
    code = KILLED.format(function=function, number=number)
    assert subprocess.run([sys.executable, "-c", code, *command], check=False).returncode == 137
    if 4 in values_of(folder / "labelsTr" / "b_1.nii.gz"):
        assert any("labelsTr/b_1.nii.gz" in line for line in verify(folder)[0])
    if then == "--undo":
        assert annotate("--undo") == 0
        assert files_below(tmp_path) == before
    else:
        assert main(command) == 0
        assert values_of(folder / "labelsTr" / "b_1.nii.gz") == [1, 4, 4, 4, 0, 0, 0, 0]
        assert annotate("--undo") == 0
        assert files_below(tmp_path) == before


def no_space(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device", "somewhere")


@pytest.mark.parametrize("function", ["write_json", "write_bytes"])
def test_a_full_disk_leaves_nothing(folder, tmp_path, monkeypatch, capsys, function):
    before = set(tmp_path.rglob("*")), files_below(tmp_path)
    monkeypatch.setattr(history, function, no_space)
    assert "No space left" in error(capsys, "--missing", "spleen", "--in", "b_1")
    assert (set(tmp_path.rglob("*")), files_below(tmp_path)) == before


KILLED_ANYWHERE = """
import os, sys
from pathlib import Path
import nnunet_labelset.commands.annotate  # once, not in every child
from nnunet_labelset.cli import main

def state(root):
    return {path: path.is_file() and path.read_bytes() for path in root.rglob("*")}

def run(arguments, number=None):
    child = os.fork()
    if child == 0:
        counter = iter(range(1, 10_000))
        def killed(real):
            def call(*arguments, **options):
                if next(counter) == number:
                    os._exit(137)
                return real(*arguments, **options)
            return call
        for name in ("replace", "rename", "unlink", "mkdir", "rmdir", "fsync"):
            setattr(os, name, killed(getattr(os, name)))
        os._exit(main(arguments))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

root = Path(sys.argv[1])
before = state(root)
for number in range(1, 100):
    code = run(sys.argv[2:], number)
    run(["annotate", "-d", "10", "--undo"])  # fails where nothing was begun
    if different := set(before.items()) ^ set(state(root).items()):
        sys.exit(f"killed at {number}: {sorted(str(path) for path, _ in different)}")
    if code == 0:
        break
assert 10 < number < 99, number
"""


def test_nothing_is_left_wherever_a_call_is_killed(folder, masks, tmp_path):
    """Killed before each of its steps on the disk, and taken back: no file, no hidden one."""
    words = ["annotate", "-d", "10", "-np", "1", "--missing", "spleen", "--in", "b_1"]
    command = [sys.executable, "-c", KILLED_ANYWHERE, str(tmp_path), *words, "--mask", str(masks)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_two_calls_at_once_never_mix(folder, masks, tmp_path):
    """One of them says who holds the data set; the old label maps are kept once."""
    before = files_below(tmp_path)
    start = "import sys; from nnunet_labelset.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["annotate", "-d", "10", "-np", "1", "--missing", "spleen", "tumour", "--in", "b_1"]
    command = [sys.executable, "-c", start, *words, "--mask", str(masks)]
    for _ in range(3):
        runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        errors = [run.communicate()[1] for run in runs]
        codes = [run.returncode for run in runs]
        assert 0 in codes, errors
        assert all(
            code == 0 or "is writing it" in text or "'ignore' voxels" in text
            for code, text in zip(codes, errors, strict=True)
        ), errors
        assert annotate("--undo") == 0
        assert files_below(tmp_path) == before


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
            "two or more labels",
        ),
        (
            ["--merged", "liver", "tumor", "--in", "b_1"],
            "--merged tumor: no such label; did you mean 'tumour'?",
        ),
        (
            ["--merged", "liver", "spleen", "--in", "b_1", "--missing", "spleen", "--in", "b_*"],
            "both missing and merged",
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
    notes = [line for line in capsys.readouterr().out.splitlines() if "drawn as one" in line]
    assert len(notes) == 1
    assert "b_2" in notes[0]
    assert "b_1" not in notes[0]


def test_a_merged_structure_that_a_whole_group_lacks_is_told(folder, capsys):
    """Else the network learns that there is none."""
    assert annotate("--merged", "spleen", "tumour", "--in", "b_1") == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "'spleen' + 'tumour'" in line]
    assert len(notes) == 1
    assert "b_1" in notes[0]
    assert any("'spleen' + 'tumour'" in line for line in verify(folder)[1])


def test_a_merged_structure_that_overlaps_a_drawn_one_is_not_said_to_lack(folder, capsys):
    """Voxels of liver may be tumour, so that nothing says that there is no spleen + tumour."""
    merged = ["--merged", "liver", "tumour", "--in", "b_1"]
    assert annotate(*merged, "--merged", "tumour", "spleen", "--in", "b_1") == 0
    assert "the network learns" not in capsys.readouterr().out


def test_a_label_that_a_whole_group_lacks_is_told(folder, capsys):
    assert annotate("--missing", "tumour", "--in", "b_1") == 0
    notes = [
        line for line in capsys.readouterr().out.splitlines() if "group" in line and "b_1" in line
    ]
    assert len(notes) == 1
    assert "'spleen'" in notes[0]


def test_scribbles_are_annotated_nowhere(folder):
    assert annotate("--scribbles", "--in", "b_*") == 0
    contract = contract_of(folder)
    assert contract.protocol("b_2").sets == (contract.full_set, {1}, {2}, {3})
    assert contract.annotated("b_2") == ()
    assert contract.is_fully_annotated("a_1")
    assert verify(folder)[0] == []


def test_slices(folder, tmp_path, capsys):
    """Drawn in the slices 0 to 2: the rest may be anything, and a missing label stays missing."""
    before = files_below(tmp_path)
    words = ["--slices", "0-2", "--in", "b_*", "--missing", "spleen", "--in", "b_1"]
    assert annotate(*words) == 0
    assert values_of(folder / "labelsTr" / "b_1.nii.gz") == [1, 0, 0, 4, 4, 4, 4, 4]
    assert values_of(folder / "labelsTr" / "b_2.nii.gz") == [1, 3, 0, 4, 4, 4, 4, 4]
    contract = contract_of(folder)
    assert contract.protocol("b_1").sets == ({0, 2}, {1}, {2}, {3}, {0, 1, 2, 3})
    assert contract.annotated("b_1") == ("liver", "tumour")
    assert verify(folder)[0] == []
    assert annotate("--undo") == 0
    assert files_below(tmp_path) == before


def test_slices_and_scribbles_in_a_table(folder, tmp_path, capsys):
    """Each case has its own range; cells may be empty."""
    said = {"b_1": "liver;tumour,0-2,", "b_2": "all,0 \N{EN DASH} 1,no", "a_1": "all,,yes"}
    rows = [f"{case},{said.get(case, 'all,,')}" for case in VALUES]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["case,annotated,slices,scribbles", *rows]), encoding="utf-8")
    assert annotate("--annotated", str(table)) == 0
    assert values_of(folder / "labelsTr" / "b_1.nii.gz") == [1, 0, 0, 4, 4, 4, 4, 4]
    assert values_of(folder / "labelsTr" / "b_2.nii.gz") == [1, 3, 4, 4, 4, 4, 4, 4]
    contract = contract_of(folder)
    assert contract.protocol("b_1").sets == ({0, 2}, {1}, {2}, {3}, {0, 1, 2, 3})
    assert contract.annotated("a_1") == ()
    assert annotate("--undo") == 0
    for wrong in ("20", "3-1", "x"):
        table.write_text("\n".join(["case,annotated,slices", f"b_1,all,{wrong}"]))
        message = error(capsys, "--annotated", str(table))
        assert f"table.csv, line 2: column 'slices': {wrong}" in message


def test_evaluation_knows_nothing_of_slices_in_a_table(folder, tmp_path):
    """It would take the slices in which nothing was drawn for background."""
    table = tmp_path / "table.csv"
    content = read_json(folder / "dataset.json")
    table.write_text("case,annotated,slices\na_1,all,\n")
    assert "spleen" in contract_with_list(content, table).annotated("a_1")
    table.write_text("case,annotated,slices\na_1,all,2-5\n")
    with pytest.raises(LabelSetError, match="slices"):
        contract_with_list(content, table)


def test_labels_outside_of_the_slices_are_an_error(folder, tmp_path, capsys):
    before = files_below(tmp_path)
    message = error(capsys, "--slices", "2-5", "--in", "b_2")
    assert "b_2" in message
    assert "2-5" in message
    assert files_below(tmp_path) == before


def test_two_ranges_of_slices_for_one_case_are_refused(folder, tmp_path, capsys):
    """The second one would have taken back the first."""
    before = files_below(tmp_path)
    words = ["--slices", "0-0", "--in", "b_1", "--slices", "2-2", "--in", "b_1"]
    message = error(capsys, *words)
    assert "0-0" in message
    assert "2-2" in message
    assert files_below(tmp_path) == before


def test_field_of_view(folder, masks, capsys):
    assert annotate("--missing", "spleen", "--in", "b_1", "--field-of-view", masks) == 0
    assert values_of(folder / "labelsTr" / "b_1.nii.gz") == [1, 0, 0, 0, 4, 4, 4, 4]
    assert contract_of(folder).protocol("b_1").sets[4] == {0, 1, 2, 3}
    assert annotate("--undo") == 0
    words = ["--missing", "spleen", "--in", "b_1", "--mask", masks]
    assert "--field-of-view" in error(capsys, *words, "--field-of-view", masks)


def test_a_named_case_needs_its_field_of_view(folder, masks, tmp_path, capsys):
    """Without a mask it would count as examined completely."""
    before = files_below(tmp_path)
    words = ["--missing", "spleen", "--in", "b_1", "b_2", "--field-of-view", masks]
    message = error(capsys, *words)
    assert "--field-of-view" in message
    assert "b_2" in message
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("name", ["b_2_fov.nii.gz", "b_2.nii", "B_2.nii.gz", "fov_b_2.nii.gz"])
def test_a_field_of_view_under_a_wrong_name(folder, masks, tmp_path, capsys, name):
    """It was passed over in silence, and its case counted as examined completely."""
    (masks / name).write_bytes((masks / "b_1.nii.gz").read_bytes())
    before = files_below(tmp_path)
    words = ["--missing", "spleen", "--in", "b_1", "--field-of-view", masks]
    check_facts(error(capsys, *words), "--field-of-view", name, "'b_2.nii.gz'")
    assert files_below(tmp_path) == before


def test_fields_of_view_that_are_not_used_are_told(folder, masks, capsys):
    """Of cases that this call does not declare; files that are no images do not matter."""
    for case in ("b_2", "t_1"):
        write_volume(masks / f"{case}.nii.gz", read_voxels(masks / "b_1.nii.gz")[0])
    write_volume(folder / "imagesTs" / "t_1_0000.nii.gz", np.zeros((8, 6, 5), np.float32))
    (masks / "notes.txt").write_text("drawn in May")
    words = ["--missing", "spleen", "--in", "b_1", "--field-of-view", masks]
    assert annotate("--add", *words) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert any("--field-of-view" in line and "b_2, t_1" in line for line in notes)
    assert not any("everywhere" in line for line in notes)


def test_cases_that_count_as_examined_everywhere_are_told(folder, masks, capsys):
    """Those without a mask and without `ignore` from an earlier call."""
    assert annotate("--missing", "spleen", "--in", "b_1", "--field-of-view", masks) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert any("a_1, a_2, a_3, b_2" in line and "everywhere" in line for line in notes)
    (masks / "b_1.nii.gz").rename(masks / "b_2.nii.gz")
    words = ["--missing", "spleen", "--in", "b_2"]
    assert annotate("--replace", *words, "--field-of-view", masks) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert any("no mask of a_1, a_2, a_3, which" in line and "everywhere" in line for line in notes)


def test_field_of_view_of_another_case(folder, masks, capsys):
    """A mask in which none of the labels lies."""
    labels, _ = read_voxels(folder / "labelsTr" / "b_1.nii.gz")
    write_volume(masks / "b_1.nii.gz", (labels == 0).astype(np.uint8))
    words = ["--missing", "spleen", "--in", "b_1", "--field-of-view", masks]
    assert "masks/b_1.nii.gz" in error(capsys, *words)


TABLES = {
    "German, numbered": "Patienten-Nr.;Liver;Spleen;Tumour\na_1;ja;ja;ja\na_2;ja;ja;ja\n"
    "a_3;ja;ja;ja\nb_1;ja;nein;ja\nb_2;ja;nein;ja\n",
    "German": "Patient;Leber;Liver;Spleen;Tumour\na_1;?;ja;ja;ja\na_2;;ja;JA;j\na_3;;ja;ja;ja\n"
    "b_1;;ja;nein;ja\nb_2;;ja;nein;ja\n",
    "French": "id,liver,spleen,tumour\na_1,oui,oui,oui\na_2,oui,oui,oui\na_3,VRAI,oui,oui\n"
    "b_1,oui,non,oui\nb_2,oui,FAUX,oui\n",
    "Spanish": "Subject,liver,spleen,tumour\na_1,sí,sí,si\na_2,sí,sí,sí\na_3,sí,sí,sí\n"
    "b_1,sí,no,sí\nb_2,sí,no,sí\n",
    "Excel": "sep=;\r\nName;LIVER;SPLEEN;TUMOUR\r\na_1;WAHR;WAHR;WAHR\r\na_2;WAHR;WAHR;WAHR\r\n"
    "a_3;WAHR;WAHR;WAHR\r\nb_1;WAHR;FALSCH;WAHR\r\nb_2;WAHR;FALSCH;WAHR\r\n",
    "crosses": "case;liver;spleen;tumour;remark\na_1;x;x;x;fine\na_2;X;x;x;\na_3;x;x;x;\n"
    "b_1;x;;x;\nb_2;x;;x;not drawn\n",
    "files": "case,annotated\na_1.nii.gz,all\na_2.nii.gz,all\na_3.nii.gz,all\n"
    "b_1.nii.gz,liver;tumour\nb_2.nii.gz,liver;tumour\n",
    "lines above": "Organs, as of March\nexported; 12.3.;;\n;;;\n;Organs;;\n"
    "Case;liver;spleen;tumour\na_1;1;1;1\na_2;1;1;1\na_3;1;1;1\nb_1;1;0;1\nb_2;1;0;1\n;;;\n",
    "numbers": "case\tliver\tspleen\ttumour\na_1\t1.0\t100%\t1,0\na_2\t100 %\t1\t1\n"
    "a_3\t1\t1\t1\nb_1\t1\t0.0\t1\nb_2\t1\t0%\t1\n",
    "image files": "Image,liver,spleen,tumour\nimagesTr/a_1_0000.nii.gz,+,+,+\n"
    "A_2.nii.gz,+,+,+\nC:\\my scans\\a_3.nii.gz,+,+,+\nb_1_0000.nii.gz,+,-,+\nB_2,+,-,+\n",
    "crosses and dashes": "case,liver,spleen,tumour\na_1,x,x,x\na_2,x,x,x\na_3,x,x,x\n"
    "b_1,x,?,x\nb_2,x,n/a,x\n",
    "lists": "Case,Annotated\na_1,ALL\na_2,All\na_3,Liver; Spleen; Tumour\nb_1,LIVER;Tumour\n"
    "b_2,Tumour | liver\n",
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_as_people_have_them(folder, tmp_path, capsys, kind):
    (tmp_path / "cases.csv").write_bytes(TABLES[kind].encode())
    assert annotate("--annotated", tmp_path / "cases.csv") == 0
    contract = contract_of(folder)
    groups = {case: contract.cases[case] for case in VALUES}
    assert groups == dict.fromkeys(["a_1", "a_2", "a_3"], "complete") | dict.fromkeys(
        ["b_1", "b_2"], "without spleen"
    )
    ignored = {"German": "Leber", "crosses": "remark"}
    notes = [line for line in capsys.readouterr().out.splitlines() if "ignored" in line]
    assert len(notes) == (kind in ignored)
    assert all(notes[0].endswith(ignored[kind]) for _ in notes)


def test_what_a_table_does_not_state_is_told(folder, tmp_path, capsys):
    (tmp_path / "cases.csv").write_text(TABLES["image files"])
    assert annotate("--annotated", tmp_path / "cases.csv") == 0
    check_facts(capsys.readouterr().out, "'a_1_0000' is 'a_1'", "'A_2' is 'a_2'", "'-'")


def test_letters_and_marks_in_two_spellings(tmp_path, monkeypatch):
    """macOS writes `ü` as two characters."""
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    cases = {"M\u00fcller": slabs(1), "b": slabs(1, 2)}
    labels = {"background": 0, "Br\u00fccke": 1, "Niere": 2}
    folder = write_nnunet(tmp_path, "Dataset011_Umlauts", labels, cases)
    (tmp_path / "t.csv").write_text("case,annotated\nMu\u0308ller,Bru\u0308cke\nb,all\n")
    assert main(["annotate", "-d", "11", "-np", "1", "--annotated", str(tmp_path / "t.csv")]) == 0
    assert contract_of(folder).annotated("M\u00fcller") == ("Br\u00fccke",)
    words = ["--replace", "--missing", "Niere", "--in", "Mu\u0308ller"]
    assert main(["annotate", "-d", "11", "-np", "1", *words]) == 0


def test_one_name_in_training_and_test_is_refused(folder, capsys):
    """Only the voxels of one of the two would be compared with the declaration."""
    write_volume(folder / "imagesTs" / "b_1_0000.nii.gz", np.zeros((8, 6, 5), np.float32))
    write_volume(folder / "labelsTs" / "b_1.nii.gz", label_map(1))
    check_facts(error(capsys, "--missing", "spleen", "--in", "b_1"), "b_1", "training", "test")


@pytest.mark.parametrize(
    ("cases", "name"),
    [(["007", "a"], "007"), (["007", "07"], "7"), (["7", "007"], "7"), (["a"], "7")],
)
def test_zeros_that_a_spreadsheet_drops(cases, name):
    """`7` is `007`, but not where it may be another case."""
    table = AnnotatedTable("t.csv", {"7": frozenset({1})}, {"7": "t.csv, line 2"})
    assert list(with_names_of_cases(table, cases).annotated) == [name]


def test_a_workbook_is_not_a_table(folder, tmp_path, capsys):
    (tmp_path / "cases.xlsx").write_bytes(b"PK\x03\x04 and more")
    message = error(capsys, "--annotated", tmp_path / "cases.xlsx")
    check_facts(message, "cases.xlsx", "CSV")


def test_empty_cells_beside_yes_and_no_are_not_guessed(folder, tmp_path, capsys):
    (tmp_path / "cases.csv").write_text(BY_COLUMN.replace("b_1;1;no;1", "b_1;1;;1"))
    message = error(capsys, "--annotated", tmp_path / "cases.csv")
    assert "line 5" in message
    assert "spleen" in message


@pytest.mark.parametrize("names", [("hint", "spleen"), ("Liver", "liver"), ("name", "b")])
@pytest.mark.parametrize("separator", [",", ";"])
def test_every_suggestion_is_accepted(tmp_path, monkeypatch, names, separator):
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    monkeypatch.delenv("nnUNet_preprocessed", raising=False)
    monkeypatch.chdir(tmp_path)
    labels = {"background": 0, **{name: value for value, name in enumerate(names, start=1)}}
    arrays = {"a": slabs(1, 2), "b": slabs(1)}
    folder = write_nnunet(tmp_path, "Dataset003_X", labels, arrays)
    words = ["annotate", "-d", "3", "-np", "1"]
    assert main([*words, "--suggest", "--separator", separator, "-o", "t.csv"]) == 0
    assert main([*words, "--annotated", "t.csv"]) == 0
    assert contract_of(folder).coverage() == {"background": 1, names[0]: 2, names[1]: 1}


def test_values_before_names(folder, capsys):
    """Labels of nnU-Net v2 the wrong way round, nnU-Net v1, and the Decathlon."""
    labels = {"0": "background", "1": "liver"}
    content = {**read_json(folder / "dataset.json"), "labels": labels}
    words = ("--missing", "liver", "--in", "b_1")
    write_json(folder / "dataset.json", content)
    assert '"background": 0' in error(capsys, *words)
    content["modality"] = content.pop("channel_names")
    write_json(folder / "dataset.json", content)
    assert f"nnUNetv2_convert_old_nnUNet_dataset {folder}" in error(capsys, *words)
    for path in (folder / "imagesTr").iterdir():
        path.rename(str(path).replace("_0000", ""))
    assert f"nnUNetv2_convert_MSD_dataset -i {folder}" in error(capsys, *words)


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
        capsys, "--value-names", "liver", "spleen", "tumour", "--missing", "rest", "--in", "b_1"
    )
    assert "a region: name its labels (spleen, tumour)" in message
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
