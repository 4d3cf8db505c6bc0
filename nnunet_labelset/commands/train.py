"""`nnunet_labelset train`: nnU-Net's `nnUNetv2_train`, with our trainers on its path."""

from __future__ import annotations

import argparse

from nnunet_labelset.commands.options import add_forwarded
from nnunet_labelset.nnunet.default_trainer import training_arguments
from nnunet_labelset.nnunet.forward import check_device, forward
from nnunet_labelset.nnunet.names import TRAIN, TRAIN_PRETRAINED
from nnunet_labelset.nnunet.pretraining import OPTION, train_pretrained


def configure(parser: argparse.ArgumentParser) -> None:
    add_forwarded(parser, TRAIN)
    parser.epilog = (
        f"With {OPTION}: run {TRAIN_PRETRAINED}, which fine-tunes a checkpoint of nnssl.\n"
        "No nnU-Net up to 2.8.1 has that command."
    )


def run(args: argparse.Namespace) -> None:
    if OPTION in args.arguments:
        train_pretrained([word for word in args.arguments if word != OPTION])
        return
    arguments = training_arguments(args.arguments)
    check_device(arguments)
    forward(TRAIN, "nnunet_labelset train", arguments)
