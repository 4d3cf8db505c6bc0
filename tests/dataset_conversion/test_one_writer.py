"""One run at a time, whole files, records that are true, nothing of the user's lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.dataset_conversion import dataset as writer
from nnunet_labelset.dataset_conversion.records import Records
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.lock import locked
from nnunet_labelset.nnunet import publish
from tests.helpers.conversion import (
    contract_of,
    convert,
    read_array,
    slabs,
    write_case_folder,
    write_nnunet,
    write_volume,
)
from tests.helpers.errors import check_facts, refusal

LABELS = slabs(*range(1, 9))
HOLD = """
import sys, time
from pathlib import Path
from nnunet_labelset.io.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def source(tmp_path) -> str:
    for number in range(4):
        write_case_folder(tmp_path / "s", f"c{number}", LABELS, seed=number)
    return f"--source=atlas={tmp_path / 's'}"


def test_a_second_run_says_who_holds_the_target(tmp_path, capsys, source):
    raw = tmp_path / "raw"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(raw / "Dataset027_Fetal")], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert convert(raw, source) == 1
        error = capsys.readouterr().err
        check_facts(error, "Dataset027_Fetal", holder.pid)
    finally:
        holder.kill()
        holder.wait()
    assert convert(raw, source) == 0  # the lock ends with its process, however it ends
    assert os.listdir(raw) == ["Dataset027_Fetal"]


@pytest.mark.parametrize("make", [lambda path: path.touch(), lambda path: path.symlink_to(path)])
def test_a_target_that_is_no_folder(tmp_path, capsys, source, make):
    make(tmp_path / "raw")
    assert convert(tmp_path / "raw", source) == 1
    assert f"{tmp_path}/raw: " in capsys.readouterr().err


def test_lock_of_a_run_that_has_just_ended(tmp_path):
    """Whoever opened the file before its holder removed it must not believe to hold the lock."""
    folder = tmp_path / "target"
    for _ in range(3):
        with locked(folder), refusal(LabelSetError, folder, os.getpid()), locked(folder):
            pass
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_told_by_the_writer_and_not_by_the_lock(tmp_path, monkeypatch):
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", no_space)
    with locked(tmp_path / "target"), pytest.raises(LabelSetError), locked(tmp_path / "target"):
        pass


def test_two_runs_at_once_never_mix(tmp_path, source):
    """Different options, the same target: what is published is the work of one of them."""
    raw = tmp_path / "raw"
    start = "import sys; from nnunet_labelset.cli import main; sys.exit(main(sys.argv[1:]))"
    base = ["convert", "-d", "27", "-n", "Fetal", "-o", str(raw), "-np", "1", "--overwrite", source]
    runs = []
    for extra in ([], ["--withhold", "brainstem", "corpus_callosum"]):
        runs.append(
            subprocess.Popen(
                [sys.executable, "-c", start, *base, *extra], stderr=subprocess.PIPE, text=True
            )
        )
        time.sleep(0.05)
    errors = [run.communicate()[1] for run in runs]
    codes = [run.returncode for run in runs]
    assert 0 in codes, errors
    assert all(
        code == 0 or "is writing it" in error for code, error in zip(codes, errors, strict=True)
    )
    dataset = raw / "Dataset027_Fetal"
    withheld = "ignore" in read_json(dataset / "dataset.json")["labels"]
    for number in range(4):
        assert (9 in read_array(dataset / "labelsTr" / f"c{number}.nii.gz")) == withheld
    assert os.listdir(raw) == [dataset.name]


