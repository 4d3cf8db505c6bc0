"""`nnunet_labelset complete`: a new data set in which a model has filled in what it is sure of."""

from __future__ import annotations

import argparse

from nnunet_labelset.commands.options import add_model, add_processes
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.dataset_conversion.complete import completed_splits, write_completed
from nnunet_labelset.dataset_conversion.target import dataset_folder
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.nnunet.folders import find_dataset, nnunet_folder
from nnunet_labelset.nnunet.models import find_model, read_splits
from nnunet_labelset.nnunet.names import DATASET, PLANS, PREPROCESSED, RAW, SPLITS
from nnunet_labelset.nnunet.raw import read_dataset
from nnunet_labelset.nnunet.recommendation import next_commands_with_plans

EPILOG = """Train every fold of the model with --npz before. Completed cases are copies for training; validation keeps
the cases as people annotated them, in the same folds. A second round takes a model trained on the new data set."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("-d", required=True, metavar="ID_OR_NAME", help="data set that the model was trained on")
    add_model(parser)
    parser.add_argument("-o", required=True, type=int, metavar="ID", help="id of the new data set")
    parser.add_argument("-n", required=True, metavar="NAME", help="name of the completed data set")
    parser.add_argument(
        "--threshold", type=float, default=0.9, help="share of the probability of the label-set (default: %(default)s)"
    )
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    if not 0.5 <= args.threshold <= 1:
        raise LabelSetError(f"Expected --threshold to be between 0.5 and 1, but got {args.threshold}")
    source = find_dataset(args.d)
    _, contract = read_dataset(source)
    if contract.regions is not None:
        raise LabelSetError(f"{source.name} has regions: its models tell how likely a region is, not a single leaf")
    target = dataset_folder(nnunet_folder(RAW), args.o, args.n)
    preprocessed = nnunet_folder(PREPROCESSED) / target.name
    model = find_model(source.resolve().name, args.tr, args.p, args.c)
    splits = read_splits(source.resolve().name)
    notes = write_completed(source, target, model, splits, args.threshold, args.np)
    written = read_json(target / DATASET)
    write_json(preprocessed / SPLITS, completed_splits(splits, written))
    # the same plans: what differs is the annotation, and plans of one's own need no planner
    write_json(preprocessed / f"{args.p}.json", {**read_json(model / PLANS), "dataset_name": target.name})
    write_json(preprocessed / DATASET, written)
    print("\n".join(notes))
    number = len(originals(written))
    print(f"{number} completed case(s) beside the annotated ones in {target}; folds and plans in {preprocessed}")
    print("\n".join(["next:", *next_commands_with_plans(args.o, args.p, args.c, args.tr)]))
