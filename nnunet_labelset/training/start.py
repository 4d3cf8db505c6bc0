"""The output layers of a start file that `nnunet_labelset extend` wrote, put back into the network.

nnU-Net leaves them out when it loads `-pretrained_weights`, and does not tell its trainers which file it loaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from nnunet_labelset.nnunet.extend import OUTPUT_LAYERS, OUTPUTS
from nnunet_labelset.training.stopping import stop


def pretrained_file() -> str | None:
    """The file after `-pretrained_weights` on the command line, read as nnU-Net reads it."""
    parser = argparse.ArgumentParser(add_help=False)
    for option in ("-pretrained_weights", "-p"):  # a bare -p would be taken for an abbreviation
        parser.add_argument(option)
    return parser.parse_known_args(sys.argv[1:])[0].pretrained_weights


def restore_outputs(network: nn.Module, file: str, names: Sequence[str]) -> str | None:
    """Copy the output layers if the file carries their names; returns what to log."""
    content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=False, mmap=True)
    if OUTPUTS not in content:
        return None  # any other pretrained network: nnU-Net starts the outputs anew
    if content[OUTPUTS] != list(names):
        stop(
            f"{file} was made for the labels {content[OUTPUTS]}, not {list(names)}: run 'nnunet_labelset extend' again"
        )
    state = network.state_dict()
    rows = {key: value for key, value in content["network_weights"].items() if OUTPUT_LAYERS in key}
    if {key: value.shape for key, value in rows.items()} != {
        key: value.shape for key, value in state.items() if OUTPUT_LAYERS in key
    }:
        stop(f"{file}: its output layers do not fit this network: train with the plans that 'extend' wrote (-p)")
    network.load_state_dict({**state, **rows})
    return f"Output layers of {len(names)} labels restored from {file}"
