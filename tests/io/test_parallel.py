"""Work in spawned processes: results, a worker that dies, and an interrupt that leaves nothing
behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nnunet_labelset import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.parallel import map_parallel
from tests.helpers.errors import refusal

WORK = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
from nnunet_labelset.io.parallel import map_parallel

folder, moment = Path(sys.argv[1]), sys.argv[2]


def wait():
    while not Path(folder, "go").exists():
        time.sleep(0.01)


def work(number):
    Path(folder, f"begun_{number}").touch()
    wait()
    Path(folder, f"done_{number}").touch()


if __name__ == "__mp_main__" and moment == "importing":
    Path(folder, "importing").touch()
    wait()
if __name__ == "__main__":
    # a shell ignores it for what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if moment == "starting":
        start = multiprocessing.context.SpawnProcess.start

        def interrupted_start(process):
            start(process)
            os.killpg(0, signal.SIGINT)

        multiprocessing.context.SpawnProcess.start = interrupted_start
    try:
        dict(map_parallel(work, range(20), 2, "working"))
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_results(processes):
    assert dict(map_parallel(abs, [-3, 2, -1], processes, "abs")) == {-3: 3, 2: 2, -1: 1}


def test_nothing_to_do():
    assert list(map_parallel(abs, [], 2, "abs")) == []


def test_no_process():
    with refusal(LabelSetError, "-np", 0):
        list(map_parallel(abs, [1], 0, "abs"))


@pytest.mark.parametrize("processes", [1, 2])
def test_an_exception_of_a_worker_names_its_item(processes):
    with pytest.raises(LabelSetError, match=r"abs [ab]: TypeError: bad operand type"):
        list(map_parallel(abs, ["a", "b"], processes, "abs"))


def test_a_user_error_of_a_worker_stays_as_it_is(tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    with pytest.raises(LabelSetError, match=r"[ab]\.json: no such file$"):
        list(map_parallel(read_json, files, 2, "reading"))


def test_a_worker_that_dies_is_an_error():
    with refusal(LabelSetError, "dying", "memory", "-np"):
        list(map_parallel(os._exit, [1, 2], 2, "dying"))


def start(folder: Path, moment: str) -> subprocess.Popen:
    """Twenty items for two workers, each of which waits for the file `go`; then wait for the moment
    to interrupt.
    """
    script = folder / "work.py"
    script.write_text(WORK)
    command = [sys.executable, str(script), str(folder), moment]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    files = {"working": "begun_*", "importing": "importing"}
    while moment in files and not list(folder.glob(files[moment])):
        assert process.poll() is None
        time.sleep(0.01)
    return process


@pytest.mark.skipif(
    os.name != "posix", reason="sends a signal to a process group, as a terminal does"
)
@pytest.mark.parametrize("moment", ["working", "importing", "starting"])
def test_interrupt(tmp_path, moment):
    """At every moment: what was begun is finished, nothing else is begun, and nobody prints a
    traceback.
    """
    process = start(tmp_path, moment)
    if moment != "starting":  # it interrupts itself, in the middle of starting a worker
        os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"interrupted: finishing running cases")
    (tmp_path / "go").touch()
    output, errors = process.communicate(timeout=300)
    begun, done = (
        {path.name.split("_")[1] for path in tmp_path.glob(f"{what}_*")}
        for what in ("begun", "done")
    )
    assert begun == done
    assert len(begun) <= 5  # the two at work, and what waited in the queue of the workers
    assert (output, errors) == (b"stopped\n", b"")


@pytest.mark.skipif(
    os.name != "posix", reason="sends a signal to a process group, as a terminal does"
)
def test_a_second_interrupt_does_not_wait(tmp_path):
    process = start(tmp_path, "working")
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"interrupted")
    os.killpg(process.pid, signal.SIGINT)
    # nobody ever says `go`; ends when the last worker has ended
    output, errors = process.communicate(timeout=300)
    assert output == b"stopped\n"
    assert not list(tmp_path.glob("done_*"))
    assert b"Traceback" not in errors
