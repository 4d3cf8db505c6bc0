"""The Triton kernels without a GPU: in Triton's interpreter, and compiled to machine code for three
of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent


def test_in_the_interpreter():
    """Triton must know before it is imported that it is to interpret: hence another process."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        HERE / "triton_interpreted.py",
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=HERE
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]


COMPILE = """
from device_cost import compiled
cases = [(80, 9, "LeafDiceCELoss", "fp16"), (75, 9, "MarginalDiceFocalLoss", "fp32"), (90, 117, "LeafDiceLoss", "bf16")]
for case in cases:
    for name, facts in compiled(*case).items():
        print(*case, name, facts["bytes"], facts["registers"], facts["spills"])
"""


def test_compiles_for_gpus():
    """To machine code for three generations of GPUs, by the compiler that comes with Triton."""
    command = [sys.executable, "-c", COMPILE]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=HERE.parents[1] / "benchmarks"
    )
    assert result.returncode == 0, result.stderr[-2000:]
    lines = [line.split() for line in result.stdout.splitlines()]
    assert len(lines) == 9  # three kernels each
    for line in lines:
        assert int(line[-3]) > 1000
        assert int(line[-2]) <= 255
        assert int(line[-1]) == 0, line
