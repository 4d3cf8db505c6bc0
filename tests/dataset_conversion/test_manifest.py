"""Manifests: the examples of docs/manifest.md are converted as they stand; mistakes are named."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.commands import convert as convert_module
from nnunet_labelset.commands import merge as merge_module
from nnunet_labelset.dataset_conversion.sources import manifest as manifest_module
from nnunet_labelset.dataset_conversion.sources.cases import (
    find_cases,
    pattern_regex,
    read_annotated_list,
)
from nnunet_labelset.dataset_conversion.sources.manifest import (
    LABEL,
    SOURCE_KEYS,
    load_manifest,
    presets,
)
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from tests.helpers.conversion import (
    DOCUMENT,
    contract_of,
    convert_example,
    label_sets_of,
    random_image,
    read_array,
    slabs,
    write_case_folder,
    write_volume,
)
from tests.helpers.conversion import convert_mine as convert
from tests.helpers.errors import check_facts, facts_of, refusal

CSV = re.findall(r"```csv\n(.*?)```", DOCUMENT, re.S)


def sets_by_value(dataset: Path, case: str, labels: np.ndarray) -> dict[int, set[str]]:
    after = label_sets_of(dataset, case)
    found = {}
    for value in np.unique(labels).tolist():
        (stored,) = set(after[labels == value])
        found[value] = set(stored)
    return found


def test_abdomen(tmp_path):
    for folder in ("Task03_Liver/imagesTr", "Task03_Liver/labelsTr"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "._liver_1.nii.gz").write_bytes(b"rubbish of a file system")
    write_volume(tmp_path / "Task03_Liver/imagesTr/liver_1.nii.gz", random_image())
    write_volume(tmp_path / "Task03_Liver/labelsTr/liver_1.nii.gz", slabs(1, 2))
    write_volume(tmp_path / "kits19/data/case_00000/imaging.nii.gz", random_image())
    write_volume(tmp_path / "kits19/data/case_00000/segmentation.nii.gz", slabs(1, 2))
    write_volume(tmp_path / "BTCV/img/img0001.nii.gz", random_image())
    write_volume(tmp_path / "BTCV/label/label0001.nii.gz", slabs(*range(1, 14)))
    write_volume(tmp_path / "amos22/imagesTr/amos_0001.nii.gz", random_image())
    write_volume(tmp_path / "amos22/labelsTr/amos_0001.nii.gz", slabs(*range(1, 16)))
    write_volume(tmp_path / "Totalsegmentator_dataset/s0000/ct.nii.gz", random_image())
    # stomach is no leaf here
    structures = ("liver", "spleen", "kidney_left", "kidney_right", "stomach")
    for number, structure in enumerate(structures, start=1):
        binary = (slabs(1, 2, 3, 4, 5) == number).astype(np.uint8)
        write_volume(
            tmp_path / f"Totalsegmentator_dataset/s0000/segmentations/{structure}.nii.gz", binary
        )
    dataset = convert_example(tmp_path, "abdomen.toml")
    assert read_json(dataset / "dataset.json")["channel_names"] == {"0": "CT"}
    both_kidney, both_liver = {"kidney", "kidney_tumour"}, {"liver", "liver_tumour"}
    assert sets_by_value(dataset, "liver_1", slabs(1, 2)) == {
        0: {"background", "spleen", "kidney", "kidney_tumour"}, 1: {"liver"}, 2: {"liver_tumour"},
    }  # fmt: skip
    assert sets_by_value(dataset, "case_00000", slabs(1, 2)) == {
        0: {"background", "spleen", "liver", "liver_tumour"}, 1: {"kidney"}, 2: {"kidney_tumour"},
    }  # fmt: skip
    btcv = sets_by_value(dataset, "btcv_0001", slabs(*range(1, 14)))
    assert (btcv[0], btcv[1], btcv[2], btcv[6]) == (
        {"background"},
        {"spleen"},
        both_kidney,
        both_liver,
    )
    assert btcv[13] == {"background"}
    amos = sets_by_value(dataset, "amos_0001", slabs(*range(1, 16)))
    assert (amos[0], amos[1], amos[3], amos[6]) == (
        {"background"},
        {"spleen"},
        both_kidney,
        both_liver,
    )
    assert amos[15] == {"background"}
    assert sets_by_value(dataset, "s0000", slabs(1, 2, 3, 4, 0)) == {
        0: {"background"}, 1: both_liver, 2: {"spleen"}, 3: both_kidney, 4: both_kidney,
    }  # fmt: skip


def test_neonates(tmp_path):
    folder = tmp_path / "dhcp" / "sub-CC00050" / "ses-7201" / "anat"
    labels = slabs(*range(1, 10))
    mask = (labels > 0).astype(np.uint8)
    for suffix, array in {
        "T1w": random_image(1), "T2w": random_image(2), "desc-brain_mask": mask, "desc-drawem9_dseg": labels,
    }.items():  # fmt: skip
        write_volume(folder / f"sub-CC00050_ses-7201_{suffix}.nii.gz", array)
    dataset = convert_example(tmp_path, "neonates.toml")
    case = "sub-CC00050"
    assert np.array_equal(read_array(dataset / "imagesTr" / f"{case}_0001.nii.gz"), random_image(2))
    after = sets_by_value(dataset, case, labels)
    assert (after[2], after[4], after[6]) == ({"gray_matter"}, {"background"}, {"cerebellum"})
    assert after[9] == {"gray_matter", "white_matter"}
    assert after[0] == {"background"}


def test_clinic_case_list(tmp_path):
    (tmp_path / "clinic.csv").write_text(CSV[1])
    for number in (1, 2, 3):
        write_volume(tmp_path / f"scans/{number:03d}.nii.gz", random_image(number))
    write_volume(tmp_path / "masks/001.nii.gz", slabs(1, 2))
    write_volume(tmp_path / "masks/002.nii.gz", slabs(1))
    dataset = convert_example(tmp_path, "clinic.toml")
    assert sets_by_value(dataset, "p001", slabs(1, 2)) == {
        0: {"background"},
        1: {"prostate"},
        2: {"lesion"},
    }
    assert sets_by_value(dataset, "p002", slabs(1)) == {
        0: {"background", "lesion"},
        1: {"prostate"},
    }
    assert (dataset / "imagesTs" / "p003_0000.nii.gz").exists()
    assert "p003" not in contract_of(dataset).cases


def test_annotated_table_of_the_document(tmp_path):
    (tmp_path / "annotated.csv").write_text(CSV[0])
    write_case_folder(tmp_path / "leuven", "leuven_001", slabs(1, 2, 3))
    write_case_folder(tmp_path / "leuven", "leuven_002", slabs(1, 2, 3, 4))
    arguments = [
        f"--source=leuven_controls={tmp_path / 'leuven'}",
        "--annotated",
        str(tmp_path / "annotated.csv"),
    ]
    assert convert(tmp_path / "raw", *arguments) == 0
    assert contract_of(tmp_path / "raw" / "Dataset030_Mine").coverage()["external_csf"] == 1


def test_the_document_knows_every_preset_and_key():
    for name in presets():
        assert f"`{name}`" in DOCUMENT
    for key in SOURCE_KEYS - {"labels", "absorbs"}:
        assert f"`{key}" in DOCUMENT
    known = ""
    for module in (convert_module, merge_module):
        parser = argparse.ArgumentParser()
        module.configure(parser)
        known += parser.format_help()
    for flag in re.findall(r"[ `(](--[a-z][a-z-]+)", DOCUMENT):
        assert re.search(rf"{flag}\b(?!-)", known), flag


def test_structures_that_overlap(tmp_path, capsys):
    write_volume(tmp_path / "s/x/ct.nii.gz", random_image())
    liver = (slabs(1, 1) > 0).astype(np.uint8)
    tumour = (slabs(0, 1) > 0).astype(np.uint8)
    write_volume(tmp_path / "s/x/liver.nii.gz", liver)
    write_volume(tmp_path / "s/x/tumour.nii.gz", tumour)
    text = (
        'leaves = ["background", "liver", "tumour"]\n[sources.s]\nfolder = "s"\nimage = '
        '"{case}/ct.nii.gz"\n'
        'label = "{case}/{structure}.nii.gz"\n#\n[sources.s.labels]\nliver = "liver"\ntumour = '
        '"tumour"\n'
    )
    (tmp_path / "m.toml").write_text(text)
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "m.toml")) == 1
    check_facts(capsys.readouterr().err, f"tumour.nii.gz: {tumour.sum()} voxels", "overlap")
    (tmp_path / "m.toml").write_text(text.replace("#", 'overlap = "last"'))
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "m.toml")) == 0
    values = read_array(tmp_path / "raw" / "Dataset030_Mine" / "labelsTr" / "x.nii.gz")
    assert np.array_equal(values, liver + tumour)
    notes = (tmp_path / "raw" / "Dataset030_Mine" / "conversion_notes.csv").read_text()
    assert f"tumour,{tumour.sum()} voxels" in notes
    (tmp_path / "s/x/tumour.nii.gz").unlink()
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "m.toml"), "--overwrite") == 1
    check_facts(capsys.readouterr().err, "'tumour' in x", "varies")
    (tmp_path / "a.csv").write_text("case,annotated\nx,liver\n")  # not drawn: no file needed
    arguments = [
        "-m",
        str(tmp_path / "m.toml"),
        "--overwrite",
        "--annotated",
        str(tmp_path / "a.csv"),
    ]
    assert convert(tmp_path / "raw", *arguments) == 0
    assert contract_of(tmp_path / "raw" / "Dataset030_Mine").annotated("x") == ("liver",)


def test_source_like_a_preset(tmp_path):
    """A preset with one key changed, for its own folder names."""
    leaves = "\n".join(TOML_LEAVES)
    (tmp_path / "m.toml").write_text(
        f'{leaves}\nchannels = ["T2w"]\n[sources.feta]\nlike = "feta"\ncase = "scan[0-9]+"\nprefix '
        '= "my-"\n'
    )
    source = load_manifest(tmp_path / "m.toml").sources["feta"]
    assert source.case == "scan[0-9]+"
    assert source.labels == presets()["feta"].sources["feta"].labels


def test_a_preset_with_other_leaves_is_one_file(tmp_path, monkeypatch, capsys):
    shipped = tmp_path / "presets"
    shutil.copytree(manifest_module.PRESETS, shipped)
    (shipped / "liver.toml").write_text(GOOD.replace("sources.s", "sources.liver_ct"))
    monkeypatch.setattr(manifest_module, "PRESETS", shipped)
    write_volume(tmp_path / "s" / "a_i.nii.gz", slabs(0, 1))
    write_volume(tmp_path / "s" / "a_l.nii.gz", slabs(0, 1))
    assert convert(tmp_path / "raw", f"--source=liver_ct={tmp_path / 's'}") == 0
    assert contract_of(tmp_path / "raw" / "Dataset030_Mine").leaf_names == ("background", "liver")
    both = [f"--source={name}={tmp_path / 's'}" for name in ("liver_ct", "atlas")]
    assert convert(tmp_path / "raw", *both, "--overwrite") == 1
    assert (
        "--source atlas: the preset has other labels or channels than 'liver_ct'"
        in capsys.readouterr().err
    )


TOML_LEAVES = ["leaves = ["] + [f'"{leaf}",' for leaf in presets()["feta"].leaves] + ["]"]

GOOD = """leaves = ["background", "liver"]
[sources.s]
image = "{case}_i.nii.gz"
label = "{case}_l.nii.gz"
labels.1 = "liver"
"""
BROKEN = {
    "toml": ("leaves = [", "leaves = ", "not readable as TOML"),
    "key": ("image =", "imgae =", "unknown key 'imgae'; did you mean 'image'?"),
    "leaf": ('1 = "liver"', '1 = "livre"', "sources.s.labels: 1: unknown label 'livre'; did you mean 'liver'?"),
    "value": ("labels.1", "labels.x", "labels: x: expected values such as"),
    "twice": ("labels.1", "labels.\"1-3 2\"", "value 2 is given twice"),
    "no_case": ("{case}_l", "l", "pattern 'l.nii.gz' has no {case}"),
    "placeholder": ("{case}_l", "{case}_{year}_l", "unknown placeholder {year}"),
    "background": ('"background", ', "", "'background' first"),
    "like": ("image =", 'like = "fetta"\nimage =', "no other source 'fetta'; did you mean 'feta'?"),
    "regex": ("image =", 'case = "("\nimage =', "case: not a regular expression"),
    "part": ("image =", 'part = "tset"\nimage =', "expected 'training' or 'test', but got 'tset'"),
    "channels": ("leaves", 'channels = ["T1", "T2"]\nleaves', "expected one pattern for each channel: T1, T2"),
    "flag": ("image =", 'replace_nan = "yes"\nimage =', "replace_nan: expected true or false"),
    "empty_set": ('1 = "liver"', "1 = []", "labels: 1: empty label-set"),
    "type": ('1 = "liver"', "1 = 1", "expected a label or a list of labels, but got 1"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", BROKEN)
def test_mistakes_in_a_manifest(tmp_path, mistake):
    path = tmp_path / "m.toml"
    path.write_text(GOOD)
    load_manifest(path)
    old, new, message = BROKEN[mistake]
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    with refusal(LabelSetError, path, *facts_of(message)):
        load_manifest(path)


def test_patterns():
    assert (
        pattern_regex("**/{case}/anat/{case}_*_T2w.nii.gz").fullmatch(
            "a/b/s1/anat/s1_x_T2w.nii.gz"
        )["case"]
        == "s1"
    )
    assert not pattern_regex("{case}/{case}.nii").fullmatch("a/b.nii")
    assert not pattern_regex("{case}.nii").fullmatch("a/b.nii")
    assert not pattern_regex("{case}.nii").fullmatch("a_nii")


def test_find_cases_follows_links_once_and_looks_no_deeper_than_needed(tmp_path):
    write_volume(tmp_path / "store" / "a" / "i.nii.gz", slabs(1))
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "store" / "a")
    (tmp_path / "root" / "circle").symlink_to(tmp_path / "root")
    assert list(find_cases(tmp_path / "root", {LABEL: ["{case}/i.nii.gz"]})) == ["linked"]
    assert list(find_cases(tmp_path / "root", {LABEL: ["**/{case}/i.nii.gz"]})) == ["linked"]


def test_two_copies_of_a_case_are_named(tmp_path, capsys):
    for folder in ("one", "two"):
        write_volume(tmp_path / "feta" / folder / "sub-001_T2w.nii.gz", random_image())
        write_volume(tmp_path / "feta" / folder / "sub-001_dseg.nii.gz", slabs(1))
    assert convert(tmp_path / "raw", f"--source=feta={tmp_path / 'feta'}") == 1
    error = capsys.readouterr().err
    check_facts(error, "label", "'sub-001'", "two/sub-001_dseg.nii.gz")


def test_annotated_leaves_are_listed_as_everywhere(tmp_path):
    """In a case list as in the tables of annotate and evaluate: semicolons or commas, or all."""
    table = tmp_path / "list.csv"
    table.write_text('case,annotated\na,liver;spleen\nb,"liver, spleen"\nc,all\nd,\n')
    rows = read_annotated_list(table, ("background", "liver", "spleen", "kidney")).rows
    found = {case: row.annotated for (_, case), row in rows.items()}
    assert found == {"a": {1, 2}, "b": {1, 2}, "c": {0, 1, 2, 3}, "d": None}
    table.write_text("case,annotated\na,livr\n")
    with refusal(LabelSetError, "line 2", "annotated", "'livr'", "'liver'?"):
        read_annotated_list(table, ("background", "liver"))


def test_a_case_list_as_people_have_it(tmp_path, capsys):
    """Other capitals, remarks, a list that lies in the folder of the source."""
    (tmp_path / "m.toml").write_text(
        'leaves = ["background", "liver"]\n[sources.clinic]\nfolder = "data"\ncases = "list.csv"\n'
        "[sources.clinic.labels]\n1 = 'liver'\n"
    )
    write_volume(tmp_path / "data" / "i.nii.gz", random_image())
    write_volume(tmp_path / "data" / "l.nii.gz", slabs(1))
    table = tmp_path / "data" / "list.csv"
    table.write_text("Our cases\nPatient;Image;Label;Remarks\np1;i.nii.gz;l.nii.gz;tired\n")
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "m.toml")) == 0
    notes = next((tmp_path / "raw").glob("*/conversion_notes.csv")).read_text()
    check_facts(notes, "p1", "Remarks")
    table.write_text("Patient;Image;Lable\np1;i.nii.gz;l.nii.gz\n")
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "m.toml"), "--overwrite") == 1
    check_facts(capsys.readouterr().err, "list.csv", "'Lable'", "'label'")


@pytest.mark.parametrize(
    "text",
    [
        "Patient;Liver;Spleen;Kidney;Remarks\na.nii.gz;ja;nein;ja;\nb;1;0;1;tired\n",
        "case,liver,spleen,kidney\na,x,,x\nb,x,,x\n",
        "case,part,liver,spleen,kidney\na,,yes,no,yes\nb,test,yes,no,yes\nc,test,,,\n",
    ],
)
def test_annotated_takes_yes_and_no(tmp_path, text):
    table = tmp_path / "list.csv"
    table.write_text(text)
    listed = read_annotated_list(table, ("background", "liver", "spleen", "kidney"))
    found = {case: row.annotated for (_, case), row in listed.rows.items()}
    assert found["a"] == found["b"] == {1, 3}
    assert found.get("c") is None
    assert [note for note in listed.notes if "Remarks" in note] == list(listed.notes)
    assert bool(listed.notes) == ("Remarks" in text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("case,liver\na,yes\n", "spleen"),  # no column of its own
        ("case,liver,spleen,kidney\na,yes,perhaps,no\n", "perhaps"),
        ("case,liver,spleen,kidney,prt\na,yes,no,no,test\n", "prt"),  # part: not to be overlooked
        ("case,remarks\na,tired\n", "annotated"),
    ],
)
def test_annotated_refuses_what_is_unclear(tmp_path, text, named):
    table = tmp_path / "list.csv"
    table.write_text(text)
    with pytest.raises(LabelSetError, match=named):
        read_annotated_list(table, ("background", "liver", "spleen", "kidney"))


def test_a_dry_run_counts_as_the_data_set_does(tmp_path, capsys):
    """What was drawn as one is annotated in no case; cases with a problem are named, not counted."""
    for case in ("a", "b", "c"):
        write_volume(tmp_path / "s" / case / "ct.nii.gz", random_image())
        write_volume(tmp_path / "s" / case / "label.nii.gz", slabs(1, 2))
    (tmp_path / "s" / "c" / "ct.nii.gz").unlink()
    manifest = tmp_path / "m.toml"
    manifest.write_text(
        'leaves = ["background", "liver", "left", "right"]\n[sources.s]\nfolder = "s"\n'
        'image = "{case}/ct.nii.gz"\nlabel = "{case}/label.nii.gz"\n'
        '[sources.s.labels]\n1 = "liver"\n2 = ["left", "right"]\n'
    )
    command = [tmp_path / "raw", "-m", str(manifest), "--skip-bad-cases"]
    assert convert(*command[:-1], "--dry-run") == 1
    output, error = capsys.readouterr()
    assert "'c'" in error
    assert "problems: c" in output
    assert "s: 2 case(s)" in output
    assert convert(*command, "--dry-run") == 0
    assert "left in 0 of 2, drawn as one with right" in capsys.readouterr().out
    assert not (tmp_path / "raw").exists()
    assert convert(*command) == 0
    coverage = contract_of(tmp_path / "raw" / "Dataset030_Mine").coverage()
    assert (coverage["liver"], coverage["left"], coverage["right"]) == (2, 0, 0)
