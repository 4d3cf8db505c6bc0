"""The site builds without a warning, its generated pages are current, and the tutorial runs as a
notebook.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    hint = "run: python docs/generate.py"
    assert generate.COMMANDS.read_text(encoding="utf-8") == generate.commands_page(), hint
    assert generate.FILES.read_text(encoding="utf-8") == generate.files_page(), hint
    assert generate.NOTEBOOK.read_text(encoding="utf-8") == generate.notebook(), hint


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    # Not --quiet: it would hide warnings from --strict as well.
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        tmp_path / "site",
    ]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "how-to" / "missing_labels" / "index.html").is_file()


@pytest.mark.slow
def test_the_tutorial_runs_and_prints_what_it_shows(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every cell, with fewer steps of training than a reader takes: other numbers, but the same
    lines and pictures.
    """
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = generate.NOTEBOOK.read_text(encoding="utf-8")
    length = "nnunet_labelset_epochs={} nnunet_labelset_iterations={}"
    short = text.replace(length.format(6, 50), length.format(1, 2))
    assert short != text
    printed = generate.execute(short, tmp_path)
    for shown, now in zip(generate.outputs(), printed, strict=True):
        if shown is not None:
            generate.renewed(shown, now)  # an error where they differ
    assert (tmp_path / "tutorial" / "comparison" / "table.md").is_file()
    assert (tmp_path / "tutorial" / "report.html").is_file()
    for picture in generate.PICTURES.glob("*.png"):
        if picture.stem != "report":  # a page, photographed by hand
            assert _size(tmp_path / "tutorial" / picture.name) == _size(picture)


def _size(picture: Path) -> tuple[int, int]:
    with Image.open(picture) as image:
        return image.size


def test_pictures_are_small() -> None:
    assert (
        max(path.stat().st_size for path in (ROOT / "docs" / "images" / "tutorial").glob("*.png"))
        < 100_000
    )


def test_output_that_changed_is_noticed(generate: ModuleType) -> None:
    """Numbers may change, lines may not; `...` stands for any lines."""
    shown = "group  cases\n-----  -----\nall        4\n...\nwrote a.json\n"
    now = "group   cases\n------  -----\nall        16\nmore\nand more\nwrote a.json\n"
    assert generate.renewed(shown, now) == now.replace("more\nand more\n", "...\n")
    for changed in (
        now.replace("group ", "protocol "),
        now.replace("wrote", "written:"),
        now + "note: x\n",
    ):
        with pytest.raises(ValueError, match="the tutorial"):
            generate.renewed(shown, changed)
