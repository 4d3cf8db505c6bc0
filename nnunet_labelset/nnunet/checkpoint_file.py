"""Checkpoints are read as data: a file from a stranger must not run code."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from nnunet_labelset.errors import LabelSetError

# What nnU-Net's checkpoints hold beside tensors: scalars and arrays of NumPy.
_SCALAR = np.float64(0).__reduce__()[0]
_ARRAY = np.zeros(1).__reduce__()[0]
_SAFE: list[Any] = [
    np.ndarray,
    np.dtype,
    *(type(np.dtype(name)) for name in ("float32", "float64", "int32", "int64", "bool", "str")),
    *((_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((_ARRAY, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
]

# In the first parameter group of the optimizer, whose options nnU-Net saves and restores as they
# are. Plain containers, so that checkpoints load without this package.
STATE = "label_sets"
OUTPUT_LAYERS = ".seg_layers."  # nnU-Net's, in the names of the weights
# What `extend` writes beside the plans: weights of an old model with the rows of new outputs.
START_FILE = "start_{plans}_{configuration}.pth"
OUTPUTS = "output_names"  # in a start file: the name of every row of the output layers
NEW_OUTPUTS = "new_names"  # those of them that the old model did not know
TRUST = "nnunet_labelset_trust"  # a variable, because nnU-Net's commands know no such option
TRUST_IT = f"set {TRUST}=1"


def trusted() -> bool:
    """Tell whether the user has allowed checkpoints to run code."""
    return os.environ.get(TRUST, "") == "1"


class UnreadableCheckpointError(LabelSetError):
    """A file that is no checkpoint, or only a part of one."""


def read_checkpoint(
    path: Path, trust: bool = False, mmap: bool = False, how_to_trust: str = "give --trust"
) -> dict[str, Any]:
    """Return the content of a checkpoint; a file that needs more than tensors and numbers is an
    error.

    trust: run whatever code the file brings, as nnU-Net itself does.
    mmap: leave tensors on the disk until they are used.
    how_to_trust: for the error message.
    """
    import torch

    if not trust:
        _check_growth(path, how_to_trust)
    try:
        with torch.serialization.safe_globals(_SAFE):
            content = torch.load(path, map_location="cpu", weights_only=not trust, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise _refusal(path, error, how_to_trust) from None
    except Exception as error:  # torch raises many kinds for a file that is cut off
        reason = (str(error).splitlines() or [repr(error)])[0]
        raise UnreadableCheckpointError(f"{path}: not readable as a checkpoint: {reason}") from None
    if not isinstance(content, dict):
        raise LabelSetError(f"{path}: not a checkpoint of nnU-Net: expected a dictionary")
    return content


def stored_state(path: Path) -> dict[str, Any]:
    """Return what a trainer of this package keeps in a checkpoint; nothing for other trainers."""
    content = read_checkpoint(path, trusted(), mmap=True, how_to_trust=TRUST_IT)
    groups = content.get("optimizer_state", {}).get("param_groups", [{}])
    return groups[0].get(STATE, {})


def _check_growth(path: Path, how_to_trust: str) -> None:
    """Refuse a file that would fill the memory: PyTorch itself compresses nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (OSError, zipfile.BadZipFile):  # of an older PyTorch, or no checkpoint
        return
    if size > path.stat().st_size:
        raise LabelSetError(
            f"{path}: is compressed and would unpack to {size / 1e6:.0f} MB, unlike checkpoints of "
            f"nnU-Net: do not use it, or {how_to_trust} if you know who made it"
        )


def _refusal(path: Path, error: pickle.UnpicklingError, how_to_trust: str) -> LabelSetError:
    needed = re.search(r"GLOBAL ([\w.]+)", str(error))
    if needed is None:
        return UnreadableCheckpointError(
            f"{path}: not readable as a checkpoint: it may be cut off, or need code to be read"
        )
    return LabelSetError(
        f"{path}: reading it would run code ({needed[1]}), which no checkpoint of nnU-Net needs: "
        f"do not use it, or {how_to_trust} if you know who made it"
    )
