"""`nnunet_labelset export`: a trained model as a zip that stock nnU-Net installs and predicts with,
without us.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.commands.options import add_model
from nnunet_labelset.nnunet.export import export
from nnunet_labelset.nnunet.models import find_model


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-d", required=True, metavar="ID", help="data set id or name")
    add_model(parser)
    parser.add_argument(
        "-f", nargs="+", metavar="FOLD", help="folds to export (default: all trained folds)"
    )
    parser.add_argument("-o", required=True, metavar="ZIP", help="the zip file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing zip file")
    parser.add_argument(
        "--model-card",
        action="store_true",
        help="also write a model card: labels, protocols, scores",
    )


def run(args: argparse.Namespace) -> None:
    export(
        find_model(args.d, args.tr, args.p, args.c),
        Path(args.o),
        args.f,
        args.overwrite,
        args.model_card,
    )
