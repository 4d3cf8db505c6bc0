"""Work in spawned processes: results, a worker that dies, and an interrupt that leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from nnunet_labelset import LabelSetError
from nnunet_labelset.io.parallel import map_parallel

WORK = """
import sys, time
from pathlib import Path
from nnunet_labelset.io.parallel import map_parallel


def work(number):
    Path(sys.argv[1], f"begun_{number}").touch()
    time.sleep(1)
    Path(sys.argv[1], f"done_{number}").touch()


if __name__ == "__main__":
    print("started", flush=True)
    dict(map_parallel(work, range(20), 2, "working"))
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_results(processes):
    assert dict(map_parallel(abs, [-3, 2, -1], processes, "abs")) == {-3: 3, 2: 2, -1: 1}


def test_nothing_to_do():
    assert list(map_parallel(abs, [], 2, "abs")) == []


def test_no_process():
    with pytest.raises(LabelSetError, match="-np to be at least 1, but got 0"):
        list(map_parallel(abs, [1], 0, "abs"))


def test_an_exception_of_a_worker_is_raised_here():
    with pytest.raises(TypeError):
        list(map_parallel(abs, ["a", "b"], 2, "abs"))


def test_a_worker_that_dies_is_an_error():
    with pytest.raises(LabelSetError, match="a worker process died, perhaps out of memory"):
        list(map_parallel(os._exit, [1, 2], 2, "dying"))


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to a process group, as a terminal does")
def test_interrupt(tmp_path):
    """What was begun is finished, nothing else is begun, and only the parent says that it was interrupted."""
    script = tmp_path / "work.py"
    script.write_text(WORK)
    command = [sys.executable, str(script), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    while not list(tmp_path.glob("begun_*")) and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    begun, done = ({path.name.split("_")[1] for path in tmp_path.glob(f"{what}_*")} for what in ("begun", "done"))
    assert begun == done
    assert 1 <= len(begun) < 20
    assert errors.count(b"Traceback") == 1, errors.decode()
