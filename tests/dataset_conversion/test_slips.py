"""Likely slips of users are errors or notes that say what to do; none passes silently."""

from __future__ import annotations

import csv
import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.dataset_conversion.job import safe_name
from nnunet_labelset.datasets import normalisation
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.nnunet.raw import RawCase
from tests.helpers.conversion import (
    contract_of,
    convert,
    random_image,
    slabs,
    write_nnunet,
    write_volume,
)

DATASET = "Dataset030_Mine"


def convert_mine(folder: Path, *arguments: str) -> int:
    manifest = ["-m", str(folder / "m.toml")]
    return convert(folder / "raw", *manifest, *arguments, number="30", name="Mine")


def write_cases(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        write_volume(folder / name / "ct.nii.gz", random_image(number))
        write_volume(folder / name / "label.nii.gz", slabs(1))


def write_manifest(folder: Path, **labels: str) -> None:
    """Two sources; `labels` are the lines of their tables."""
    text = 'leaves = ["background", "liver", "spleen"]\n'
    for source, table in labels.items():
        text += (
            f'[sources.{source}]\nfolder = "{source}"\nimage = "{{case}}/ct.nii.gz"\n'
            f'label = "{{case}}/label.nii.gz"\n[sources.{source}.labels]\n{table}\n'
        )
    (folder / "m.toml").write_text(text)


def test_an_inverted_mask_is_told(tmp_path, capsys):
    write_cases(tmp_path / "a", "a1", "a2", "a3", "a4")
    liver = slabs(1) * 0
    liver[:1] = 1
    for case in ("a1", "a2", "a3"):
        write_volume(tmp_path / "a" / case / "label.nii.gz", liver)
    write_volume(tmp_path / "a" / "a4" / "label.nii.gz", 1 - liver)
    write_manifest(tmp_path, a='1 = "liver"\n2 = "spleen"')
    assert convert_mine(tmp_path) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "fills" in line]
    assert "a4" in line


def test_an_offset_does_not_hide_what_was_not_drawn(tmp_path, capsys):
    """100 was added to all values: 100 is unlabelled, not certainly background."""
    write_cases(tmp_path / "a", "a1")
    write_volume(tmp_path / "a" / "a1" / "label.nii.gz", slabs(0, 0, 1) + 100)
    write_manifest(tmp_path, a='100 = "background"\n101 = "liver"', b='1 = "spleen"')
    write_cases(tmp_path / "b", "b1")
    assert convert_mine(tmp_path) == 1
    assert '["background", "spleen"]' in capsys.readouterr().err
    right = '100 = ["background", "spleen"]\n101 = "liver"'
    write_manifest(tmp_path, a=right, b='1 = "spleen"')
    assert convert_mine(tmp_path) == 0
    contract = contract_of(tmp_path / "raw" / DATASET)
    assert set(contract.annotated("a1")) == {"liver"}


def test_zero_as_background_does_not_hide_what_was_not_drawn(tmp_path, capsys):
    write_cases(tmp_path / "a", "a1", "a2")
    write_cases(tmp_path / "b", "b1")
    write_manifest(tmp_path, a='0 = "background"\n1 = "liver"', b='1 = "spleen"')
    assert convert_mine(tmp_path) == 1
    error = capsys.readouterr().err
    assert "spleen" in error
    assert "[sources.a.labels]" in error
    assert error.count("sources.a.labels") == 1  # told once, not for every case
    write_manifest(tmp_path, a='1 = "liver"', b='1 = "spleen"')
    assert convert_mine(tmp_path) == 0
    assert contract_of(tmp_path / "raw" / DATASET).coverage()["background"] == 0


def test_zero_as_background_is_fine_where_all_was_drawn(tmp_path):
    write_cases(tmp_path / "a", "a1")
    write_manifest(tmp_path, a='0 = "background"\n1 = "liver"\n2 = "spleen"')
    assert convert_mine(tmp_path) == 0
    assert contract_of(tmp_path / "raw" / DATASET).is_fully_annotated("a1")


@pytest.mark.parametrize("prefix", [[], ["--prefix"]])
def test_a_row_without_source_is_about_one_case(tmp_path, capsys, prefix):
    write_cases(tmp_path / "a", "001")
    write_cases(tmp_path / "b", "001", "002")
    write_manifest(tmp_path, a='1 = "liver"\n2 = "spleen"', b='1 = "liver"\n2 = "spleen"')
    table = tmp_path / "rows.csv"
    table.write_text("case,annotated\n001,liver\n")
    assert convert_mine(tmp_path, "--annotated", str(table), *prefix) == 1
    error = capsys.readouterr().err
    assert f"{table}, line 2" in error
    assert "source" in error
    table.write_text("case,source,annotated\n001,a,liver\n")
    assert convert_mine(tmp_path, "--annotated", str(table), "--prefix") == 0
    contract = contract_of(tmp_path / "raw" / DATASET)
    assert contract.annotated("a_001") == ("liver",)
    assert contract.is_fully_annotated("b_001")


