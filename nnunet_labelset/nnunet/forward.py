"""Run a command of nnU-Net in this process, with our trainers where it looks for trainers."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import entry_points

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.discovery import external_trainers
from nnunet_labelset.nnunet.names import EXTERNAL_TRAINERS


def check_device(arguments: Sequence[str]) -> None:
    """Refuse to start on a GPU that is not there: nnU-Net would end in a traceback."""
    if {"-h", "--help"} & set(arguments):
        return
    import torch

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-device", default="cuda")  # nnU-Net's default
    device = parser.parse_known_args(list(arguments))[0].device
    if device == "cuda" and not torch.cuda.is_available():
        raise LabelSetError("-device cuda: PyTorch finds no GPU: add -device cpu, which is slow")


def forward(command: str, typed: str, arguments: Sequence[str]) -> None:
    """A command that nnU-Net installs, such as `nnUNetv2_train`; its help says what was typed."""
    found = list(entry_points(group="console_scripts", name=command))
    if not found:
        raise LabelSetError(f"{command} is not installed: is nnunetv2 in this environment?")
    if threading.current_thread() is threading.main_thread():
        # nnU-Net ends its workers with it, and they inherit the handler
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    before, sys.argv = sys.argv, [typed, *arguments]
    os.environ[EXTERNAL_TRAINERS] = external_trainers()
    try:
        found[0].load()()
    finally:
        sys.argv = before
