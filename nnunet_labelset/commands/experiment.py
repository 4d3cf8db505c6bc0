"""`nnunet_labelset experiment`: the runnable scripts of a whole study, for one machine and for a
SLURM cluster.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

from nnunet_labelset.commands.options import add_model, add_processes
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER
from nnunet_labelset.nnunet.names import FINAL_CHECKPOINT
from nnunet_labelset.study.experiment import PAPER, Study, parse_folds
from nnunet_labelset.study.withhold import withhold


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-d", required=True, metavar="DATASET", help="data set: id, name or folder in nnUNet_raw")
    add(
        "-o",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="folder of the study: scripts, predictions, results",
    )
    add_model(parser, several=True, trainer=None)
    add("-f", nargs="+", metavar="FOLD", help="folds: numbers, ranges (0-9) or all; default: 0-9")
    add("--cv", type=int, metavar="K", help="cross-validation with K stratified folds: no test set is needed, and it "
        "ends with find_best_configuration")  # fmt: skip
    add("-num_gpus", type=int, default=1, help="GPUs of one training (nnU-Net's DDP); default: 1")
    add(
        "--gpus",
        default="",
        metavar="0,1",
        help="train on these GPUs side by side, one network on each",
    )
    add("-device", choices=("cuda", "cpu", "mps"), default="cuda", help="default: cuda")
    add("-chk", default=FINAL_CHECKPOINT, help="checkpoint that predicts; default: %(default)s")
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
        help="training cases that no network sees",
    )
    add("--complete", nargs="+", type=int, default=[], metavar="ID", help="with --cv: afterwards fill in what the "
        "networks are sure of ('nnunet_labelset complete') in a data set of this id, train on it and compare; a second "
        "id is a second round")  # fmt: skip
    add("--withhold", type=Path, metavar="FILE", help="simulate partial annotation: first write a data set in which "
        "only what this table lists is annotated (a table as annotate --annotated reads it); needs --into")  # fmt: skip
    add("--into", type=int, metavar="ID", help="id of the data set that --withhold writes")
    add_processes(parser)
    parser.epilog = (
        "Then: bash FOLDER/run.sh on one machine, or bash FOLDER/submit_slurm.sh [sbatch options]."
    )


def run(args: argparse.Namespace) -> None:
    if args.cv is not None and (args.f or args.i or args.r):
        raise LabelSetError("--cv validates on its own folds: leave -f, -i and -r out")
    if args.cv is not None and args.cv < 2:
        raise LabelSetError(f"Expected --cv to be at least 2 folds, but got {args.cv}")
    if (args.withhold is None) != (args.into is None):
        raise LabelSetError(
            "--withhold FILE and --into ID belong together: the table, and the id of the new data set"
        )
    if bad := [number for number in args.complete if not 0 < number < 1000 or number == args.into]:
        raise LabelSetError(
            f"Expected --complete to be an id from 1 to 999 of its own, but got {bad[0]}"
        )
    if args.into is not None and not 0 < args.into < 1000:
        raise LabelSetError(f"Expected --into to be an id from 1 to 999, but got {args.into}")
    study = Study(
        dataset=args.d,
        output=args.o,
        trainers=args.tr or ([DEFAULT_TRAINER] if args.cv else PAPER),
        folds=[str(fold) for fold in range(args.cv)] if args.cv else parse_folds(args.f or ["0-9"]),
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
    study.check()  # before a data set is written
    if args.withhold is not None:
        folder = withhold(args.d, args.withhold, args.into, args.np)
        print(f"{folder.name}: written; look at it with: nnunet_labelset coverage -d {args.into}")
        study = replace(study, dataset=folder.name)
    run_script, slurm_script = study.write()
    print(
        f"{len(study.models)} models x {len(study.folds)} folds = {len(study.models) * len(study.folds)} networks"
    )
    if study.complete:
        print(f"then {len(study.complete)} more round(s) on what they complete")
    print(f"on one machine:  bash {shlex.quote(str(run_script))}")
    print(f"on a cluster:    bash {shlex.quote(str(slurm_script))} --partition=... --time=...")
