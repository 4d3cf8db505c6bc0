"""`convert --add`: new cases arrive, and what is there stays as it is."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.dataset_conversion import dataset as writer
from nnunet_labelset.io.files import read_json, write_json
from tests.helpers.conversion import contract_of, convert, random_image, slabs, write_volume

DATASET = "Dataset030_Mine"
MANIFEST = """leaves = ["background", "liver", "spleen"]
[sources.a]
folder = "a"
image = "{case}/ct.nii.gz"
label = "{case}/label.nii.gz"
varies = ["spleen"]
[sources.a.labels]
1 = "liver"
2 = "spleen"
"""


def add_case(folder: Path, name: str, seed: int, *values: int) -> None:
    write_volume(folder / "a" / name / "ct.nii.gz", random_image(seed))
    write_volume(folder / "a" / name / "label.nii.gz", slabs(*values))


def declare(folder: Path, *lines: str) -> None:
    (folder / "t.csv").write_text("\n".join(["case,annotated", *lines]) + "\n")


def run(folder: Path, *arguments: str) -> int:
    options = ["-m", str(folder / "m.toml"), "--annotated", str(folder / "t.csv")]
    return convert(folder / "raw", *options, *arguments, number="30", name="Mine")


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Which files there are, and whether they are still the same ones."""
    files = (path for path in folder.rglob("*") if path.is_file())
    stats = {str(path.relative_to(folder)): path.stat() for path in files}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """Two cases, of which one annotates the spleen."""
    (tmp_path / "m.toml").write_text(MANIFEST)
    add_case(tmp_path, "x", 0, 1, 2)
    add_case(tmp_path, "y", 1, 1)
    declare(tmp_path, "x,liver;spleen", "y,liver")
    assert run(tmp_path) == 0
    return tmp_path


def test_new_cases_are_added_and_old_files_stay(converted: Path, capsys) -> None:
    folder = converted / "raw" / DATASET
    (folder / "thesis.txt").write_text("dear")
    before, contract = snapshot(folder), contract_of(folder)
    add_case(converted, "new", 2, 1, 2)
    declare(converted, "new,all")  # a table of the new cases will do
    assert run(converted, "--add") == 0
    after = snapshot(folder)
    stays = {name for name in before if name.startswith(("images", "labels", "thesis"))}
    assert {name: after[name] for name in stays} == {name: before[name] for name in stays}
    assert {"imagesTr/new_0000.nii.gz", "labelsTr/new.nii.gz"} == set(after) - set(before)
    extended = contract_of(folder)
    for case, protocol in contract.cases.items():
        assert extended.cases[case] == protocol
        assert extended.annotated(case) == contract.annotated(case)
    assert extended.is_fully_annotated("new")
    assert extended.cases["new"] == contract.cases["x"]  # annotated alike
    assert read_json(folder / "dataset.json")["numTraining"] == 3
    with (folder / "provenance.csv").open() as file:
        assert [row["case"] for row in csv.DictReader(file)] == ["x", "x", "y", "y", "new", "new"]
    assert "1 of them are new" in capsys.readouterr().out
    assert main(["verify", "-d", str(folder), "-np", "1"]) == 0
    assert os.listdir(converted / "raw") == [DATASET]


def test_nothing_to_add(converted: Path, capsys) -> None:
    folder = converted / "raw" / DATASET
    before = snapshot(folder)
    assert run(converted, "--add") == 0
    assert "nothing to add" in capsys.readouterr().out
    assert snapshot(folder) == before
    shutil.move(converted / "a", converted / "moved")  # the same files elsewhere
    manifest = converted / "m.toml"
    manifest.write_text(MANIFEST.replace('folder = "a"', 'folder = "moved"'))
    assert run(converted, "--add") == 0
    assert snapshot(folder) == before


def change_image(folder: Path) -> None:
    write_volume(folder / "a" / "x" / "ct.nii.gz", random_image(9))


def other_case_of_that_name(folder: Path) -> None:
    (folder / "a").rename(folder / "old")
    add_case(folder, "x", 7, 1)
    (folder / "a").rename(folder / "b")
    (folder / "m.toml").write_text(MANIFEST.replace('folder = "a"', 'folder = "b"'))
    declare(folder, "x,liver")


def other_value(folder: Path) -> None:
    manifest = folder / "m.toml"
    manifest.write_text(manifest.read_text().replace("2 = ", "3 = "))


def other_label(folder: Path) -> None:
    manifest = folder / "m.toml"
    manifest.write_text(manifest.read_text().replace("spleen", "kidney"))
    declare(folder, "x,all", "y,liver")


def other_channel(folder: Path) -> None:
    manifest = folder / "m.toml"
    manifest.write_text('channels = ["T2"]\n' + manifest.read_text())


