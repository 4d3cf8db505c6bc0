"""The start file that `nnunet_labelset extend` wrote: its output layers go back into the network.

nnU-Net leaves them out when it loads `-pretrained_weights`, and does not tell its trainers which
file it loaded. We know the file from the command line or, in a Python script, as the start file of
these plans whose weights the network has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.checkpoint_file import TRUST_IT, read_checkpoint, trusted
from nnunet_labelset.nnunet.extend import NEW_OUTPUTS, OUTPUT_LAYERS, OUTPUTS


def pretrained_file() -> str | None:
    """Return the file after `-pretrained_weights` on the command line, read as nnU-Net reads it."""
    parser = argparse.ArgumentParser(add_help=False)
    for option in ("-pretrained_weights", "-p"):  # a bare -p would be taken for an abbreviation
        parser.add_argument(option)
    return parser.parse_known_args(sys.argv[1:])[0].pretrained_weights


def plain_network(network: nn.Module) -> nn.Module:
    """Return the network without the wrappers of DDP and torch.compile."""
    network = getattr(network, "module", network)
    return getattr(network, "_orig_mod", network)


@dataclass(frozen=True)
class Start:
    """The content of a start file."""

    file: str
    weights: dict[str, Tensor]
    new_labels: list[str]  # labels that the old model did not know

    def is_loaded(self, network: nn.Module) -> bool:
        """Tell whether the network has these weights, except for its output layers."""
        state = network.state_dict()
        inner = [key for key in state if OUTPUT_LAYERS not in key]
        return all(torch.equal(self.weights[key], state[key].cpu()) for key in inner)

    def restore_outputs(self, network: nn.Module) -> None:
        """Copy the output layers into the network."""
        outputs = {key: value for key, value in self.weights.items() if OUTPUT_LAYERS in key}
        network.load_state_dict({**network.state_dict(), **outputs})


class StartFile:
    """Finds the start file of a new training."""

    def __init__(self, default: Path, names: Sequence[str]) -> None:
        """
        default: where `extend` writes the start file for the plans and the configuration.
        names: the labels of the network's outputs.
        """
        self.default = default
        self.names = list(names)

    def check(self, network: nn.Module) -> None:
        """Raise if the file on the command line does not fit, before nnU-Net fails to load it."""
        file = pretrained_file()
        if file is not None:
            self._read(Path(file), network)

    def restore(self, network: nn.Module, log: Callable[[str], None]) -> list[str] | None:
        """Restore the output layers if the training extends a model; return its new labels, or
        None.
        """
        start = self._find(network)
        if start is None:
            return None
        start.restore_outputs(network)
        log(f"Output layers of {len(self.names)} labels restored from {start.file}")
        return start.new_labels

    def _find(self, network: nn.Module) -> Start | None:
        """Return the start file that nnU-Net has loaded into the network; None if it has not."""
        file = pretrained_file()
        if file is not None:
            return self._read(Path(file), network)
        if not self.default.is_file():
            return None
        try:
            start = self._read(self.default, network)
        except LabelSetError:  # it does not fit, so nnU-Net cannot have loaded it
            return None
        return start if start and start.is_loaded(network) else None

    def _read(self, file: Path, network: nn.Module) -> Start | None:
        """Return the content of a start file, which must fit the network; None for any other
        checkpoint: nnU-Net then initialises the output layers.
        """
        if not file.is_file():
            raise LabelSetError(f"-pretrained_weights {file}: no such file")
        try:  # before nnU-Net loads the file, with whatever code is in it
            content = read_checkpoint(file, trusted(), mmap=True, how_to_trust=TRUST_IT)
        except LabelSetError as error:
            raise LabelSetError(f"-pretrained_weights {error}") from None
        if OUTPUTS not in content:
            return None
        if content[OUTPUTS] != self.names:
            raise LabelSetError(
                f"{file} was made for the labels {content[OUTPUTS]}, not {self.names}: "
                "run 'nnunet_labelset extend' again"
            )
        weights = content["network_weights"]
        for key, value in network.state_dict().items():
            if key not in weights or weights[key].shape != value.shape:
                expected = tuple(weights[key].shape) if key in weights else "none"
                raise LabelSetError(
                    f"{file} belongs to another network ({key}: {expected}, here "
                    f"{tuple(value.shape)}): train with the plans and the configuration that "
                    "'extend' printed (-p)"
                )
        return Start(str(file), weights, list(content.get(NEW_OUTPUTS, [])))
