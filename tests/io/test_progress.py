"""Progress bars: on a terminal, for long work; nothing in logs and pipes."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

WORK = """
import sys, time
from nnunet_labelset.io import progress
progress.DELAY = float(sys.argv[1])
for _ in progress.progress(range(4), "reading"):
    time.sleep(0.2)
"""


def run_on_terminal(delay: str) -> str:
    """Return what the work shows on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    rows_and_columns = struct.pack("HHHH", 24, 100, 0, 0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, rows_and_columns)
    subprocess.run([sys.executable, "-c", WORK, delay], stderr=theirs, check=True)
    os.set_blocking(ours, False)
    try:
        return os.read(ours, 100_000).decode()
    except BlockingIOError:  # nothing to read
        return ""
    finally:
        os.close(theirs)
        os.close(ours)


def test_long_work_shows_the_time_left_on_a_terminal():
    text = run_on_terminal("0.1")
    assert "reading" in text
    assert "4/4" in text
    assert "<" in text  # elapsed<remaining


def test_short_work_shows_nothing():
    assert run_on_terminal("1000") == ""


def test_pipes_get_nothing():
    result = subprocess.run([sys.executable, "-c", WORK, "0"], capture_output=True, check=True)
    assert (result.stdout, result.stderr) == (b"", b"")
