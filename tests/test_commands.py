"""Verbs that hand over to nnU-Net, and what they tell about our trainers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nnunet_labelset.cli import entry, main
from nnunet_labelset.nnunet.discovery import known_trainers, trainers_folder


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("nnUNet_extTrainer", "/somewhere/else")


def run(*words: str) -> subprocess.CompletedProcess:
    command = Path(sys.executable).parent / "nnunet_labelset"
    return subprocess.run([str(command), *words], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_train_is_nnunets_command_and_finds_our_trainers() -> None:
    program = """
import sys
import nnunet_labelset.nnunet.forward as module
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name
class Entry:
    def load(self):
        return lambda: print(recursive_find_trainer_class_by_name("nnUNetTrainerLeafDice").__mro__, sys.argv)
(real,) = module.entry_points(group="console_scripts", name="nnUNetv2_train")
assert callable(real.load())
module.entry_points = lambda **_: [Entry()]
module.forward("nnUNetv2_train", "nnunet_labelset train", ["27", "--c"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "LabelSetMixin" in done.stdout
    assert "['nnunet_labelset train', '27', '--c']" in done.stdout


@pytest.mark.slow
def test_wrong_arguments_are_refused_by_nnunet() -> None:
    done = run("predict", "-i", "nowhere")
    assert done.returncode == 2
    assert "usage: nnunet_labelset predict" in done.stderr
    assert "required: -o, -d" in done.stderr


def test_our_folder_is_put_before_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    from nnunet_labelset.nnunet.discovery import external_trainers

    assert external_trainers() == os.pathsep.join([trainers_folder(), "/somewhere/else"])
    monkeypatch.setenv("nnUNet_extTrainer", trainers_folder())
    assert external_trainers() == trainers_folder()


def test_a_trainer_file_in_another_encoding_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "# façon d'un hôpital\nclass nnUNetTrainerOfTheirs: ...\n"
    (tmp_path / "theirs.py").write_text(source, encoding="latin-1")
    monkeypatch.setenv("nnUNet_extTrainer", str(tmp_path))
    assert {"nnUNetTrainerOfTheirs", "nnUNetTrainerLabelSet"} <= known_trainers()


def test_trainers_are_listed_with_a_line_each(capsys: pytest.CaptureFixture) -> None:
    assert main(["trainers"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert main(["trainers", "--list"]) == 0
    *lines, rule = capsys.readouterr().out.splitlines()
    assert "_short" in rule
    assert "_NoMirroring" in rule
    assert "_onlyMirror01" in rule
    assert "nnUNetTrainerMarginalDice_short_NoMirroring" in known_trainers()
    defined = {
        name
        for path in folder.glob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(), re.M)
    }
    assert {line.split()[0] for line in lines} == defined <= known_trainers()
    described = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert lines[0].startswith("nnUNetTrainerLabelSet ")
    assert all(len(words.split()) > 1 and "`weight" not in words for words in described.values())
    assert "cross entropy" in described["nnUNetTrainerLeafDiceCE"]


def test_interrupt_before_the_verb_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nnunet_labelset.io.parallel.exit_when_terminated", interrupted)
    monkeypatch.setattr(sys, "argv", ["nnunet_labelset", "coverage", "-d", "1"])
    with pytest.raises(SystemExit) as ended:
        entry()
    assert ended.value.code == 130


def test_help_imports_nothing_slow() -> None:
    """Half a second of imports is what makes a command feel slow: help needs neither arrays nor
    networks.
    """
    program = "import sys; from nnunet_labelset.cli import main\ntry: main(['-h'])\nexcept SystemExit: print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {
        "numpy",
        "torch",
        "nnunetv2",
        "SimpleITK",
        "pandas",
        "matplotlib",
        "scipy",
        "multiprocessing",
    }
