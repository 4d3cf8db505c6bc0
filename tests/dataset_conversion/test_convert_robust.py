"""Bad input is named, nothing is half-written, a killed run can be finished, and nnU-Net accepts
the result.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from hypothesis import given, settings
from hypothesis import strategies as st

from nnunet_labelset.cli import main
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet.raw import INCOMPLETE
from tests.helpers.conversion import (
    SHAPE,
    contract_of,
    convert,
    label_sets_of,
    random_image,
    read_array,
    slabs,
    write_case_folder,
    write_volume,
)
from tests.helpers.errors import check_facts

LABELS = slabs(*range(1, 9))


def shifted(array: np.ndarray, **geometry):
    return lambda path: write_volume(path, array, **geometry)


def with_value(value: float, dtype=np.float32) -> np.ndarray:
    array = LABELS.astype(dtype)
    array[2, 2, :2] = value
    return array


BAD = {
    "image_missing": ("srr", Path.unlink, "no image (T2w): looked for {case}/srr.nii.gz"),
    "label_missing": (
        "parcellation",
        Path.unlink,
        "no label file: looked for {case}/parcellation.nii.gz",
    ),
    "mask_missing": ("mask", Path.unlink, "no mask file"),
    "image_not_nifti": (
        "srr",
        lambda path: path.write_bytes(b"hello" * 100),
        "not readable as an image",
    ),
    "image_truncated": (
        "srr",
        lambda path: path.write_bytes(path.read_bytes()[:-300]),
        "not readable as an image",
    ),
    "label_truncated": (
        "parcellation",
        lambda path: path.write_bytes(path.read_bytes()[:-30]),
        "not readable",
    ),
    "mask_empty_file": ("mask", lambda path: path.write_bytes(b""), "not readable as an image"),
    "shape": ("parcellation", shifted(LABELS[:-1]), "geometry differs from srr.nii.gz: size"),
    "spacing": ("parcellation", shifted(LABELS, spacing=(0.8, 0.8, 1.0)), "spacing"),
    "origin": (
        "mask",
        shifted(np.ones_like(LABELS), origin=(0, 0, 0)),
        "geometry differs from srr.nii.gz: origin",
    ),
    "direction": (
        "parcellation",
        shifted(LABELS, direction=(-1, 0, 0, 0, -1, 0, 0, 0, 1)),
        "direction",
    ),
    "fractional": (
        "parcellation",
        shifted(with_value(1.5)),
        "2 voxels of the label map have fractional values",
    ),
    "undeclared": ("parcellation", shifted(with_value(77)), "undeclared values 77 (2 voxels)"),
    "negative": (
        "parcellation",
        shifted(with_value(-1, np.int16)),
        "undeclared values -1 (2 voxels)",
    ),
    "huge": (
        "parcellation",
        shifted(with_value(100000, np.int32)),
        "undeclared values 100000 (2 voxels)",
    ),
    "nan_label": ("parcellation", shifted(with_value(np.nan)), "2 voxels are NaN or infinite"),
    "nan_image": ("srr", shifted(with_value(np.nan)), "2 voxels are NaN or infinite"),
    "infinite": ("srr", shifted(with_value(np.inf)), "2 voxels are NaN or infinite"),
    "mask_empty": ("mask", shifted(np.zeros_like(LABELS)), "the mask is empty"),
    "two_dimensional": (
        "srr",
        lambda path: write_volume(path, LABELS[0], spacing=(1, 1), origin=(0, 0)),
        "geometry differs",
    ),
}


@pytest.fixture(scope="module")
def all_bad(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("bad")
    write_case_folder(root, "sound", LABELS)
    for name, (role, spoil, _) in BAD.items():
        spoil(write_case_folder(root, name, LABELS) / f"{role}.nii.gz")
    return root


def test_all_problems_are_reported_together_and_nothing_is_written(all_bad, tmp_path, capsys):
    arguments = [f"--source=case_folders={all_bad}", "--withhold", "brainstem"]
    assert convert(tmp_path / "raw", *arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    for name, (_, _, message) in BAD.items():
        about = [line for line in lines if f"/{name}/" in line or f"case '{name}'" in line]
        assert any(message in line for line in about), f"{name}: {about}"
    assert not any("/sound/" in line for line in lines)
    assert os.listdir(tmp_path / "raw") == []

    assert convert(tmp_path / "raw", *arguments, "--skip-bad-cases") == 0
    assert list(contract_of(tmp_path / "raw" / "Dataset027_Fetal").cases) == ["sound"]
    out = capsys.readouterr().out
    assert out.count("skipped:") >= len(BAD)


def test_4d_is_an_error_unless_allowed(tmp_path, capsys):
    manifest = tmp_path / "m.toml"
    manifest.write_text(
        'leaves = ["background", "liver"]\n[sources.s]\nfolder = "s"\nimage = "{case}_i.nii.gz"\n'
        'label = "{case}_l.nii.gz"\nlabels.1 = "liver"\n'
    )
    write_volume(tmp_path / "s" / "a_i.nii.gz", np.stack([random_image()] * 2))
    write_volume(tmp_path / "s" / "a_l.nii.gz", slabs(1))
    assert convert(tmp_path / "raw", "-m", str(manifest)) == 1
    assert "a_i.nii.gz: 4D, size (8, 7, 6, 2)" in capsys.readouterr().err


def test_two_sources_with_the_same_case(tmp_path, capsys):
    for folder in ("one", "two"):
        write_case_folder(tmp_path / folder, "x", LABELS)
    sources = [f"--source=atlas={tmp_path / 'one'}", f"--source=case_folders={tmp_path / 'two'}"]
    assert convert(tmp_path / "raw", *sources) == 1
    error = capsys.readouterr().err
    check_facts(error, "'x'", "atlas", "case_folders", "--prefix")
    assert convert(tmp_path / "raw", *sources, "--prefix") == 0
    assert set(contract_of(tmp_path / "raw" / "Dataset027_Fetal").cases) == {
        "atlas_x",
        "case_folders_x",
    }


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "..", "a b", ".hidden"])
def test_case_names_cannot_escape(tmp_path, capsys, name):
    write_case_folder(tmp_path, "x", LABELS)
    (tmp_path / "list.csv").write_text(
        f"case,image,label\n{name},x/srr.nii.gz,x/parcellation.nii.gz\n"
    )
    (tmp_path / "m.toml").write_text(
        'leaves = ["background", "brain"]\n[sources.s]\ncases = "list.csv"\nlabels."1-8" = '
        '"brain"\n'
    )
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "m.toml")) == 1
    check_facts(capsys.readouterr().err, f"'{name}'", "list.csv")
    assert os.listdir(tmp_path / "raw") == []


def test_never_overwrites_without_being_told(tmp_path, capsys):
    write_case_folder(tmp_path / "s", "x", LABELS)
    source = f"--source=atlas={tmp_path / 's'}"
    dataset = tmp_path / "raw" / "Dataset027_Fetal"
    assert convert(tmp_path / "raw", source) == 0
    before = (dataset / "dataset.json").stat().st_mtime_ns
    assert convert(tmp_path / "raw", source) == 1
    check_facts(capsys.readouterr().err, dataset, "-d", "-n", "--overwrite")
    assert (dataset / "dataset.json").stat().st_mtime_ns == before
    assert convert(tmp_path / "raw", source, "--overwrite", "--withhold", "brainstem") == 0
    assert "ignore" in read_json(dataset / "dataset.json")["labels"]
    assert os.listdir(tmp_path / "raw") == [dataset.name]
    assert main(["convert", "-d", "27", "-n", "Other", "-o", str(tmp_path / "raw"), source]) == 1
    check_facts(capsys.readouterr().err, "27", "Dataset027_Fetal", "-d")

    (tmp_path / "raw" / "Dataset028_Mine").mkdir()
    (tmp_path / "raw" / "Dataset028_Mine" / "thesis.txt").write_text("dear")
    assert (
        main(
            [
                "convert",
                "-d",
                "28",
                "-n",
                "Mine",
                "-o",
                str(tmp_path / "raw"),
                source,
                "--overwrite",
            ]
        )
        == 1
    )
    check_facts(capsys.readouterr().err, "Dataset028_Mine", "dataset.json", "--overwrite")
    assert (tmp_path / "raw" / "Dataset028_Mine" / "thesis.txt").exists()


MISTAKES = {
    "typo_in_preset": (["--source", "atlass={s}"], "no such source; did you mean 'atlas'?"),
    "no_equals": (["--source", "atlas"], "expected NAME=FOLDER"),
    "no_source": ([], "no source: give --source NAME=FOLDER"),
    "no_folder": (["--source", "atlas={s}/none"], "/none: no such folder"),
    "wrong_layout": (
        ["--source", "feta={s}"],
        "no case of source 'feta' found: expected files like **/{case}_rec-*_T2w",
    ),
    "typo_in_leaf": (
        ["--source", "atlas={s}", "--withhold", "brain_stem"],
        "did you mean 'brainstem'?",
    ),
    "withhold_background": (
        ["--source", "atlas={s}", "--withhold", "background"],
        "background cannot be withheld",
    ),
    "csv_missing": (["--source", "atlas={s}", "--annotated", "{s}/no.csv"], "no.csv: no such file"),
    "csv_column": (
        ["--source", "atlas={s}", "--annotated", "{s}/column.csv"],
        "unknown column 'anotated'; did you mean",
    ),
    "csv_case": (
        ["--source", "atlas={s}", "--annotated", "{s}/case.csv"],
        "line 2: no source has a case 'case_xx'; did",
    ),
    "csv_leaf": (
        ["--source", "atlas={s}", "--annotated", "{s}/leaf.csv"],
        "'brian'",
    ),
    "csv_cells": (
        ["--source", "atlas={s}", "--annotated", "{s}/cells.csv"],
        "line 2: expected 2 cells",
    ),
    "csv_ignore": (
        ["--source", "atlas={s}", "--annotated", "{s}/ignore.csv"],
        "'ignore'",
    ),
    "csv_source": (
        ["--source", "atlas={s}", "--annotated", "{s}/source.csv"],
        "line 2: no such source: 'atls'; did you mean 'atlas'?",
    ),
    "withhold_in_typo": (
        ["--source", "atlas={s}", "--withhold", "brainstem", "--withhold-in", "case_x", "atls"],
        "--withhold-in atls: no such source or case; did you mean 'atlas'?",
    ),
    "mask_images_without_mask": (
        ["--source", "atlas={s}/maskless", "--mask-images"],
        "--mask-images: no mask file",
    ),
    "bad_id": (["--source", "atlas={s}", "-d", "0"], "expected an id from 1 to 999"),
    "bad_name": (["--source", "atlas={s}", "-n", "../x"], "-n '../x': expected letters"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_on_the_command_line(tmp_path, capsys, mistake):
    source = tmp_path / "s"
    write_case_folder(source, "case_x", LABELS)
    (source / "column.csv").write_text("case,anotated\ncase_x,all\n")
    (source / "case.csv").write_text("case,annotated\ncase_xx,all\n")
    (source / "leaf.csv").write_text("case,annotated\ncase_x,brian\n")
    (source / "cells.csv").write_text("case,annotated\ncase_x,white_matter,ventricles\n")
    (source / "ignore.csv").write_text("case,annotated\n\ncase_x,ignore\n")
    (source / "source.csv").write_text("case,source,annotated\ncase_x,atls,white_matter\n")
    (write_case_folder(source / "maskless", "case_y", LABELS) / "mask.nii.gz").unlink()
    arguments, message = MISTAKES[mistake]
    assert convert(tmp_path / "raw", *(text.replace("{s}", str(source)) for text in arguments)) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "raw").exists() or os.listdir(tmp_path / "raw") == []


CASES = 12
# Workers run this file too: the first cases are converted, the others never end.
NEVER_ENDS = """
import sys, time
from nnunet_labelset.cli import main
from nnunet_labelset.dataset_conversion import records

