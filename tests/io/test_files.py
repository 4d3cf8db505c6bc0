"""Files are read or explained in one line, and written whole or not at all."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

from nnunet_labelset import LabelSetError
from nnunet_labelset.io.files import (
    case_files,
    check_name,
    new_file,
    read_json,
    write_bytes,
    write_json,
    write_text,
)
from tests.helpers.errors import check_facts, refusal
from tests.helpers.users import no_root

posix = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")


def test_what_was_written_is_read(tmp_path):
    write_json(tmp_path / "new" / "a.json", {"x": [1, 2]})
    assert read_json(tmp_path / "new" / "a.json") == {"x": [1, 2]}
    write_bytes(tmp_path / "b", b"\0\1")
    assert (tmp_path / "b").read_bytes() == b"\0\1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "new"]


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_who_may_read(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a.txt", "a")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == mode


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(ZeroDivisionError), new_file(tmp_path / "a.txt") as temporary:  # noqa: PT012
        assert temporary.suffix == ".txt"  # matplotlib and ITK go by the ending
        temporary.write_text("half")
        assert (tmp_path / "a.txt").read_text() == "old"
        raise ZeroDivisionError
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_name_as_long_as_can_be(tmp_path):
    name = "x" * 250 + ".json"
    write_json(tmp_path / name, {})
    assert read_json(tmp_path / name) == {}
    with refusal(LabelSetError, tmp_path, "File name too long"):
        write_text(tmp_path / ("x" * 256), "")
    with refusal(LabelSetError, "case", "250"):
        check_name("x" * 250, "case")


def test_no_folder_and_no_device_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    with refusal(LabelSetError, tmp_path / "folder"):
        write_text(tmp_path / "folder", "")
    assert (tmp_path / "folder").is_dir()
    with refusal(LabelSetError, os.devnull):
        write_text(os.devnull, "")


def test_a_file_in_the_way_of_a_folder(tmp_path):
    write_text(tmp_path / "a", "")
    with refusal(LabelSetError, tmp_path / "a" / "b.txt"):
        write_text(tmp_path / "a" / "b.txt", "")


@posix
def test_a_folder_that_is_read_only(tmp_path):
    tmp_path.chmod(0o555)
    try:
        with (
            no_root(tmp_path),
            refusal(LabelSetError, tmp_path / "a.txt", "Permission denied"),
        ):
            write_text(tmp_path / "a.txt", "")
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.skipif(
    not os.path.isdir("/proc/self"), reason="a folder in which nobody can make files"
)
def test_a_folder_in_which_even_root_cannot_write():
    with refusal(LabelSetError, "/proc/self/a.txt"):
        write_text("/proc/self/a.txt", "")


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from nnunet_labelset import LabelSetError
from nnunet_labelset.io.files import write_text
from nnunet_labelset.io.place import Place
from nnunet_labelset.io.volume import write_voxels

voxels = np.random.default_rng(0).normal(size=(40, 40, 40))
place = Place((40, 40, 40), (1.0,) * 3, (0.0,) * 3, (1.0, 0, 0, 0, 1, 0, 0, 0, 1))
# writing beyond the limit is then an error, as with a full disk
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for write in (
    lambda path: write_text(path, "x" * 200_000),
    lambda path: write_voxels(path, voxels, place),
):
    try:
        write(Path(sys.argv[1], "a.nii.gz"))
        print("written")
    except LabelSetError as error:
        print(error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="limits of POSIX")
def test_a_full_disk_is_one_line_and_nothing_is_left(tmp_path):
    """ITK reports nothing when a write fails: what it left is read back."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    text, volume = done.stdout.strip().splitlines()
    check_facts(text, "a.nii.gz", "File too large")
    check_facts(volume, "a.nii.gz", "disk")
    assert list(tmp_path.iterdir()) == []


BAD_JSON = {
    "nested too deeply": "[" * 100_000,
    "digits": '{"a": ' + "9" * 5000 + "}",
    "Expecting value": "\0",
    "utf-8": b"\xff\xfe{}",
    "expected a JSON object, but got list": "[]",
}


@pytest.mark.parametrize("message", BAD_JSON)
def test_bad_json_is_one_line(tmp_path, message):
    content = BAD_JSON[message]
    (tmp_path / "a.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LabelSetError, match=message) as raised:
        read_json(tmp_path / "a.json")
    assert "a.json" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_file_to_read(tmp_path):
    for path, message in {
        tmp_path: "Is a directory",
        tmp_path / "x.json": "no such file",
        "a\0b": "null byte",
    }.items():
        with refusal(LabelSetError, path, message):
            read_json(path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with refusal(LabelSetError, tmp_path / "loop", "symbolic links"):
        read_json(tmp_path / "loop")


def test_case_files(tmp_path):
    for name in ("b.nii.gz", "a.nii.gz", "._a.nii.gz", "a.txt"):
        (tmp_path / name).touch()
    assert list(case_files(tmp_path, ".nii.gz")) == ["a", "b"]
    assert case_files(tmp_path / "nowhere", ".nii.gz") == {}


@posix
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path):
    (tmp_path / "labels").mkdir(0o000)
    with no_root(tmp_path), refusal(LabelSetError, tmp_path / "labels", "Permission denied"):
        case_files(tmp_path / "labels", ".nii.gz")


def test_nan_is_written_as_nnunet_reads_it(tmp_path):
    write_json(tmp_path / "a.json", {"x": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text())["x"] != 0


def test_a_key_that_occurs_twice(tmp_path):
    """The last one would win silently."""
    path = tmp_path / "dataset.json"
    path.write_text('{"label_sets": {"cases": {"a": "full", "b": "full", "a": "basic"}}}')
    with refusal(LabelSetError, path, "'a'"):
        read_json(path)
