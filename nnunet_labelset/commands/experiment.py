"""`nnunet_labelset experiment`: the runnable scripts of a whole study, for one machine and for a SLURM cluster."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from nnunet_labelset.study.experiment import PAPER, parse_folds, write_experiment


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-d", required=True, metavar="DATASET", help="data set: id, name or folder in nnUNet_raw")
    add("-o", required=True, type=Path, metavar="FOLDER", help="folder of the study: scripts, predictions, results")
    add("-c", default="3d_fullres", metavar="CONFIGURATION", help="default: 3d_fullres")
    add("-p", default="nnUNetPlans", metavar="PLANS", help="plans; default: nnUNetPlans")
    add(
        "-tr",
        nargs="+",
        default=[f"nnUNetTrainer{name}" for name in PAPER],
        metavar="TRAINER",
        help="trainers to compare, the baseline first; default: the four of the paper",
    )
    add(
        "-f",
        nargs="+",
        default=["0-9"],
        metavar="FOLD",
        help="folds: numbers, ranges (0-9) or all; default: 0-9",
    )
    add("-num_gpus", type=int, default=1, help="GPUs of one training (nnU-Net's DDP); default: 1")
    add("-device", choices=("cuda", "cpu", "mps"), default="cuda", help="default: cuda")
    add("-chk", default="checkpoint_final.pth", help="checkpoint that predicts; default: checkpoint_final.pth")
    add("-i", type=Path, metavar="FOLDER", help="test images; default: imagesTs of the data set")
    add("-r", type=Path, metavar="FOLDER", help="references of the test images; default: labelsTs of the data set")
    add("--cap", type=float, metavar="MM", help="cap of HD95 in evaluate (the paper: 57.6)")
    parser.epilog = "Then: bash FOLDER/run.sh on one machine, or bash FOLDER/submit_slurm.sh [sbatch options]."


def run(args: argparse.Namespace) -> None:
    folds = parse_folds(args.f)
    words = ["nnunet_labelset", "experiment", "-d", args.d, "-c", args.c, "-p", args.p, "-tr", *args.tr, "-f", *args.f]
    scripts = write_experiment(
        dataset=args.d,
        output=args.o,
        trainers=args.tr,
        folds=folds,
        configuration=args.c,
        plans=args.p,
        num_gpus=args.num_gpus,
        device=args.device,
        checkpoint=args.chk,
        images=args.i,
        references=args.r,
        cap=args.cap,
        command=" ".join(shlex.quote(str(word)) for word in words),
    )
    print(f"{len(args.tr)} trainers x {len(folds)} folds = {len(args.tr) * len(folds)} networks")
    print(f"on one machine:  bash {shlex.quote(str(scripts[0]))}")
    print(f"on a cluster:    bash {shlex.quote(str(scripts[1]))} --partition=... --time=...")