def other_declaration(folder: Path) -> None:
    declare(folder, "x,liver;spleen", "y,all")


def no_provenance(folder: Path) -> None:
    (folder / "raw" / DATASET / "provenance.csv").unlink()


def annotated_since(folder: Path) -> None:
    arguments = ["--merged", "liver", "spleen", "--in", "x", "--add", "-np", "1"]
    assert main(["annotate", "-d", str(folder / "raw" / DATASET), *arguments]) == 0


def capitals(folder: Path) -> None:
    (folder / "a").rename(folder / "old")
    add_case(folder, "X", 7, 1)
    declare(folder, "X,liver")


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (change_image, ["a/x/ct.nii.gz", "'x'"]),
        (other_case_of_that_name, ["'x'", "--prefix"]),
        (other_value, ["'x'", "'y'", "manifest"]),
        (other_label, ["kidney", "spleen"]),
        (other_channel, ["T2", "MRI"]),
        (other_declaration, ["'y'", "liver"]),
        (no_provenance, ["provenance.csv"]),
        (annotated_since, ["--undo"]),
        (capitals, ["'X'", "'x'"]),
    ],
)
def test_what_differs_is_an_error_and_nothing_is_written(converted, capsys, change, facts) -> None:
    add_case(converted, "new", 2, 1)
    declare(converted, "x,liver;spleen", "y,liver", "new,liver")
    change(converted)
    before = snapshot(converted / "raw")
    capsys.readouterr()
    assert run(converted, "--add") == 1
    error = capsys.readouterr().err
    assert all(fact in error for fact in facts), error
    assert snapshot(converted / "raw") == before


def test_adding_needs_a_data_set(converted: Path, capsys) -> None:
    shutil.rmtree(converted / "raw")
    assert run(converted, "--add") == 1
    assert DATASET in capsys.readouterr().err
    assert not (converted / "raw").exists()
    assert run(converted, "--add", "--overwrite") == 1


def test_a_case_is_never_added_without_a_declaration(converted: Path, capsys) -> None:
    add_case(converted, "new", 2, 1)
    assert run(converted, "--add") == 1
    error = capsys.readouterr().err
    assert "new" in error
    assert "spleen" in error


def test_preprocessed_data_is_left_alone_and_told(converted: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("nnUNet_raw", str(converted / "raw"))
    monkeypatch.setenv("nnUNet_preprocessed", str(converted / "pre"))
    copy = converted / "pre" / DATASET / "dataset.json"
    write_json(copy, read_json(converted / "raw" / DATASET / "dataset.json"))
    before = copy.read_bytes()
    add_case(converted, "new", 2, 1)
    declare(converted, "new,liver")
    assert run(converted, "--add") == 0
    assert copy.read_bytes() == before
    assert "preprocess" in capsys.readouterr().out


def test_a_stopped_addition_leaves_the_data_set(converted: Path, monkeypatch) -> None:
    folder = converted / "raw" / DATASET
    before = snapshot(folder)
    add_case(converted, "new", 2, 1)
    declare(converted, "new,liver")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, "publish", stop)
        assert run(converted, "--add") == 130
    assert snapshot(folder) == before
    assert run(converted, "--add") == 0
    assert set(contract_of(folder).cases) == {"x", "y", "new"}
    assert os.listdir(converted / "raw") == [DATASET]


def test_a_killed_publication_is_finished(converted: Path) -> None:
    """Between its two renames the data set has no name."""
    folder = converted / "raw" / DATASET
    before = snapshot(folder)
    folder.rename(folder.with_name(f".{DATASET}.old"))
    assert run(converted, "--add") == 0  # nothing to add
    assert snapshot(folder) == before
    assert os.listdir(converted / "raw") == [DATASET]


def test_a_dry_run_shows_the_new_cases_only(converted: Path, capsys) -> None:
    add_case(converted, "new", 2, 1)
    declare(converted, "new,liver")
    before = snapshot(converted)
    capsys.readouterr()
    assert run(converted, "--add", "--dry-run") == 0
    assert "a: 1 case(s)" in capsys.readouterr().out
    assert snapshot(converted) == before


def test_another_source_has_its_own_protocol(converted: Path) -> None:
    manifest = converted / "m.toml"
    manifest.write_text(MANIFEST + '[sources.b]\nlike = "a"\nfolder = "b"\nvaries = []\n')
    write_volume(converted / "b" / "z" / "ct.nii.gz", random_image(5))
    write_volume(converted / "b" / "z" / "label.nii.gz", slabs(1, 2))
    assert run(converted, "--add") == 0
    contract = contract_of(converted / "raw" / DATASET)
    assert contract.cases["z"] == "b"
    assert contract.is_fully_annotated("z")
