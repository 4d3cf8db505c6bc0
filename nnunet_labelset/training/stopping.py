"""How a training that cannot go on ends: one line that says what is wrong, in which file, and how
to mend it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from torch import distributed as dist

from nnunet_labelset.contract import BLOCK
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.raw import label_maps_replaced


def stop(reason: object) -> NoReturn:
    """End the program in one line: a traceback through nnU-Net would hide what is wrong.

    Every process of a distributed training says it: nnU-Net ends the others as soon as one has
    ended.
    """
    rank = f" (rank {dist.get_rank()})" if dist.is_initialized() and dist.get_rank() > 0 else ""
    sys.exit(f"nnunet_labelset: error{rank}: {reason}")


def stop_at_contract(
    error: LabelSetError, dataset_name: str, dataset_json: Mapping[str, Any]
) -> NoReturn:
    """The same for a mistake in the contract: nnU-Net trains with a copy of dataset.json, where
    nobody looks.
    """
    preprocessed, raw = (
        Path(os.environ[variable]) / dataset_name / names.DATASET
        if os.environ.get(variable)
        else None
        for variable in (names.PREPROCESSED, names.RAW)
    )
    hint = ""
    if preprocessed and raw and raw.is_file():
        try:
            content = read_json(raw)
        except LabelSetError:
            content = {}
        if BLOCK in content and any(
            content.get(key) != dataset_json.get(key) for key in ("labels", BLOCK)
        ):
            what = "is another one" if BLOCK in dataset_json else "has the block"
            # Label maps that changed with it were not preprocessed: the new meaning would not fit
            # the old values.
            changed = label_maps_replaced(raw.parent) or content.get("labels") != dataset_json.get(
                "labels"
            )
            renew = (
                f"run {names.PLAN_AND_PREPROCESS} again" if changed else f"cp {raw} {preprocessed}"
            )
            hint = f". The training reads this copy; {raw} {what}: {renew}"
    stop(f"{preprocessed}: {error}{hint}" if preprocessed else error)
