"""`nnunet_labelset export`: a trained model as a zip that stock nnU-Net installs and predicts with, without us."""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.nnunet.export import export
from nnunet_labelset.nnunet.folders import find_dataset


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-d", required=True, metavar="ID", help="data set id or name")
    parser.add_argument("-c", default="3d_fullres", metavar="CONFIGURATION", help="default: %(default)s")
    parser.add_argument("-tr", default="nnUNetTrainerLeafDice", metavar="TRAINER", help="default: %(default)s")
    parser.add_argument("-p", default="nnUNetPlans", metavar="PLANS", help="default: %(default)s")
    parser.add_argument("-f", nargs="+", metavar="FOLD", help="folds to export; default: all that are trained")
    parser.add_argument("-o", required=True, metavar="ZIP", help="the zip file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing zip file")


def run(args: argparse.Namespace) -> None:
    dataset = find_dataset(args.d, "nnUNet_results")
    export(dataset / f"{args.tr}__{args.p}__{args.c}", Path(args.o), args.f, args.overwrite)