convert_case = records.convert_case


def wait_for_the_end(job, folder):
    while job.case > "c03":
        time.sleep(1)
    return convert_case(job, folder)


records.convert_case = wait_for_the_end
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def test_killed_run_is_finished_by_the_next(tmp_path, capsys):
    for number in range(CASES):
        write_case_folder(tmp_path / "s", f"c{number:02d}", LABELS, seed=number)
    out = tmp_path / "raw"
    arguments = [
        "convert",
        "-d",
        "27",
        "-n",
        "Fetal",
        "-o",
        str(out),
        f"--source=atlas={tmp_path / 's'}",
    ]
    arguments += ["--withhold", "brainstem", "-np", "2"]
    (tmp_path / "never_ends.py").write_text(NEVER_ENDS)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "never_ends.py"), *arguments], stderr=subprocess.DEVNULL
    )
    records = out / ".Dataset027_Fetal.incomplete" / ".records"
    while not records.exists() or len(records.read_text().splitlines()) < 4:
        assert process.poll() is None
        time.sleep(0.01)
    workers = children_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "Dataset027_Fetal").exists()
    assert (records.parent / INCOMPLETE).exists()
    deadline = time.monotonic() + 300
    while (
        any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers)
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert workers
    assert not any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers), "orphan workers"
    done = {
        path.stem: path.stat().st_mtime_ns
        for path in (records.parent / "labelsTr").glob("c*.nii.gz")
    }

    assert main(arguments) == 0
    assert "interrupted" in capsys.readouterr().out
    dataset = out / "Dataset027_Fetal"
    kept = {
        path.stem
        for path in (dataset / "labelsTr").iterdir()
        if done.get(path.stem) == path.stat().st_mtime_ns
    }
    assert len(kept) >= 3  # of the last one, half a record may be there
    assert len(contract_of(dataset).cases) == CASES
    for number in range(CASES):
        assert np.array_equal(
            read_array(dataset / "imagesTr" / f"c{number:02d}_0000.nii.gz"), random_image(number)
        )
        assert (label_sets_of(dataset, f"c{number:02d}")[LABELS == 1] == {"white_matter"}).all()
    assert set(os.listdir(dataset)) == {"dataset.json", "imagesTr", "labelsTr", "provenance.csv"}
    assert os.listdir(out) == [dataset.name]


