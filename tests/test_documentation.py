"""Every command in the documentation is one that the program takes, and the Python of the README runs."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
from pathlib import Path

import pytest

from nnunet_labelset.cli import VERBS, module_of
from nnunet_labelset.nnunet.discovery import trainers_folder

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(page: Path) -> list[str]:
    """Commands in fenced blocks and between backquotes, continued lines joined."""
    text = page.read_text().replace("\\\n", " ")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for language, block in fenced if language in ("", "bash", "sh") for line in block.splitlines()]
    inline = re.findall(r"`(nnunet_labelset [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line.strip().removeprefix("$ ") for line in lines + inline if "nnunet_labelset " in line]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_accepted(page: Path) -> None:
    for command in commands(page):
        words = shlex.split(re.sub(r".*?\bnnunet_labelset ", "", command, count=1).removesuffix(')"'), comments=True)
        if not words or words[0] in ("VERB", "<verb>") or len(words) == 1 or "..." in command:
            assert words[:1] in ([], ["VERB"], ["<verb>"]) or words[0] in VERBS, command
            continue
        assert words[0] in VERBS, command
        parser = argparse.ArgumentParser(exit_on_error=False)
        module_of(words[0]).configure(parser)
        with contextlib.suppress(SystemExit) if "--presets" in words else contextlib.nullcontext():
            parser.parse_args(words[1:])


@pytest.mark.parametrize("page", ["README.md", "docs/trainers.md", "docs/how-to/only_the_loss.md"])
def test_python_runs(page: str) -> None:
    blocks = python_blocks(ROOT / page)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_trainers_exist(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name}: {link}"
    known = "".join(path.read_text() for path in Path(trainers_folder()).glob("*.py")) + "".join(python_blocks(page))
    for trainer in re.findall(r"\bnnUNetTrainer(?:Leaf|Marginal|Soft|Fully)\w+?(?=__|\b)", text):
        assert f"class {trainer}(" in known, f"{page.name}: {trainer}"
