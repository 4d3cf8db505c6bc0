"""Every command in the documentation is one that the program takes, and the Python of the README
runs.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.cli import VERBS, module_of
from nnunet_labelset.io.volume import read_voxels
from nnunet_labelset.nnunet.discovery import PRETRAINED_TRAINER, known_trainers
from tests.helpers.pictures import write_picture
from tests.helpers.volumes import write_volume

ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "docs" / "reference" / "files.md"  # names verbs without their arguments
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - {GENERATED})]


def commands(page: Path) -> list[str]:
    """Commands in fenced blocks and between backquotes, continued lines joined."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [
        line
        for language, block in fenced
        if language in ("", "bash", "sh")
        for line in block.splitlines()
    ]
    inline = re.findall(
        r"`(nnunet_labelset [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    )
    return [
        line.strip().removeprefix("$ ") for line in lines + inline if "nnunet_labelset " in line
    ]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_accepted(page: Path) -> None:
    for command in commands(page):
        words = shlex.split(
            re.sub(r".*?\bnnunet_labelset ", "", command, count=1).removesuffix(')"'), comments=True
        )
        if not words or words[0] in ("VERB", "<verb>") or len(words) == 1 or "..." in command:
            assert words[:1] in ([], ["VERB"], ["<verb>"]) or words[0] in VERBS, command
            continue
        assert words[0] in VERBS, command
        parser = argparse.ArgumentParser(exit_on_error=False)
        module_of(words[0]).configure(parser)
        with contextlib.suppress(SystemExit) if "--presets" in words else contextlib.nullcontext():
            parser.parse_args(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_nnunet_exist_with_their_flags(page: Path) -> None:
    scripts = {script.name: script for script in entry_points(group="console_scripts")}
    text = re.sub(r"\\\n", " ", page.read_text(encoding="utf-8"))
    for command in re.findall(
        r"^[ `]*(nnUNetv2_\w+[^\n`]*)|`(nnUNetv2_\w+ [^`\n]+)`", text, re.MULTILINE
    ):
        name, *words = shlex.split("".join(command).replace("'", ""), comments=True)
        assert name in scripts, f"{page.name}: {name}"
        spec = find_spec(scripts[name].module)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).read_text(encoding="utf-8")
        for flag in (word for word in words if re.match(r"--?[a-z]", word)):
            assert re.search(rf"""['"]{flag}['"]""", source), f"{page.name}: {name} has no {flag}"


def test_options_of_snakemake_exist() -> None:
    cli = pytest.importorskip("snakemake.cli")  # an extra
    known = set(cli.get_argument_parser()._option_string_actions)
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    typed = re.findall(r"snakemake( -[^`#\n&;]*)", text)
    options = {word for words in typed for word in words.split() if word.startswith("-")}
    assert options
    assert options <= known


@pytest.mark.parametrize("page", ["README.md", "docs/trainers.md", "docs/how-to/only_the_loss.md"])
def test_python_runs(page: str) -> None:
    blocks = python_blocks(ROOT / page)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})


def test_slices_without_a_label_become_ignore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.zeros((4, 3, 3), np.uint8)
    values[2, 1, 1] = 1
    write_volume(tmp_path / "labelsTr" / "pat_002.nii.gz", values, spacing=(1.0, 2.0, 3.0))
    monkeypatch.chdir(tmp_path)
    (block,) = python_blocks(ROOT / "docs" / "how-to" / "scribbles.md")
    exec(compile(block, "scribbles.md", "exec"), {})
    after, place = read_voxels(tmp_path / "labelsTr" / "pat_002.nii.gz")
    assert [sorted(np.unique(plane)) for plane in after] == [[4], [4], [0, 1], [4]]
    assert place.spacing == (1.0, 2.0, 3.0)


def test_colours_of_masks_become_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.zeros((4, 5, 3), np.uint8)
    pixels[1, 2], pixels[3, 4] = (255, 0, 0), (0, 0, 255)
    write_picture(tmp_path / "eyes" / "masks" / "a.png", pixels)
    monkeypatch.chdir(tmp_path)
    (block,) = python_blocks(ROOT / "docs" / "how-to" / "flat_images.md")
    exec(compile(block, "flat_images.md", "exec"), {})
    values, _ = read_voxels(tmp_path / "eyes" / "labels" / "a.png")
    values = values.squeeze()
    assert (values[1, 2], values[3, 4], values.sum()) == (1, 2, 3)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_trainers_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
        if "://" in link:
            continue
        target = page.parent / link if link else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            headings = re.findall(
                r"^#+ (.*)|<a id=\"([^\"]+)\"", target.read_text(encoding="utf-8"), re.MULTILINE
            )
            headings = ["".join(heading) for heading in headings]
            assert anchor in {
                re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings
            }, anchor
    own_classes = re.findall(r"^class (\w+)\(", "\n".join(python_blocks(page)), re.MULTILINE)
    fine_tuned = {PRETRAINED_TRAINER, f"{PRETRAINED_TRAINER}Primus"}  # no released nnU-Net
    known = known_trainers() | fine_tuned | set(own_classes)
    for trainer in re.findall(
        r"\bnnUNetTrainer(?:Label|Leaf|Marginal|Soft|Fully)\w+?(?=__|\b)", text
    ):
        assert trainer in known, f"{page.name}: {trainer}"
