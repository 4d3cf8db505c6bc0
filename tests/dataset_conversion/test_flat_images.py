"""Flat pictures and 2D NIfTI files become data sets that nnU-Net reads with its own readers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from nnunetv2.imageio.reader_writer_registry import determine_reader_writer_from_dataset_json
from PIL import Image
from skimage import io

from nnunet_labelset.cli import main
from nnunet_labelset.io.files import read_json
from tests.helpers.conversion import contract_of, convert, names, slabs
from tests.helpers.pictures import (
    random_picture,
    vessels,
    write_eyes,
    write_manifest,
    write_picture,
)
from tests.helpers.volumes import write_volume


def as_nnunet_reads(dataset: Path, case: str) -> tuple[np.ndarray, np.ndarray]:
    content = read_json(dataset / "dataset.json")
    reader = determine_reader_writer_from_dataset_json(content, verbose=False)()
    ending = content["file_ending"]
    images, _ = reader.read_images([str(dataset / "imagesTr" / f"{case}_0000{ending}")])
    labels, _ = reader.read_seg(str(dataset / "labelsTr" / f"{case}{ending}"))
    assert len(images) == len(content["channel_names"])
    return images, labels


@pytest.mark.parametrize("colours", [1, 3])
@pytest.mark.parametrize("ending", [".png", ".bmp", ".tif"])
def test_nnunet_reads_the_same_pixels(tmp_path, capsys, ending, colours):
    manifest = write_eyes(tmp_path, ending, colours=colours)
    assert convert(tmp_path / "raw", "-m", str(manifest)) == 0
    dataset = tmp_path / "raw" / "Dataset027_Fetal"
    images, labels = as_nnunet_reads(dataset, "b")
    picture = random_picture(1, colours).reshape(*vessels().shape, -1)
    assert np.array_equal(images[:, 0], picture.transpose(2, 0, 1))
    contract = contract_of(dataset)
    sets = [names(contract, labels) for labels in contract.protocol("b").sets]
    found = np.array(sets, dtype=object)[labels[0, 0].astype(int)]
    assert (found[vessels() == 3] == {"artery", "vein"}).all()
    assert (found[vessels() == 1] == {"artery"}).all()
    assert "train 27 2d 0" in capsys.readouterr().out


def test_other_pictures_are_written_as_png(tmp_path):
    manifest = write_eyes(tmp_path)
    eyes = tmp_path / "eyes"
    picture = random_picture(5)
    Image.fromarray(picture).save(eyes / "images" / "c.jpeg", quality=95)
    opaque = np.dstack([picture, np.full(picture.shape[:2], 255, np.uint8)])
    write_picture(eyes / "images" / "d.png", opaque)
    palette = Image.fromarray(vessels()).convert("P")
    palette.putpalette([200, 0, 7] * 256)
    palette.save(eyes / "labels" / "c.png")
    write_picture(eyes / "labels" / "d.png", np.dstack([vessels()] * 3))
    text = manifest.read_text().replace('"images/{case}.png"', '"images/{case}.*"')
    manifest.write_text(text)
    # This pattern does not say that the files are pictures.
    assert convert(tmp_path / "raw", "-m", str(manifest)) == 1
    manifest.write_text(
        text.replace('"images/{case}.*"', '["images/{case}.png", "images/{case}.jpeg"]')
    )
    assert convert(tmp_path / "raw", "-m", str(manifest)) == 0
    dataset = tmp_path / "raw" / "Dataset027_Fetal"
    jpeg = io.imread(str(eyes / "images" / "c.jpeg"))
    for case, expected in (("c", jpeg), ("d", picture)):
        images, labels = as_nnunet_reads(dataset, case)
        assert np.array_equal(images[:, 0], expected.transpose(2, 0, 1))
        assert np.array_equal(labels[0, 0] == 1, vessels() == 1)


BAD = {
    "transparent": ("images", lambda: np.dstack([random_picture(), random_picture(1)[..., 0]])),
    "grey": ("images", lambda: random_picture(colours=1)),
    "coloured labels": ("labels", random_picture),
    "another size": ("labels", lambda: vessels()[:-1]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_pictures_are_one_line(tmp_path, capsys, what):
    manifest = write_eyes(tmp_path, cases=("a", "bad"))
    folder, make = BAD[what]
    write_picture(tmp_path / "eyes" / folder / "bad.png", make())
    assert convert(tmp_path / "raw", "-m", str(manifest)) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 3
    assert f"eyes/{folder}/bad.png: " in lines[1]
    assert convert(tmp_path / "raw", "-m", str(manifest), "--skip-bad-cases") == 0


def test_labels_stored_as_jpeg_are_refused(tmp_path, capsys):
    """Their values are others at every outline, and some of them are labels, too."""
    manifest = write_eyes(tmp_path)
    for case in ("a", "b"):
        (tmp_path / "eyes" / "labels" / f"{case}.png").unlink()
        write_picture(tmp_path / "eyes" / "labels" / f"{case}.jpg", vessels())
    text = manifest.read_text()
    manifest.write_text(text.replace("labels/{case}.png", "labels/{case}.jpg"))
    assert convert(tmp_path / "raw", "-m", str(manifest)) == 1
    error = capsys.readouterr().err
    assert "labels/a.jpg: " in error
    assert "labels/b.jpg: " in error
    assert "JPEG" in error
    assert convert(tmp_path / "raw", "-m", str(manifest), "--dry-run") == 1
    assert "labels/a.jpg: " in capsys.readouterr().err


def test_pictures_and_volumes_do_not_mix(tmp_path, capsys):
    manifest = write_eyes(tmp_path, colours=1)
    write_volume(tmp_path / "eyes" / "images" / "c.nii.gz", slabs(1))
    write_volume(tmp_path / "eyes" / "labels" / "c.nii.gz", slabs(1))
    text = manifest.read_text()
    for folder in ("images", "labels"):
        text = text.replace(
            f'"{folder}/{{case}}.png"', f'["{folder}/{{case}}.png", "{folder}/{{case}}.nii.gz"]'
        )
    manifest.write_text(text)
    assert convert(tmp_path / "raw", "-m", str(manifest)) == 1
    assert ".nii.gz, .png" in capsys.readouterr().err


def test_flat_nifti(tmp_path, capsys):
    place = {"spacing": (0.5, 0.7), "origin": (1, 2)}
    for number, case in enumerate("ab"):
        picture = random_picture(number, colours=1)
        write_volume(tmp_path / "eyes" / "images" / f"{case}.nii.gz", picture, **place)
        write_volume(tmp_path / "eyes" / "labels" / f"{case}.nii.gz", vessels(), **place)
    manifest = write_manifest(tmp_path, ".nii.gz", colours=1)
    assert convert(tmp_path / "raw", "-m", str(manifest), "--mask-images") == 0
    assert "train 27 2d 0" in capsys.readouterr().out
    images, labels = as_nnunet_reads(tmp_path / "raw" / "Dataset027_Fetal", "a")
    assert images.shape == labels.shape == (1, 1, *vessels().shape)


def test_merge_of_pictures(tmp_path, capsys):
    raw = tmp_path / "raw"
    for number, ending in (("1", ".png"), ("2", ".bmp")):
        manifest = write_eyes(tmp_path / number, ending, cases=(f"case_{number}",))
        assert convert(raw, "-m", str(manifest), number=number, name=f"Set{number}") == 0
    folders = [str(raw / f"Dataset00{number}_Set{number}") for number in "12"]
    merge = ["merge", "-d", "3", "-n", "Both", "-o", str(raw), "-np", "1", *folders]
    assert main(merge) == 0
    assert "train 3 2d 0" in capsys.readouterr().out
    dataset = raw / "Dataset003_Both"
    for case, seed in (("case_1", 0), ("case_2", 0)):
        images, labels = as_nnunet_reads(dataset, case)
        assert np.array_equal(images[:, 0], random_picture(seed).transpose(2, 0, 1))
        assert set(np.unique(labels)) <= set(range(4))


@pytest.mark.slow
def test_nnunet_verifies_and_plans_pictures(tmp_path):
    manifest = write_eyes(tmp_path, cases=("a", "b", "c"))
    raw = tmp_path / "raw"
    assert convert(raw, "-m", str(manifest)) == 0
    folders = {
        f"nnUNet_{name}": str(tmp_path / name) for name in ("raw", "preprocessed", "results")
    }
    tool = shutil.which("nnUNetv2_plan_and_preprocess", path=str(Path(sys.executable).parent))
    command = [tool, "-d", "27", "--verify_dataset_integrity", "-np", "1", "-npfp", "1", "-c", "2d"]
    environment = {**os.environ, **folders}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    plans = read_json(tmp_path / "preprocessed" / "Dataset027_Fetal" / "nnUNetPlans.json")
    assert list(plans["configurations"]) == ["2d"]
    assert plans["image_reader_writer"] == "NaturalImage2DIO"
