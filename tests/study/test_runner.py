"""Commands of the demo: side by side, each once, and none left behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tqdm import tqdm

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.logs import telling
from nnunet_labelset.study.runner import Commands, show_epochs

MEET = """
import pathlib, sys, time
mine, other = map(pathlib.Path, sys.argv[1:])
mine.touch()
for _ in range(600):
    if other.exists():
        sys.exit(0)
    time.sleep(0.1)
sys.exit(1)
"""
LINGER = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
FAIL_WHEN = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists() or not pathlib.Path(sys.argv[1]).read_text():
    time.sleep(0.1)
sys.exit(3)
"""


def test_two_at_a_time(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    Commands(tmp_path, together=2).run(
        [["python", "-c", MEET, left, right], ["python", "-c", MEET, right, left]]
    )


def test_one_at_a_time_keeps_the_order(tmp_path: Path) -> None:
    write = "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"
    Commands(tmp_path, together=1).run(
        [["python", "-c", write, tmp_path / "order", n] for n in range(3)]
    )
    assert (tmp_path / "order").read_text() == "012"


def test_a_failure_stops_the_others_and_is_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pid = tmp_path / "pid"
    commands = [
        ["python", "-c", "pass"],
        ["python", "-c", LINGER, pid],
        ["python", "-c", FAIL_WHEN, pid],
    ]
    with pytest.raises(LabelSetError, match="python -c"):
        Commands(tmp_path, together=3).run(commands)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    with pytest.raises(LabelSetError):
        Commands(tmp_path, together=3).run([commands[0], commands[2]])
    assert capsys.readouterr().out.count("done before") == 1


def test_terminated_demo_takes_its_commands_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = f"""
from pathlib import Path
from nnunet_labelset.study.runner import Commands, show_epochs
from nnunet_labelset.io.parallel import exit_when_terminated
exit_when_terminated()
Commands(Path({str(tmp_path)!r}), together=1).run([["python", "-c", {LINGER!r}, {str(pid)!r}]])
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    while not pid.is_file() or not pid.read_text():
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_environment_is_shown_and_passed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    check = "import os; assert (os.environ['A'], os.environ['B']) == ('1', '2')"
    Commands(tmp_path, 1, {"A": "1", "B": "1"}).run(
        [["python", "-c", check]], environment={"B": "2"}
    )
    assert capsys.readouterr().out.startswith("$ B=2 python -c ")


def test_a_bar_counts_finished_epochs() -> None:
    bar = tqdm(total=8, file=io.StringIO())
    show_epochs(bar, ["2026-11-18 15:00:00.1: Epoch 0", "2026-11-18 15:00:01.1: train_loss -0.5"])
    assert bar.n == 0
    show_epochs(bar, ["2026-11-18 15:00:02.1: Epoch 1", "2026-11-18 15:00:09.1: Epoch 2"])
    assert bar.n == 2
    show_epochs(bar, ["2026-11-18 15:00:12.1: predicting case_1"])
    assert bar.n == 8


def test_quiet_commands_and_trainings_write_to_their_log(
    tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    speak = ["python", "-c", "print('Pseudo dice')", "-tr", "Trainer"]
    Commands(tmp_path, 1).run([speak], epochs=2, is_quiet=True)
    screen = capfd.readouterr().out
    assert "Trainer: trained" in screen
    assert "\nPseudo dice" not in screen
    assert (tmp_path / "01_python.txt").read_text() == "Pseudo dice\n"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  kidney  Dice 0.2664  annotated in 3, scored in 3 of 4", True),
        ("2026-11-19 04:08:24: Pseudo dice [np.float64(0.5)]", True),
        ("                              n Dice  n NSD  n HD95", False),  # a table of compare
    ],
)
def test_lines_that_show_how_a_command_goes_on(line, shown):
    assert (telling(line) is not None) == shown
