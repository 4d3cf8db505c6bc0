"""What `pip install .` puts on a machine."""

from __future__ import annotations

import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml

from nnunet_labelset import __version__
from nnunet_labelset.cli import VERBS, main

ROOT = Path(__file__).parent.parent
OUTER = ("trainers", "dataset_conversion")
NAMED = ("py.typed", "Snakefile")
KEPT = (".py", ".toml", ".md", ".yaml", ".css", ".js", ".html")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it, as a package index would get them."""
    folder = tmp_path_factory.mktemp("package")
    ignored = shutil.ignore_patterns(
        ".*", "__pycache__", "*.egg-info", "build", "dist", "labelset_demo"
    )
    shutil.copytree(ROOT, folder / "source", ignore=ignored)
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(folder / "source"),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")))
def test_workflows_run_on_extras_and_commands_that_exist(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow[True]  # YAML takes the key "on" for a truth value
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = " ".join(step.get("run", "") for step in steps)
    extras = ",".join(re.findall(r"\.\[([\w,]+)\]", commands)).split(",")
    assert set(extras) - {""} <= set(metadata("nnunet_labelset").get_all("Provides-Extra"))
    files = re.findall(r"python (\S+\.py)", commands)
    assert not [name for name in files if not (ROOT / name).is_file()]


@pytest.mark.parametrize("name", ["Contract", "LabelSets", "contract"])
def test_public_names_can_be_imported_first(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"from nnunet_labelset import {name}"],
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()


def test_the_wheel_has_one_package_and_all_of_it(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "nnunet_labelset"
    }
    ours = [path.relative_to(ROOT) for path in (ROOT / "nnunet_labelset").rglob("*")]
    ours += [
        Path("nnunet_labelset", path.relative_to(ROOT))
        for room in OUTER
        for path in (ROOT / room).rglob("*")
    ]
    expected = {path.as_posix() for path in ours if path.suffix in KEPT or path.name in NAMED}
    assert {
        "nnunet_labelset/study/workflow/profile.yaml",
        "nnunet_labelset/trainers/leaf_dice.py",
    } <= expected
    assert expected - set(names) == set()


def test_the_package_may_be_published(built: Path) -> None:
    files = [str(path) for path in built.iterdir() if path.suffix in (".whl", ".gz")]
    assert len(files) == 2
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_version_number(built: Path) -> None:
    assert next(built.glob("*.whl")).name.split("-")[1] == __version__
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## \[?{re.escape(__version__)}", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert __version__ not in (ROOT / "pyproject.toml").read_text()


# train and predict show the help of nnU-Net, which is slow to import: see test_commands.py
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("train", "predict")])
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"usage: nnunet_labelset {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nnunet_labelset.trainer.LabelSetMixin", "nnunet_labelset.training.mixin.LabelSetMixin"),
        (
            "nnunet_labelset.trainer.FullySupervisedMixin",
            "nnunet_labelset.training.fully_supervised.FullySupervisedMixin",
        ),
        ("nnunet_labelset.label_sets.LabelSets", "nnunet_labelset.losses.label_sets.LabelSets"),
        ("nnunet_labelset.LabelSets", "nnunet_labelset.losses.label_sets.LabelSets"),
        ("nnunet_labelset.Contract", "nnunet_labelset.contract.model.Contract"),
        ("nnunet_labelset.contract.Contract", "nnunet_labelset.contract.model.Contract"),
        ("nnunet_labelset.losses.LeafDiceLoss", "nnunet_labelset.losses.modules.LeafDiceLoss"),
    ],
)
def test_names_that_users_have_typed_keep_working(old: str, new: str) -> None:
    assert pkgutil.resolve_name(old) is pkgutil.resolve_name(new)
