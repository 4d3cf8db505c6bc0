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

EPILOG = """With one model, training continues with its labels and the new ones.
With several models, or with --offline, every model predicts the images, which need no annotation.
The predictions become the annotation of a new data set, on which you can train any network."""


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
        help="name for the model's plans in the data set, with one model (default: "
        "OLDPLANS_of_OLDDATASET)",
    )
    parser.add_argument(
        "--offline",
        action="store_true",
        help="also with one model: predict before training, so that the model's plans and spacing "
        "do not matter",
    )
    parser.add_argument(
        "--new-id",
        type=int,
        metavar="ID",
        help="id of the new data set (several models, or --offline)",
    )
    parser.add_argument(
        "-n", metavar="NAME", help="name of the new data set (several models, or --offline)"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="load a model whose checkpoint or plans would run code; only if you trust its author",
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
