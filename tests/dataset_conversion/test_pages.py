"""The manifests and commands of the how-to pages run on small generated files."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.cli import main
from tests.helpers.conversion import SHAPE, random_image, slabs, write_volume
from tests.helpers.dicom import RoiSpec, Scan, ellipse, write_series, write_structures
from tests.helpers.pictures import write_eyes
from tests.helpers.slicer import write_segmentation

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def write_slicer(folder: Path) -> None:
    inside = np.zeros(SHAPE, dtype=bool)
    inside[2:4, 2:5, 3:6] = True
    write_volume(folder / "slicer" / "a.nrrd", random_image())
    write_segmentation(folder / "slicer" / "a.seg.nrrd", {"Liver": inside, "Tumor 1": inside})


def write_grid(folder: Path) -> None:
    write_volume(folder / "clinic" / "a_image.nii.gz", random_image())
    write_volume(folder / "clinic" / "a_label.nii.gz", slabs(1, 2)[:4])


def write_raters(folder: Path) -> None:
    write_volume(folder / "study" / "images" / "a.nii.gz", random_image())
    for rater, values in (("ann", (1, 2, 3)), ("bob", (1, 3, 3))):
        write_volume(folder / "study" / rater / "a.nii.gz", slabs(*values))


def write_export(folder: Path) -> None:
    scan = Scan()
    for place in ("export", "data/export"):
        write_series(folder / place / "ct", np.zeros(scan.shape, np.int16), scan)
        contours = [ellipse(scan, number, (10, 9), (4, 3)) for number in (2, 3, 4)]
        rois = {"Bladder": RoiSpec(contours), "Brainstem": RoiSpec(contours)}
        write_structures(folder / place / "RS.dcm", scan, rois)


FILES = {
    "flat_images.md": write_eyes,
    "slicer.md": write_slicer,
    "other_grid.md": write_grid,
    "raters.md": write_raters,
    "radiotherapy.md": write_export,
}


@pytest.mark.parametrize("page", FILES)
def test_the_commands_of_a_page_run(tmp_path, monkeypatch, page):
    FILES[page](tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("nnUNet_raw", str(tmp_path / "raw"))
    text = (PAGES / page).read_text()
    manifests = re.findall(r"```toml\n# (\S+)\n(.*?)```", text, flags=re.DOTALL)
    for name, content in manifests:
        (tmp_path / name).write_text(content)
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    commands = [line for block in blocks for line in block.strip().splitlines()]
    assert manifests
    assert commands
    for command in commands:
        program, *words = shlex.split(command.replace("/data/", "data/"))
        assert program == "nnunet_labelset"
        assert main([*words, "-np", "1"]) == 0
    assert list((tmp_path / "raw").glob("Dataset*/labelsTr/*"))


def test_no_dicom_library_without_a_dicom_source(tmp_path):
    write_raters(tmp_path)
    text = (PAGES / "raters.md").read_text()
    name, content = re.search(r"```toml\n# (\S+)\n(.*?)```", text, flags=re.DOTALL).groups()
    (tmp_path / name).write_text(content)
    words = ["convert", "-d", "1", "-n", "X", "-m", str(tmp_path / name), "-o", str(tmp_path)]
    # nibabel imports pydicom where it is installed: without it, and without ours, all must work.
    code = (
        "import sys; sys.modules['pydicom'] = sys.modules['highdicom'] = None;"
        f"from nnunet_labelset.cli import main; assert main({[*words, '-np', '1']}) == 0;"
        "sys.exit(any('.dicom.' in name for name in sys.modules if 'nnunet_labelset' in name))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
