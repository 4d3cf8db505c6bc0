"""nnU-Net's plans file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnunet_labelset.io.files import read_json, write_json


def cut_down(
    plans: Path,
    configuration: str,
    patch: Sequence[int],
    features: Sequence[int],
    batch_size: int = 2,
) -> None:
    """A network that a CPU trains in minutes: what users do by hand in the plans file when the
    hardware is small.
    """
    content = read_json(plans)
    planned, stages = content["configurations"][configuration], len(features)
    planned["patch_size"] = list(patch)
    planned["batch_size"] = batch_size
    planned["architecture"]["arch_kwargs"] |= {
        "n_stages": stages,
        "features_per_stage": list(features),
        "kernel_sizes": [[3] * len(patch)] * stages,
        "strides": [[1] * len(patch)] + [[2] * len(patch)] * (stages - 1),
        "n_conv_per_stage": [1] + [2] * (stages - 1),
        "n_conv_per_stage_decoder": [1] * (stages - 1),
    }
    write_json(plans, content)


def preprocessed_folder(plans: Mapping[str, Any], configuration: str) -> str:
    """Return the name of the folder that holds the preprocessed cases of a configuration."""
    planned = plans["configurations"].get(configuration, {})
    while "data_identifier" not in planned and "inherits_from" in planned:
        planned = plans["configurations"][planned["inherits_from"]]
    return planned.get("data_identifier", f"{plans['plans_name']}_{configuration}")
