"""How a training that cannot continue ends: in one line, without a traceback through nnU-Net."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from torch import distributed as dist

from nnunet_labelset.contract import BLOCK
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.raw import label_maps_replaced


def global_rank() -> int:
    """Return the number of this process among all processes of the training, on all nodes."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def stop(reason: object) -> NoReturn:
    """End the program with one line.

    Every process of a distributed training prints its own: nnU-Net ends the others as soon as one
    has ended.
    """
    rank = f" (rank {global_rank()})" if global_rank() else ""
    sys.exit(f"nnunet_labelset: error{rank}: {reason}")


class LogFileHandler(logging.Handler):
    """Writes warnings of the package into the log file of the training."""

    def __init__(self, log: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        self.log(f"WARNING: {record.getMessage()}")


def log_warnings(log: Callable[[str], None]) -> None:
    """Send warnings, such as that the kernels were switched off, to the training log."""
    logger = logging.getLogger("nnunet_labelset")
    for handler in list(logger.handlers):  # of an earlier trainer in this process
        if isinstance(handler, LogFileHandler):
            logger.removeHandler(handler)
    logger.addHandler(LogFileHandler(log))


@contextmanager
def stopping(hint: str = "") -> Iterator[None]:
    """End the program with one line, and a hint, if the block raises a `LabelSetError`."""
    try:
        yield
    except LabelSetError as error:
        stop(f"{error}{hint}")


@contextmanager
def stopping_at_contract(dataset_name: str, dataset_json: Mapping[str, Any]) -> Iterator[None]:
    """Do the same for errors in the contract: name the file, and how to renew it.

    nnU-Net trains with the copy of dataset.json in nnUNet_preprocessed, where few people look.
    """
    try:
        yield
    except LabelSetError as error:
        copy = _dataset_file(names.PREPROCESSED, dataset_name)
        if copy is None:
            stop(error)
        stop(f"{copy}: {error}{_how_to_renew(copy, dataset_name, dataset_json)}")


def _dataset_file(variable: str, dataset_name: str) -> Path | None:
    folder = os.environ.get(variable)
    return Path(folder) / dataset_name / names.DATASET if folder else None


def _how_to_renew(copy: Path, dataset_name: str, dataset_json: Mapping[str, Any]) -> str:
    """Return a sentence if the raw data set has a block that differs from that of the copy."""
    raw = _dataset_file(names.RAW, dataset_name)
    if raw is None or not raw.is_file():
        return ""
    try:
        content = read_json(raw)
    except LabelSetError:
        return ""
    has_other_labels = content.get("labels") != dataset_json.get("labels")
    has_other_block = content.get(BLOCK) != dataset_json.get(BLOCK)
    if BLOCK not in content or not (has_other_labels or has_other_block):
        return ""
    # Label maps that changed with the block were not preprocessed: its new meaning would not fit
    # the old values.
    has_other_maps = has_other_labels or label_maps_replaced(raw.parent)
    renew = f"run {names.PLAN_AND_PREPROCESS} again" if has_other_maps else f"cp {raw} {copy}"
    difference = "differs" if BLOCK in dataset_json else "has the block"
    return f". The training reads this copy; {raw} {difference}: {renew}"