def test_records_count_only_with_their_files(tmp_path, monkeypatch, source, capsys):
    """Publishing fails, another run with fewer cases fails too, the first command is given
    again.
    """

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    for arguments in ([source], [source.replace("/s", "/fewer")]):
        write_case_folder(tmp_path / "fewer", "c0", LABELS)
        with monkeypatch.context() as patch:
            patch.setattr(publish, "write_json", fail)
            assert convert(tmp_path / "raw", *arguments) == 1
        assert "Input/output error" in capsys.readouterr().err
    assert convert(tmp_path / "raw", source) == 0
    dataset = tmp_path / "raw" / "Dataset027_Fetal"
    assert read_json(dataset / "dataset.json")["numTraining"] == 4
    assert len(os.listdir(dataset / "labelsTr")) == len(os.listdir(dataset / "imagesTr")) == 4


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"fingerprint": 1}', "null", '{"result": 3}', "\0"]
)
def test_a_broken_record_is_as_none(tmp_path, monkeypatch, capsys, source, content):
    with monkeypatch.context() as patch:
        patch.setattr(writer, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert convert(tmp_path / "raw", source) == 130
    records = tmp_path / "raw" / ".Dataset027_Fetal.incomplete" / ".records"
    lines = records.read_text().splitlines()
    assert [json.loads(line)["case"] for line in lines] == ["c0", "c1", "c2", "c3"]
    lines[1] = content
    records.write_text("\n".join(lines)[:-5])  # and half a line about c3
    capsys.readouterr()
    assert convert(tmp_path / "raw", source) == 0
    assert "2 of them" in capsys.readouterr().out
    assert len(contract_of(tmp_path / "raw" / "Dataset027_Fetal").cases) == 4


def test_records_of_other_rules_do_not_vouch_for_new_files(tmp_path, monkeypatch, source):
    """Stopped by one set of rules, stopped again by others after files were rewritten: the first
    ones start anew.
    """
    # label maps of the same size
    rules = [[source, "--withhold", leaf] for leaf in ("brainstem", "cerebellum")]
    dataset = tmp_path / "raw" / "Dataset027_Fetal"
    expected = {}
    for arguments in rules:
        assert convert(tmp_path / "raw", *arguments) == 0
        expected[arguments[2]] = read_array(dataset / "labelsTr" / "c0.nii.gz")
        shutil.rmtree(dataset)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for arguments, (where, name) in zip(
        rules, ((writer, "publish"), (Records, "add")), strict=True
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, stop)
            assert convert(tmp_path / "raw", *arguments) == 130
    assert convert(tmp_path / "raw", *rules[0]) == 0
    assert np.array_equal(read_array(dataset / "labelsTr" / "c0.nii.gz"), expected["brainstem"])


def test_no_processes_leave_nothing(tmp_path, capsys, source):
    assert convert(tmp_path / "raw", source, "-np", "0") == 1
    check_facts(capsys.readouterr().err, "-np 0")
    assert not (tmp_path / "raw").exists()


def test_overwrite_through_a_link_keeps_the_link_and_foreign_files(tmp_path, capsys, source):
    store = tmp_path / "store" / "fetal"
    raw = tmp_path / "raw"
    raw.mkdir()
    store.parent.mkdir()
    (raw / "Dataset027_Fetal").symlink_to(store)
    for attempt in range(3):
        assert convert(raw, source, *["--overwrite"][:attempt]) == 0
        assert (raw / "Dataset027_Fetal").is_symlink()
        assert (store / "dataset.json").is_file()
        assert sorted(os.listdir(store.parent)) == ["fetal"]
        (store / "thesis.txt").write_text(f"chapter {attempt}")
        (store / "imagesTr" / "readme.md").write_text("dear")
        (store / "masksTr").mkdir(exist_ok=True)
        write_volume(store / "masksTr" / "c0.nii.gz", LABELS)
    assert (store / "thesis.txt").read_text() == "chapter 2"
    capsys.readouterr()
    assert convert(raw, source, "--overwrite") == 0
    out = capsys.readouterr().out
    check_facts(out, "kept", "imagesTr/readme.md, masksTr, thesis.txt")
    assert np.array_equal(read_array(store / "masksTr" / "c0.nii.gz"), LABELS)
    assert len(os.listdir(store / "labelsTr")) == 4


def test_what_a_killed_run_has_not_named_is_not_published(tmp_path, monkeypatch, source):
    """A table that was being written has a hidden name; the next run continues without it."""

    def killed(*_: object) -> None:
        (raw / ".Dataset027_Fetal.incomplete" / ".0123456789abcdef.csv").write_text("half")
        raise KeyboardInterrupt

    raw = tmp_path / "raw"
    with monkeypatch.context() as patch:
        patch.setattr(writer, "provenance_text", killed)
        assert convert(raw, source) != 0
    assert convert(raw, source) == 0
    assert not [path for path in (raw / "Dataset027_Fetal").iterdir() if path.name.startswith(".")]


def test_undo_does_not_reach_behind_a_replacement(tmp_path, capsys, source):
    """What annotate has kept belongs to the data set that was replaced."""
    dataset = tmp_path / "raw" / "Dataset027_Fetal"
    assert convert(dataset.parent, source) == 0
    case = next(iter(contract_of(dataset).cases))
    undo = ["annotate", "-d", str(dataset)]
    assert main([*undo, "--add", "--merged", "brainstem", "cerebellum", "--in", case]) == 0
    for _ in range(2):
        assert convert(dataset.parent, source, "--overwrite") == 0
        before = (dataset / "dataset.json").read_bytes()
        assert (dataset / "before_annotate.old").is_dir()
        capsys.readouterr()
        assert main([*undo, "--undo"]) == 1
        assert (dataset / "dataset.json").read_bytes() == before
        assert main([*undo, "--add", "--merged", "brainstem", "cerebellum", "--in", case]) == 0
    assert convert(dataset.parent, source, "--overwrite") == 0
    assert len(list(dataset.glob("before_annotate.old*"))) == 3


def test_merge_notices_when_an_input_is_declared_anew_meanwhile(tmp_path, monkeypatch, capsys):
    """`annotate --undo` puts label maps back that the block which was read does not explain."""
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    for number, organ in ((3, "liver"), (4, "spleen")):
        labels = {"background": 0, organ: 1}
        write_nnunet(tmp_path, f"Dataset00{number}_One", labels, {f"c{number}": slabs(1)})
    map_parallel = writer.map_parallel

    def map_later(*arguments):
        assert main(["annotate", "-d", "3", "-np", "1", "--fully-annotated"]) == 0
        return map_parallel(*arguments)

    monkeypatch.setattr(writer, "map_parallel", map_later)
    words = ["merge", "-d", "50", "-n", "All", "-np", "1", "3", "4", "--fully-annotated", "3", "4"]
    assert main(words) == 1
    check_facts(capsys.readouterr().err, "Dataset003_One", "dataset.json", "changed")
    assert not (tmp_path / "Dataset050_All").exists()


def test_a_replacement_that_was_killed_is_finished(tmp_path, source):
    """Between the two renames the old data set has no name; it gets it back, or its foreign files
    move over.
    """
    raw = tmp_path / "raw"
    dataset, old = raw / "Dataset027_Fetal", raw / ".Dataset027_Fetal.old"
    assert convert(raw, source) == 0
    (dataset / "thesis.txt").write_text("dear")
    dataset.rename(old)
    assert convert(raw, source) == 1  # it exists: nothing may be lost without --overwrite
    assert (dataset / "thesis.txt").is_file()
    dataset.rename(old)
    (dataset / "imagesTr").mkdir(parents=True)
    (dataset / "dataset.json").write_bytes((old / "dataset.json").read_bytes())
    assert convert(raw, source, "--overwrite") == 0
    assert (dataset / "thesis.txt").read_text() == "dear"
    assert os.listdir(raw) == [dataset.name]


def test_link_that_leads_back_to_itself(tmp_path, capsys, source):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "Dataset027_Fetal").symlink_to(tmp_path / "raw" / "Dataset027_Fetal")
    for extra in ([], ["--overwrite"]):
        assert convert(tmp_path / "raw", source, *extra) == 1
        assert "a link that leads back to itself" in capsys.readouterr().err


def test_foreign_things_in_the_staging_area(tmp_path, capsys, source):
    staging = tmp_path / "raw" / ".Dataset027_Fetal.incomplete"
    (staging / "imagesTr" / "mine").mkdir(parents=True)
    assert convert(tmp_path / "raw", source) == 1
    check_facts(capsys.readouterr().err, staging / "imagesTr" / "mine")
    (staging / "imagesTr" / "mine").rmdir()
    assert convert(tmp_path / "raw", source) == 0
    staging.write_text("a file")
    assert convert(tmp_path / "raw", source, "--overwrite") == 1
    check_facts(capsys.readouterr().err, staging)
