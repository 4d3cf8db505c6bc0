"""The output layers of a start file that `nnunet_labelset extend` wrote, put back into the network.

nnU-Net leaves them out when it loads `-pretrained_weights`, and does not tell its trainers which
file it loaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.checkpoint_file import TRUST_IT, read_checkpoint, trusted
from nnunet_labelset.nnunet.extend import NEW_OUTPUTS, OUTPUT_LAYERS, OUTPUTS
from nnunet_labelset.training.stopping import stop


def pretrained_file() -> str | None:
    """The file after `-pretrained_weights` on the command line, read as nnU-Net reads it."""
    parser = argparse.ArgumentParser(add_help=False)
    for option in ("-pretrained_weights", "-p"):  # a bare -p would be taken for an abbreviation
        parser.add_argument(option)
    return parser.parse_known_args(sys.argv[1:])[0].pretrained_weights


def plain_network(network: nn.Module) -> nn.Module:
    """Without the wrappers of DDP and torch.compile."""
    network = getattr(network, "module", network)
    return getattr(network, "_orig_mod", network)


def read_start(file: str, network: nn.Module, names: Sequence[str]) -> dict[str, Any] | None:
    """The content of a start file, which must fit; None for any other file: nnU-Net starts the
    outputs anew then.
    """
    if not Path(file).is_file():
        stop(f"-pretrained_weights {file}: no such file")
    try:  # before nnU-Net loads the file, with whatever code is in it
        content = read_checkpoint(Path(file), trusted(), mmap=True, how_to_trust=TRUST_IT)
    except LabelSetError as error:
        stop(f"-pretrained_weights {error}")
    if OUTPUTS not in content:
        return None
    if content[OUTPUTS] != list(names):
        stop(
            f"{file} was made for the labels {content[OUTPUTS]}, not {list(names)}: run 'nnunet_labelset extend' again"
        )
    weights = content["network_weights"]
    for key, here in network.state_dict().items():
        if key not in weights or weights[key].shape != here.shape:
            there = tuple(weights[key].shape) if key in weights else "none"
            stop(
                f"{file} is of another network ({key}: {there}, here {tuple(here.shape)}): train with the plans and "
                "the configuration that 'extend' printed (-p)"
            )
    return content


def restore_outputs(network: nn.Module, file: str, names: Sequence[str]) -> list[str] | None:
    """Copy the output layers if the file carries their names; returns which of them the old model
    did not know.
    """
    content = read_start(file, network, names)
    if content is None:
        return None
    weights, state = content["network_weights"], network.state_dict()
    network.load_state_dict(
        {key: weights[key] if OUTPUT_LAYERS in key else here for key, here in state.items()}
    )
    return list(content.get(NEW_OUTPUTS, []))
