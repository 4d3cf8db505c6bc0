"""nnU-Net's plans file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.nnunet.folders import preprocessed_copy
from nnunet_labelset.nnunet.names import (
    CONFIGURATIONS,
    DATASET,
    DEFAULT_CONFIGURATION,
    DEFAULT_PLANS,
)
from nnunet_labelset.nnunet.raw import file_ending

FLAT_ENDINGS = (".png", ".bmp", ".jpg", ".jpeg")  # images that have no third axis


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


def planned_folder(folder: Path) -> Path | None:
    """Return where nnU-Net preprocessed a raw data set; None if it has not planned it yet."""
    copy = preprocessed_copy(folder)
    if copy is None or not (copy.parent / f"{DEFAULT_PLANS}.json").is_file():
        return None
    return copy.parent


def likely_configuration(folder: Path, planned: Path | None) -> str:
    """Return the configuration to train first: 3D where nnU-Net planned it, or would plan it."""
    first, *_ = CONFIGURATIONS
    if planned is None:
        ending = file_ending(read_json(folder / DATASET))
        return first if ending in FLAT_ENDINGS else DEFAULT_CONFIGURATION
    configurations = read_json(planned / f"{DEFAULT_PLANS}.json").get("configurations", {})
    return DEFAULT_CONFIGURATION if DEFAULT_CONFIGURATION in configurations else first


def preprocessed_folder(plans: Mapping[str, Any], configuration: str) -> str:
    """Return the name of the folder that holds the preprocessed cases of a configuration."""
    planned = plans["configurations"].get(configuration, {})
    while "data_identifier" not in planned and "inherits_from" in planned:
        planned = plans["configurations"][planned["inherits_from"]]
    return planned.get("data_identifier", f"{plans['plans_name']}_{configuration}")
