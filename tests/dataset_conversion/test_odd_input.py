"""Odd input is one line that names it, and never the end of the other cases."""

from __future__ import annotations

import gzip
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nibabel
import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.dataset_conversion import case as case_module
from nnunet_labelset.io.files import read_json, write_json
from tests.helpers.conversion import (
    SHAPE,
    contract_of,
    convert,
    random_image,
    read_array,
    slabs,
    write_case_folder,
    write_nnunet,
    write_volume,
)
from tests.helpers.errors import check_facts

LABELS = slabs(*range(1, 9))


def huge_header(path: Path) -> None:
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[40:56] = struct.pack("<8h", 3, 32000, 32000, 32000, 1, 1, 1, 1)
    path.write_bytes(gzip.compress(bytes(content)))


def bomb(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(50_000_000)))


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


SPOILS = {
    "header": huge_header,
    "loop": loop,
    "dangling": nothing,
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("role", ["srr", "mask", "parcellation"])
@pytest.mark.parametrize("spoil", SPOILS)
def test_one_bad_file_is_named_and_can_be_skipped(tmp_path, capsys, spoil, role):
    for case in ("a", "bad", "c"):
        write_case_folder(tmp_path / "s", case, LABELS)
    SPOILS[spoil](tmp_path / "s" / "bad" / f"{role}.nii.gz")
    source = f"--source=atlas={tmp_path / 's'}"
    assert convert(tmp_path / "raw", source) == 1
    error = capsys.readouterr().err
    assert f"/bad/{role}.nii.gz: " in error
    assert "Traceback" not in error
    assert convert(tmp_path / "raw", source, "--skip-bad-cases") == 0
    assert list(contract_of(tmp_path / "raw" / "Dataset027_Fetal").cases) == ["a", "c"]


def test_a_gzip_bomb_is_read_as_far_as_its_header_goes(tmp_path):
    bomb(write_case_folder(tmp_path / "s", "x", LABELS) / "parcellation.nii.gz")
    assert convert(tmp_path / "raw", f"--source=atlas={tmp_path / 's'}") == 0
    assert np.array_equal(
        read_array(tmp_path / "raw" / "Dataset027_Fetal" / "labelsTr" / "x.nii.gz"), LABELS
    )


@pytest.mark.parametrize(
    "error", [MemoryError(), KeyError("what"), RecursionError("deep"), ZeroDivisionError()]
)
def test_what_nobody_expected_is_a_problem_of_its_case(tmp_path, capsys, monkeypatch, error):
    for case in ("a", "b"):
        write_case_folder(tmp_path / "s", case, LABELS)
    count = case_module.count_values
    seen = []

    def stumble(labels):
        seen.append(1)
        if len(seen) == 1:
            raise error
        return count(labels)

    monkeypatch.setattr(case_module, "count_values", stumble)
    assert convert(tmp_path / "raw", f"--source=atlas={tmp_path / 's'}", "--skip-bad-cases") == 0
    out = capsys.readouterr().out
    check_facts(out, "/a/mask.nii.gz", type(error).__name__)
    assert list(contract_of(tmp_path / "raw" / "Dataset027_Fetal").cases) == ["b"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing beyond it fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("changed", [False, True])
def test_a_full_disk_is_one_line_and_the_next_run_goes_on(tmp_path, capsys, changed):
    """Of images that are copied, and of images that ITK writes, which reports nothing."""
    for number, shape in enumerate([SHAPE, (20, 30, 30)]):
        folder = write_case_folder(tmp_path / "s", f"c{number}", slabs(*range(1, 9), shape=shape))
        if changed:
            write_volume(folder / "srr.nii.gz", np.stack([random_image(number, shape)] * 2))
    source = f"--source=atlas={tmp_path / 's'}"
    with largest_file(20_000):
        assert convert(tmp_path / "raw", source) == 1
    error = capsys.readouterr().err
    check_facts(error, "imagesTr/c1_0000.nii.gz", "continues")
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "raw" / "Dataset027_Fetal").exists()
    assert convert(tmp_path / "raw", source) == 0
    assert "1 of them" in capsys.readouterr().out
    image = read_array(tmp_path / "raw" / "Dataset027_Fetal" / "imagesTr" / "c1_0000.nii.gz")
    assert np.array_equal(image, random_image(1 if changed else 0, (20, 30, 30)))


def test_a_disk_that_was_full_from_the_start_leaves_nothing(tmp_path, capsys):
    write_case_folder(tmp_path / "s", "x", slabs(*range(1, 9), shape=(20, 30, 30)))
    with largest_file(1000):
        assert convert(tmp_path / "raw", f"--source=atlas={tmp_path / 's'}") == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert list((tmp_path / "raw").iterdir()) == []


MANIFESTS = {
    "deep": ('prefix = ""', "x = " + "[" * 5000, "not readable as TOML"),
    "digits": ('prefix = ""', f"x = {'1' * 5000}", "not readable as TOML"),
    "group": ('prefix = ""', 'case = "(?P<case>x)"', "case: named groups such as 'case'"),
    "unbalanced": ('prefix = ""', 'case = "a)(b"', "case: not a regular expression"),
    "reference": ('prefix = ""', 'case = "(a)\\\\1"', "case: not a regular expression"),
    "case_list": ('prefix = ""', 'case = ["a"]', "case: expected a text"),
    "absorbs": ('prefix = ""', 'absorbs = ["liver"]', "absorbs: expected a table"),
    "like": (
        'prefix = ""',
        'like = ["feta"]',
        "like: expected the name of a source, but got ['feta']",
    ),
    "like_itself": ('prefix = ""', 'like = "s"', "like: no other source 's'"),
    "labels": (
        'labels.1 = "liver"',
        'labels = ["liver"]',
        "labels: expected a table [sources.s.labels]",
    ),
    "long_value": ("labels.1 =", f'labels."{"9" * 5000}" =', "expected values such as '3'"),
    "part": ('prefix = ""', 'part = ["test"]', "part: expected 'training' or 'test'"),
}


@pytest.mark.parametrize("mistake", MANIFESTS)
def test_odd_manifests(tmp_path, capsys, mistake):
    old, new, message = MANIFESTS[mistake]
    files = 'image = "{case}_i.nii.gz"\nlabel = "{case}_l.nii.gz"'
    text = (
        f'leaves = ["background", "liver"]\n[sources.s]\nprefix = ""\n{files}\nlabels.1 = "liver"\n'
    )
    (tmp_path / "m.toml").write_text(text.replace(old, new))
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "m.toml"), f"--source=s={tmp_path}") == 1
    error = capsys.readouterr().err
    assert message in error
    assert "did you mean 's'" not in error
    assert len(error.strip().splitlines()) == 1


