"""`nnunet_labelset predict`: nnU-Net's `nnUNetv2_predict`, with our trainers on its path."""

from __future__ import annotations

import argparse

from nnunet_labelset.commands.options import add_forwarded
from nnunet_labelset.nnunet.default_trainer import prediction_arguments
from nnunet_labelset.nnunet.forward import forward
from nnunet_labelset.nnunet.names import PREDICT


def configure(parser: argparse.ArgumentParser) -> None:
    add_forwarded(parser, PREDICT)


def run(args: argparse.Namespace) -> None:
    forward(PREDICT, "nnunet_labelset predict", prediction_arguments(args.arguments))
