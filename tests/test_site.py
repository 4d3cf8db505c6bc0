"""The site builds without a warning, its generated pages are current, and the tutorial runs as a notebook."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
    assert generate.NOTEBOOK.read_text(encoding="utf-8") == generate.notebook(), hint


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "how-to" / "missing_labels" / "index.html").is_file()


@pytest.mark.slow
def test_the_tutorial_runs(generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell, with fewer steps of training than a reader takes."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = generate.NOTEBOOK.read_text(encoding="utf-8")
    length = "nnunet_labelset_epochs={} nnunet_labelset_iterations={}"
    short = text.replace(length.format(6, 50), length.format(1, 2))
    assert short != text
    NotebookClient(nbformat.reads(short, 4), timeout=1800, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "tutorial" / "report.html").is_file()
    assert (tmp_path / "tutorial" / "comparison" / "table.md").is_file()