def children_of(pid: int) -> list[int]:
    """Direct children, read from /proc (the spawned workers and multiprocessing's tracker)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = entry.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == pid:
            found.append(int(entry.parent.name))
    return found


def test_changed_rules_or_files_are_not_resumed(tmp_path, capsys, monkeypatch):
    """A stopped run with other rules, or before a file was mended, leaves nothing behind that is
    believed.
    """
    from nnunet_labelset.dataset_conversion import dataset as writer

    source = tmp_path / "s"
    for case in ("a", "b"):
        write_case_folder(source, case, LABELS)
    arguments = [f"--source=atlas={source}"]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, "publish", stop)
        assert convert(tmp_path / "raw", *arguments, "--withhold", "brainstem") == 130
    write_volume(source / "b" / "parcellation.nii.gz", slabs(8, 7, 6, 5, 4, 3, 2, 1))
    assert convert(tmp_path / "raw", *arguments) == 0
    dataset = tmp_path / "raw" / "Dataset027_Fetal"
    assert "interrupted" not in capsys.readouterr().out
    assert np.array_equal(read_array(dataset / "labelsTr" / "a.nii.gz"), LABELS)
    assert np.array_equal(
        read_array(dataset / "labelsTr" / "b.nii.gz"), slabs(8, 7, 6, 5, 4, 3, 2, 1)
    )


@settings(max_examples=25)
@given(st.data())
def test_label_sets_survive_files(tmp_path_factory, data):
    """Random label map, random label-sets of its values: each voxel may be the same before and
    after, or a superset where merging was announced.
    """
    leaves = ["background", "a", "b", "c", "d"]
    some_leaves = st.lists(st.sampled_from(leaves), min_size=1, max_size=4, unique=True)
    meaning = data.draw(st.dictionaries(st.integers(1, 40), some_leaves, min_size=1, max_size=7))
    seed = data.draw(st.integers(0, 99))
    root = tmp_path_factory.mktemp("property")
    labels = np.random.default_rng(seed).choice([0, *meaning], SHAPE).astype(np.uint8)
    write_volume(root / "s" / "x_i.nii.gz", random_image(seed))
    write_volume(root / "s" / "x_l.nii.gz", labels)
    table = "\n".join(f"{value} = {json.dumps(sets)}" for value, sets in meaning.items())
    (root / "m.toml").write_text(
        f'leaves = {json.dumps(leaves)}\n[sources.s]\nfolder = "s"\nimage = "{{case}}_i.nii.gz"\n'
        f'label = "{{case}}_l.nii.gz"\n[sources.s.labels]\n{table}\n'
    )
    assert convert(root / "raw", "-m", str(root / "m.toml")) == 0
    after = label_sets_of(root / "raw" / "Dataset027_Fetal", "x")
    covered = {leaf for sets in meaning.values() for leaf in sets}
    unlabelled = {"background"} | (set(leaves) - covered)
    before = {0: frozenset(unlabelled)} | {
        value: frozenset(sets) for value, sets in meaning.items()
    }
    present = {before[int(value)] for value in np.unique(labels)}
    singles = {sets for sets in before.values() if len(sets) == 1}
    must_fit = (
        len({sets for sets in present if len(sets) > 1})
        + len(singles | {s for s in present if len(s) == 1})
        <= 6
    )
    for value in np.unique(labels):
        (stored,) = set(after[labels == value])
        assert stored == before[int(value)] if must_fit else stored >= before[int(value)]


@pytest.mark.slow
def test_nnunet_accepts_the_result(tmp_path):
    """The real command, on three protocols with label-sets stored under `ignore` and under a
    leaf.
    """
    shape = (16, 18, 20)
    labels = slabs(*range(1, 9), shape=shape)
    write_case_folder(tmp_path / "atlas", "a1", labels)
    write_case_folder(tmp_path / "leuven", "l1", np.where(labels <= 3, labels, 0).astype(np.uint8))
    write_volume(
        tmp_path / "feta" / "sub-001_rec-mial_T2w.nii", random_image(3, shape).astype(np.float32)
    )
    write_volume(
        tmp_path / "feta" / "sub-001_rec-mial_dseg.nii",
        slabs(*range(1, 8), dtype=np.float32, shape=shape),
    )
    raw = tmp_path / "raw"
    sources = {"atlas": "atlas", "leuven_spina_bifida": "leuven", "feta": "feta"}
    assert (
        convert(raw, *(f"--source={name}={tmp_path / folder}" for name, folder in sources.items()))
        == 0
    )
    environment = {**os.environ, "nnUNet_raw": str(raw), "OMP_NUM_THREADS": "1"}
    for name in ("preprocessed", "results"):
        environment[f"nnUNet_{name}"] = str(tmp_path / name)
    command = Path(sys.executable).with_name("nnUNetv2_plan_and_preprocess")
    arguments = ["-d", "27", "--verify_dataset_integrity", "--no_pp", "-npfp", "1"]
    finished = subprocess.run(
        [command, *arguments], env=environment, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    assert "verify_dataset_integrity Done" in finished.stdout
    assert "Warning" not in finished.stdout
    assert "label_sets" in read_json(
        tmp_path / "preprocessed" / "Dataset027_Fetal" / "dataset.json"
    )


@pytest.mark.parametrize("shape", [LABELS.shape, (1, *LABELS.shape)])
def test_big_endian(tmp_path, shape):
    """nibabel keeps the byte order of old scanners' files; SimpleITK wants the machine's."""
    case = write_case_folder(tmp_path / "atlas", "a", LABELS)
    geometry = nibabel.load(case / "srr.nii.gz")
    array = np.arange(LABELS.size, dtype=np.float32).reshape(shape).T
    header = nibabel.Nifti1Header(endianness=">")
    header.set_data_dtype(">f4")
    nibabel.save(nibabel.Nifti1Image(array, geometry.affine, header), case / "srr.nii.gz")
    assert nibabel.load(case / "srr.nii.gz").header.endianness == ">"
    assert convert(tmp_path / "raw", "--source", f"atlas={tmp_path / 'atlas'}") == 0
    written = sitk.ReadImage(
        str(tmp_path / "raw" / "Dataset027_Fetal" / "imagesTr" / "a_0000.nii.gz")
    )
    np.testing.assert_array_equal(sitk.GetArrayFromImage(written), array.T.reshape(LABELS.shape))


def test_missing_masks_are_told(tmp_path, capsys):
    (write_case_folder(tmp_path / "atlas", "a", LABELS) / "mask.nii.gz").unlink()
    assert convert(tmp_path / "raw", "--source", f"atlas={tmp_path / 'atlas'}") == 0
    assert "no mask file" in capsys.readouterr().out


def test_uncompressed_image_survives(tmp_path):
    image = random_image(5)
    write_volume(tmp_path / "feta" / "sub-001_T2w.nii", image)
    with gzip.open(tmp_path / "feta" / "sub-001_dseg.nii.gz", "wb") as file:
        file.write(write_volume(tmp_path / "x.nii", slabs(*range(1, 8))).read_bytes())
    assert convert(tmp_path / "raw", f"--source=feta={tmp_path / 'feta'}") == 0
    after = tmp_path / "raw" / "Dataset027_Fetal" / "imagesTr" / "sub-001_0000.nii.gz"
    assert np.array_equal(read_array(after), image)
    assert after.read_bytes()[:2] == b"\x1f\x8b"