def test_skipping_a_name_that_is_taken_keeps_the_case_that_has_it(tmp_path, capsys):
    write_cases(tmp_path / "a", "x")
    write_cases(tmp_path / "b", "x", "y")
    write_manifest(tmp_path, a='1 = "liver"', b='1 = "liver"')
    assert convert_mine(tmp_path, "--skip-bad-cases") == 0
    contract = contract_of(tmp_path / "raw" / DATASET)
    assert {case: contract.cases[case] for case in sorted(contract.cases)} == {"x": "a", "y": "b"}
    skipped = [line for line in capsys.readouterr().out.splitlines() if "skipped" in line]
    assert len(skipped) == 1
    assert f"b ({tmp_path / 'b'})" in skipped[0]


def test_two_links_to_one_folder_are_two_cases(tmp_path):
    write_cases(tmp_path / "elsewhere", "scan")
    (tmp_path / "a").mkdir()
    for name in ("first", "second"):
        (tmp_path / "a" / name).symlink_to(tmp_path / "elsewhere" / "scan")
    (tmp_path / "elsewhere" / "scan" / "loop").symlink_to(tmp_path / "a")
    write_manifest(tmp_path, a='1 = "liver"')
    assert convert_mine(tmp_path) == 0
    assert set(contract_of(tmp_path / "raw" / DATASET).cases) == {"first", "second"}


@pytest.mark.parametrize(
    ("before", "after", "fact"),
    [
        ('1 = "liver"', '"3-2" = "liver"', "3-2"),
        ('"spleen"]', '"all"]', "'all'"),
        ('"spleen"]', '""]', "''"),
        ('"spleen"]', '" spleen"]', "' spleen'"),
    ],
)
def test_odd_manifests(tmp_path, capsys, before, after, fact):
    write_cases(tmp_path / "a", "x")
    write_manifest(tmp_path, a='1 = "liver"')
    manifest = tmp_path / "m.toml"
    manifest.write_text(manifest.read_text().replace(before, after))
    assert convert_mine(tmp_path) == 1
    assert fact in capsys.readouterr().err
    assert not (tmp_path / "raw").exists()


def test_a_source_without_a_sound_case_is_still_a_source(tmp_path, capsys):
    write_cases(tmp_path / "a", "x")
    (tmp_path / "a" / "x" / "label.nii.gz").unlink()
    write_manifest(tmp_path, a='1 = "liver"')
    assert convert_mine(tmp_path, "--fully-annotated", "a") == 1
    error = capsys.readouterr().err
    assert "no such source" not in error
    assert "no label file" in error


def test_safe_names(tmp_path, capsys):
    write_cases(tmp_path / "a", "Müller 1", "Müller,1", "007")
    write_manifest(tmp_path, a='1 = "liver"\n2 = "spleen"')
    table = tmp_path / "rows.csv"
    table.write_text("case,annotated\n7,liver\n")
    assert convert_mine(tmp_path, "--annotated", str(table)) == 1
    assert "--safe-names" in capsys.readouterr().err
    assert convert_mine(tmp_path, "--annotated", str(table), "--safe-names") == 0
    contract = contract_of(tmp_path / "raw" / DATASET)
    assert set(contract.cases) == {"007", "Mueller_1", "Mueller_1_2"}
    assert contract.annotated("007") == ("liver",)
    with (tmp_path / "raw" / DATASET / "renamed_cases.csv").open(encoding="utf-8") as file:
        renamed = {row["old"]: row["new"] for row in csv.DictReader(file)}
    assert renamed == {"Müller 1": "Mueller_1", "Müller,1": "Mueller_1_2"}


@pytest.mark.parametrize("name", ["🧠", "..", "a" * 300, "Ł ó dź", "-x", "日本"])
def test_safe_names_are_safe(name):
    assert safe_name(name).replace("_", "").isalnum()
    assert 0 < len(safe_name(name)) <= 100


def test_an_unexpected_error_names_the_case():
    def fail(_: object) -> None:
        raise RuntimeError("odd")

    case = RawCase("pat_7", "training", (Path("/secret/image.nii.gz"),), None)
    with pytest.raises(LabelSetError) as error:
        list(map_parallel(fail, [(case, frozenset())], 1, "Working"))
    assert "pat_7" in str(error.value)
    assert "secret" not in str(error.value)


def test_where_cases_come_from_and_which_are_the_same(tmp_path, capsys):
    write_cases(tmp_path / "a", "x", "y")
    write_cases(tmp_path / "b", "z")  # the image of x
    write_manifest(tmp_path, a='1 = "liver"', b='1 = "liver"')
    assert convert_mine(tmp_path) == 0
    with (tmp_path / "raw" / DATASET / "provenance.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["case"], row["file"]) for row in rows} == {
        (case, str(tmp_path / source / case / name))
        for case, source in {"x": "a", "y": "a", "z": "b"}.items()
        for name in ("ct.nii.gz", "label.nii.gz")
    }
    for row in rows:
        content = Path(row["file"]).read_bytes()
        assert row["blake2b"] == hashlib.blake2b(content, digest_size=32).hexdigest()
    notes = [line for line in capsys.readouterr().out.splitlines() if "same image" in line]
    assert len(notes) == 1
    assert "x" in notes[0]
    assert "z" in notes[0]