def write_list(folder: Path, text: str) -> str:
    write_volume(folder / "i.nii.gz", random_image())
    write_volume(folder / "l.nii.gz", slabs(1))
    (folder / "list.csv").write_text(text)
    (folder / "m.toml").write_text(
        'leaves = ["background", "liver"]\n[sources.s]\ncases = "list.csv"\nlabels.1 = "liver"\n'
    )
    return str(folder / "m.toml")


ROWS = {
    "nul": ("a,i\0.nii.gz,l.nii.gz", "line 2: a NUL byte"),
    "long_name": (f"{'x' * 250},i.nii.gz,l.nii.gz", "250 characters are too many"),
    "long_path": (f"a,{'x' * 300}.nii.gz,l.nii.gz", "xxx"),
    "no_label": ("a,i.nii.gz,", "no label file: looked for the column label"),
    "space": ("patient 01,i.nii.gz,l.nii.gz", "column 'name'"),
    "twins": ("CASE0,i.nii.gz,l.nii.gz\ncase0,i.nii.gz,l.nii.gz", "column 'name'"),
}


@pytest.mark.parametrize("mistake", ROWS)
def test_odd_case_lists(tmp_path, capsys, mistake):
    rows, message = ROWS[mistake]
    manifest = write_list(tmp_path, f"case,image,label\n{rows}\n")
    assert convert(tmp_path / "raw", "-m", manifest) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_case_list_renames(tmp_path, capsys):
    files = "i.nii.gz,l.nii.gz"
    rows = f"case,name,image,label\npatient 01,p01,{files}\nCASE0,,{files}\ncase0,other,{files}\n"
    assert convert(tmp_path / "raw", "-m", write_list(tmp_path, rows)) == 0
    assert set(contract_of(tmp_path / "raw" / "Dataset027_Fetal").cases) == {
        "p01",
        "CASE0",
        "other",
    }
    for case in ("patient 01", "b"):
        write_case_folder(tmp_path / "s", case, LABELS)
    (tmp_path / "names.csv").write_text("case,name\npatient 01,p01\n")
    arguments = [
        f"--source=atlas={tmp_path / 's'}",
        "--annotated",
        str(tmp_path / "names.csv"),
        "--overwrite",
    ]
    assert convert(tmp_path / "raw", *arguments) == 0
    assert set(contract_of(tmp_path / "raw" / "Dataset027_Fetal").cases) == {"p01", "b"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"channel_names": 3}, "Expected 'channel_names'"),
        ({"channel_names": {"x": "CT"}}, "Expected 'channel_names'"),
        ({"dataset": [1]}, "Expected 'dataset' in dataset.json to be an object"),
        (
            {"dataset": {"c": {"images": 3, "label": "x"}}},
            "dataset.c: expected 'images' (a list of files)",
        ),
        ({"labels": {"0": "background", "1": "liver"}}, "'labels' has values before names"),
        ({"labels": {"background": 0, "liver": [1]}}, "is a region"),
        ({"file_ending": 3}, "file_ending"),
    ],
)
def test_odd_data_sets_to_merge(tmp_path, capsys, content, message):
    folder = write_nnunet(
        tmp_path, "Dataset003_Liver", {"background": 0, "liver": 1}, {"c": slabs(1)}
    )
    write_json(folder / "dataset.json", {**read_json(folder / "dataset.json"), **content})
    arguments = [
        "merge",
        "-d",
        "50",
        "-n",
        "All",
        "-o",
        str(tmp_path),
        str(folder),
        "--fully-annotated",
        str(folder),
    ]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Dataset003_Liver" in error
    assert len(error.strip().splitlines()) == 1


