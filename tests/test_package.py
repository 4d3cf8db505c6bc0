"""What `pip install .` puts on a machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nnunet_labelset.cli import VERBS, main

ROOT = Path(__file__).parent.parent


def test_the_wheel_has_one_package_and_all_of_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "tests", "labelset_demo")
    shutil.copytree(ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"nnunet_labelset"}
    for expected in (
        "py.typed",
        "losses/confusion.py",
        "commands/convert.py",
        "trainers/leaf_dice.py",
        "dataset_conversion/sources/manifest.py",
        "dataset_conversion/presets/fetal_brain.toml",
        "study/scripts/run.sh",
        "study/scripts/submit_slurm.sh",
    ):
        assert f"nnunet_labelset/{expected}" in names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "nnunet_labelset").rglob("*.py")}
    assert modules <= set(names)


# train and predict show the help of nnU-Net, which is slow to import: see test_commands.py
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("train", "predict")])
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"usage: nnunet_labelset {verb}" in capsys.readouterr().out