def told(text: str, *facts: str) -> bool:
    """Whether one line has all the facts."""
    return any(all(fact in line for fact in facts) for line in text.splitlines())


def test_convert_tells_what_verify_tells(tmp_path, capsys):
    """A label that few cases annotate, one without a voxel in a group, and similar names."""
    write_cases(tmp_path / "a", *(f"a{number}" for number in range(9)))
    write_cases(tmp_path / "b", "b1", "b2")
    write_manifest(tmp_path, a='1 = "liver"\n2 = "spleen"', b='1 = "liver"\n3 = "Spleen"')
    manifest = tmp_path / "m.toml"
    manifest.write_text(manifest.read_text().replace('"spleen"]', '"spleen", "Spleen", "bile"]'))
    assert convert_mine(tmp_path) == 0
    converted = capsys.readouterr().out
    folder = tmp_path / "raw" / DATASET
    assert main(["verify", "-d", str(folder), "-np", "1"]) == 1  # the same image twice
    verified = capsys.readouterr().out
    for text in (converted, verified):
        assert told(text, "'Spleen' is annotated in 2 of 11", "b1")  # rarely annotated
        assert told(text, "'bile'", "no training case")
        assert told(text, "'spleen'", "'Spleen'", "capitals")
        assert told(text, "'spleen'", "9 training case(s)", "no voxel")
        assert told(text, "a0", "b1", "the same image")


def test_merge_and_annotate_tell_it_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    cases = {f"x{number}": slabs(1) for number in range(11)}
    folder = write_nnunet(
        tmp_path, "Dataset003_Organs", {"background": 0, "liver": 1, "spleen": 2}, cases
    )
    shutil.copy(folder / "imagesTr" / "x0_0000.nii.gz", folder / "imagesTr" / "x1_0000.nii.gz")
    declaration = ["--missing", "spleen", "--in", *list(cases)[2:]]
    assert main(["annotate", "-d", "3", "-np", "1", *declaration]) == 0
    annotated = capsys.readouterr().out
    assert main(["merge", "-d", "50", "-n", "All", "-np", "1", "3"]) == 0
    for text in (annotated, capsys.readouterr().out):
        assert told(text, "'spleen' is annotated in 2 of 11", "x0")
        assert told(text, "'spleen'", "2 training case(s)", "no voxel")
        assert told(text, "the same image", "x0", "x1")


@pytest.mark.parametrize(("channel", "is_told"), [("MRI", True), ("CT", False)])
def test_labels_over_air_are_told(tmp_path, capsys, channel, is_told):
    """A skull-stripped image in a data set without mask: what nobody drew covers air, too."""
    image = np.zeros((12, 12, 12), np.float32)
    image[2:8, 2:8, 2:8] = random_image(0, (6, 6, 6))
    labels = np.zeros(image.shape, np.uint8)
    labels[3:6, 3:6, 3:6] = 1
    write_volume(tmp_path / "a" / "x" / "ct.nii.gz", image)
    write_volume(tmp_path / "a" / "x" / "label.nii.gz", labels)
    write_manifest(tmp_path, a='1 = "liver"')
    manifest = tmp_path / "m.toml"
    manifest.write_text(f'channels = ["{channel}"]\n' + manifest.read_text())
    assert convert_mine(tmp_path) == 0
    folder = tmp_path / "raw" / DATASET
    assert main(["verify", "-d", str(folder), "-np", "1"]) == 0
    output = capsys.readouterr().out
    assert output.count("over air") == 2 * is_told
    assert told(output, "(x)", "over air", "--mask") == is_told


def test_which_normalisations_know_no_mask():
    from nnunetv2.preprocessing.normalization import map_channel_name_to_normalization as known

    schemes = known.channel_name_to_normalization_mapping
    without = {name for name, scheme in schemes.items() if not uses_mask(scheme)}
    assert without == normalisation.WITHOUT_MASK


def uses_mask(scheme: type) -> bool:
    return scheme.leaves_pixels_outside_mask_at_zero_if_use_mask_for_norm_is_true


def test_plans_decide_about_the_mask(tmp_path, monkeypatch):
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path))
    folder = tmp_path / "raw" / DATASET
    plans = tmp_path / DATASET / "nnUNetPlans.json"
    assert normalisation.planned_mask(folder) is None
    write_json(plans.with_name("dataset.json"), {})
    for answer in (True, False):
        write_json(plans, {"configurations": {"2d": {"use_mask_for_norm": [answer]}}})
        assert normalisation.planned_mask(folder) is answer
    air = {"x": normalisation.Air(cropped=0.9, labelled=0.5)}
    assert not list(normalisation.find_labelled_air(air))
    assert list(normalisation.find_labelled_air(air, uses_mask=True))


def test_holes_are_not_air():
    image = np.ones((9, 9, 9))
    image[3:6, 3:6, 3:6] = 0  # black ventricles
    labels = (image == 0).astype(np.uint8)
    assert normalisation.measure_air([image], labels) == (1.0, 0.0)
