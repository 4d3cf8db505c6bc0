"""`nnunet_labelset extend`: a trained model learns more structures, or many models become one."""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.commands.options import add_processes
from nnunet_labelset.dataset_conversion.teach import (
    Destination,
    Source,
    teachers_of_models,
    write_taught,
)
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.extend import extend

EPILOG = """One model: its training continues with the labels that it knows and the new ones.
Several models, or --offline: every model predicts the images, which need no annotation, and the
predictions become the annotation of a new data set; train any network on it."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "-m",
        required=True,
        action="append",
        metavar="MODEL",
        help="folder TRAINER__PLANS__CONFIGURATION, or its zip; repeatable: several models become "
        "one",
    )
    parser.add_argument(
        "-d", required=True, metavar="ID", help="data set with the old and the new labels"
    )
    parser.add_argument("-f", metavar="FOLD", help="fold of the models (default: all of them)")
    parser.add_argument(
        "-p",
        metavar="PLANS",
        help="one model: name of its plans in the data set (default: OLDPLANS_of_OLDDATASET)",
    )
    parser.add_argument(
        "--offline",
        action="store_true",
        help="with one model, too: predict before the training, so that its plans and spacing do "
        "not matter",
    )
    parser.add_argument(
        "--new-id", type=int, metavar="ID", help="several models, --offline: id of the new data set"
    )
    parser.add_argument(
        "-n", metavar="NAME", help="several models, --offline: name of the new data set"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="load a checkpoint that contains code; only if you trust its author",
    )
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    models = [Path(model) for model in args.m]
    if len(models) == 1 and not args.offline:
        if args.new_id is not None or args.n:
            raise LabelSetError("--new-id and -n belong to several models or --offline")
        extend(models[0], args.d, args.p, args.f, args.trust)
        return
    if args.new_id is None or not args.n or args.p:
        raise LabelSetError(
            "several models and --offline write a new data set: give --new-id and -n, and no -p"
        )
    teach(args, models)


def teach(args: argparse.Namespace, models: list[Path]) -> None:
    source = Source.read(args.d)
    destination = Destination.choose(args.new_id, args.n)
    notes = write_taught(
        source,
        destination,
        lambda: teachers_of_models(source, models, args.f, destination.work, args.trust),
        args.np,
    )
    print("\n".join(notes))
