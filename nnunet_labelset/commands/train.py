"""`nnunet_labelset train`: nnU-Net's `nnUNetv2_train`, with our trainers on its path."""

from __future__ import annotations

import argparse

from nnunet_labelset.commands.options import add_forwarded
from nnunet_labelset.nnunet.default_trainer import training_arguments
from nnunet_labelset.nnunet.forward import check_device, forward
from nnunet_labelset.nnunet.names import TRAIN


def configure(parser: argparse.ArgumentParser) -> None:
    add_forwarded(parser, TRAIN)


def run(args: argparse.Namespace) -> None:
    arguments = training_arguments(args.arguments)
    check_device(arguments)
    forward(TRAIN, "nnunet_labelset train", arguments)
