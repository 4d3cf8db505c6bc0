"""`nnunet_labelset experiment`: a whole study as a Snakemake workflow."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nnunet_labelset.commands.options import add_model, add_processes
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER
from nnunet_labelset.nnunet.names import FINAL_CHECKPOINT
from nnunet_labelset.study.experiment import PAPER, Study, parse_folds
from nnunet_labelset.study.progress import print_progress
from nnunet_labelset.study.withhold import withhold


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-d", metavar="DATASET", help="data set: id, name or folder in nnUNet_raw")
    add(
        "-o",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="folder of the study: workflow, predictions, results",
    )
    add("--status", action="store_true", help="show the progress of the study in -o FOLDER")
    add_model(parser, several=True, trainer=None)
    add("-f", nargs="+", metavar="FOLD", help="folds: numbers, ranges (0-9) or all; default: 0-9")
    add(
        "--cv",
        type=int,
        metavar="K",
        help="cross-validation with K stratified folds: needs no test set and ends with "
        "find_best_configuration",
    )
    add("-num_gpus", type=int, default=1, help="GPUs of one training (nnU-Net's DDP); default: 1")
    add(
        "--gpus",
        default="",
        metavar="0,1",
        help="train on these GPUs in parallel, one network on each",
    )
    add("-device", choices=("cuda", "cpu", "mps"), default="cuda", help="default: cuda")
    add("-chk", default=FINAL_CHECKPOINT, help="checkpoint to predict with; default: %(default)s")
    add("-i", type=Path, metavar="FOLDER", help="test images; default: imagesTs of the data set")
    add(
        "-r",
        type=Path,
        metavar="FOLDER",
        help="references of the test images; default: labelsTs of the data set",
    )
    add("--cap", type=float, metavar="MM", help="cap of HD95 in evaluate (the paper: 57.6)")
    add(
        "--exclude",
        nargs="+",
        default=[],
        metavar="CASE",
        help="cases to leave out of training and validation",
    )
    add(
        "--complete",
        nargs="+",
        type=int,
        default=[],
        metavar="ID",
        help="with --cv: fill in what the networks are sure of ('nnunet_labelset complete') in a "
        "new data set with this id, train on it and compare; a second id adds a second round",
    )
    add(
        "--withhold",
        type=Path,
        metavar="FILE",
        help="simulate partial annotation: first write a data set in which only the labels in this"
        " table are annotated (same table as annotate --annotated); needs --into",
    )
    add("--into", type=int, metavar="ID", help="id of the data set that --withhold writes")
    add_processes(parser)
    parser.epilog = (
        "Then: cd FOLDER; snakemake (add -n to see the plan, --executor slurm for a cluster). "
        "Needs: pip install 'nnunet_labelset[study]'."
    )


def run(args: argparse.Namespace) -> None:
    if args.status:
        print_progress(args.o)
        return
    for problem in _option_problems(args):
        raise LabelSetError(problem)
    study = _study(args)
    study.check()  # before a data set is written
    output = _with_withheld_labels(study, args).write()
    rounds = f", and again on {len(study.complete)} completed data set(s)" if study.complete else ""
    print(f"{study.num_networks} networks{rounds}")
    print(f"next: cd {shlex.quote(str(output))}; snakemake -n    # the plan; without -n: run it")


def _with_withheld_labels(study: Study, args: argparse.Namespace) -> Study:
    """Return the study on the data set that --withhold writes, if it is given."""
    if args.withhold is None:
        return study
    folder = withhold(args.d, args.withhold, args.into, args.np)
    print(f"wrote {folder.name}; nnunet_labelset coverage -d {args.into} shows its annotations")
    return replace(study, dataset=folder.name)


def _option_problems(args: argparse.Namespace) -> Iterator[str]:
    if args.d is None:
        yield "-d: name the data set of the study"
    if args.cv is not None and (args.f or args.i or args.r):
        yield "--cv validates on its own folds: leave -f, -i and -r out"
    if args.cv is not None and args.cv < 2:
        yield f"Expected --cv to be at least 2 folds, but got {args.cv}"
    if (args.withhold is None) != (args.into is None):
        yield "--withhold FILE and --into ID belong together: the table and the new id"
    if args.into in args.complete:
        yield f"--into and --complete need ids of their own, but both got {args.into}"
    yield from _id_problems("--into", [] if args.into is None else [args.into])
    yield from _id_problems("--complete", args.complete)


def _id_problems(option: str, numbers: Sequence[int]) -> Iterator[str]:
    for number in numbers:
        if not 0 < number < 1000:
            yield f"Expected {option} to be an id from 1 to 999, but got {number}"


def _study(args: argparse.Namespace) -> Study:
    cv_folds = [str(fold) for fold in range(args.cv or 0)]
    return Study(
        dataset=args.d,
        output=args.o,
        trainers=args.tr or ([DEFAULT_TRAINER] if args.cv else PAPER),
        folds=cv_folds or parse_folds(args.f or ["0-9"]),
        configurations=args.c,
        plans=args.p,
        num_gpus=args.num_gpus,
        gpus=[gpu.strip() for gpu in args.gpus.split(",")] if args.gpus else [],
        device=args.device,
        checkpoint=args.chk,
        images=args.i,
        references=args.r,
        cap=args.cap,
        excluded=args.exclude,
        cv=args.cv is not None,
        complete=args.complete,
        command=args.typed,
    )