def test_headers_that_itk_does_not_read_are_rewritten(tmp_path, capsys):
    """NIfTI-2, and axes that are not quite at right angles: nnU-Net could not read a copy."""
    affine = np.diag([-0.8, -0.8, 0.9, 1.0])
    affine[0, 1] = 0.002
    arrays = {"srr": random_image(), "mask": (LABELS > 0).astype(np.uint8), "parcellation": LABELS}
    for case, kind, matrix in (
        ("second", nibabel.Nifti2Image, np.diag([-0.8, -0.8, 0.9, 1.0])),
        ("sheared", nibabel.Nifti1Image, affine),
    ):
        for name, array in arrays.items():
            (tmp_path / "s" / case).mkdir(parents=True, exist_ok=True)
            nibabel.save(kind(array.T, matrix), tmp_path / "s" / case / f"{name}.nii.gz")
    assert convert(tmp_path / "raw", f"--source=atlas={tmp_path / 's'}") == 0
    dataset = tmp_path / "raw" / "Dataset027_Fetal"
    for case in ("second", "sheared"):
        assert np.array_equal(
            read_array(dataset / "imagesTr" / f"{case}_0000.nii.gz"), random_image()
        )
        assert np.array_equal(read_array(dataset / "labelsTr" / f"{case}.nii.gz"), LABELS)
    assert "header rewritten, as ITK does not read it" in capsys.readouterr().out


def test_a_wide_mask_takes_no_time_and_an_endless_one_is_refused(tmp_path, capsys):
    for number in range(2):
        write_case_folder(tmp_path / "s", f"c{number}", LABELS, seed=number)
    source = f"--source=atlas={tmp_path / 's'}"
    assert convert(tmp_path / "raw", source, "--mask-images", "1e6") == 0
    assert np.array_equal(
        read_array(tmp_path / "raw" / "Dataset027_Fetal" / "imagesTr" / "c1_0000.nii.gz"),
        random_image(1),
    )
    for value in ("inf", "nan", "-1"):
        assert convert(tmp_path / "raw", source, "--overwrite", f"--mask-images={value}") == 1
        check_facts(capsys.readouterr().err, "--mask-images", value.removesuffix(".0"))
