"""`nnunet_labelset predict`: nnU-Net's `nnUNetv2_predict`, with our trainers on its path."""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.commands.options import add_forwarded
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet.default_trainer import parse_prediction, prediction_arguments
from nnunet_labelset.nnunet.forward import check_device, forward
from nnunet_labelset.nnunet.label_colours import write_label_colours
from nnunet_labelset.nnunet.names import DATASET, PREDICT
from nnunet_labelset.nnunet.swapped_prediction import swapped_mirroring


def configure(parser: argparse.ArgumentParser) -> None:
    add_forwarded(parser, PREDICT)


def run(args: argparse.Namespace) -> None:
    arguments = prediction_arguments(args.arguments)
    if parse_prediction(arguments) is not None:  # otherwise nnU-Net explains its arguments
        check_device(arguments)
    with swapped_mirroring(arguments):
        forward(PREDICT, "nnunet_labelset predict", arguments)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-o", dest="output", type=Path)
    output = parser.parse_known_args(args.arguments)[0].output
    if output is not None and (output / DATASET).is_file():  # nnU-Net copies it there
        write_label_colours(output, read_json(output / DATASET))
