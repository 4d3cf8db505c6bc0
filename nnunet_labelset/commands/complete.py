"""`nnunet_labelset complete`: a new data set in which a model has filled in what it is sure of."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nnunet_labelset.commands.options import add_model, add_processes
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.dataset_conversion.complete import write_completed
from nnunet_labelset.dataset_conversion.teach import (
    Destination,
    Source,
    teacher_of_folder,
    write_taught,
)
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet.folders import check_free, find_dataset, nnunet_folder
from nnunet_labelset.nnunet.models import find_model, read_splits
from nnunet_labelset.nnunet.names import DATASET, PREPROCESSED, RAW
from nnunet_labelset.nnunet.publish import dataset_folder
from nnunet_labelset.nnunet.raw import read_dataset
from nnunet_labelset.nnunet.recommendation import next_commands_with_plans

EPILOG = """\
Train every fold of the model with --npz first. Completed cases are copies for training only;
validation uses the original annotations, in the same folds. For a second round, train a model on
the new data set and run complete again.
"""
THRESHOLD = 0.9


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "-d",
        required=True,
        metavar="ID_OR_NAME",
        help="data set to complete, on which the model was trained",
    )
    add_model(parser)
    parser.add_argument("--new-id", type=int, metavar="ID", help="id of the new data set")
    parser.add_argument("-o", dest="old_id", type=int, help=argparse.SUPPRESS)  # until 0.4
    parser.add_argument("-n", required=True, metavar="NAME", help="name of the completed data set")
    parser.add_argument(
        "--threshold",
        type=float,
        help="fill in a voxel if one label holds at least this share of the probability of its "
        f"label-set (default: {THRESHOLD})",
    )
    parser.add_argument(
        "--from",
        dest="predictions",
        type=Path,
        metavar="FOLDER",
        help="take the predictions from this folder (CASE.nii.gz, or CASE/LABEL.nii.gz)",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="TABLE",
        help="table that names the label of each prediction of --from: columns 'prediction' (a "
        "value, or the name of a mask) and 'label'",
    )
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    if bool(args.predictions) != bool(args.labels):
        raise LabelSetError("--from and --labels belong together: a folder and a table for it")
    if args.predictions and args.threshold is not None:
        raise LabelSetError("--threshold belongs to models: predictions of --from count as certain")
    if args.predictions:
        complete_from_folder(args)
    else:
        complete_by_model(args)


def complete_from_folder(args: argparse.Namespace) -> None:
    """Fill in what a folder of predictions says."""
    source = Source.read(args.d)
    destination = Destination.choose(new_dataset_id(args), args.n)
    teacher = teacher_of_folder(source, args.predictions, args.labels)
    print("\n".join(write_taught(source, destination, lambda: [teacher], args.np)))


def complete_by_model(args: argparse.Namespace) -> None:
    """Fill in what the folds of a model are sure of."""
    new_id = new_dataset_id(args)
    threshold = THRESHOLD if args.threshold is None else args.threshold
    if not 0.5 <= threshold <= 1:
        raise LabelSetError(f"Expected --threshold to be between 0.5 and 1, but got {threshold}")
    source = find_dataset(args.d)
    _, contract = read_dataset(source)
    if contract.regions is not None:
        raise LabelSetError(
            f"{source.name} has regions: its models tell how likely a region is, not a single label"
        )
    target = dataset_folder(nnunet_folder(RAW), new_id, args.n)
    check_free(new_id, target.name)
    preprocessed = nnunet_folder(PREPROCESSED) / target.name
    model = find_model(source.resolve().name, args.tr, args.p, args.c)
    splits = read_splits(source.resolve().name)
    notes = write_completed(source, target, preprocessed, model, splits, threshold, args.np)
    print("\n".join(notes))
    number = len(originals(read_json(target / DATASET)))
    print(
        f"{number} completed case(s) beside the annotated ones in {target}; folds and plans in "
        f"{preprocessed}"
    )
    print("\n".join(["next:", *next_commands_with_plans(new_id, args.p, args.c, args.tr)]))


def new_dataset_id(args: argparse.Namespace) -> int:
    """Return the id of `--new-id`, or of its old spelling `-o`."""
    if args.old_id is not None:
        print("note: -o is now called --new-id", file=sys.stderr)
    new_id = args.new_id if args.new_id is not None else args.old_id
    if new_id is None:
        raise LabelSetError("--new-id is missing: give the id of the new data set")
    return new_id
