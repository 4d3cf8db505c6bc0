"""`nnunet_labelset find_best_configuration`: nnU-Net's command of this name, decided by
label-set-aware Dice.
"""

from __future__ import annotations

import argparse
from itertools import combinations

from nnunet_labelset.commands.options import add_processes
from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER
from nnunet_labelset.nnunet.names import CONFIGURATIONS, DEFAULT_PLANS
from nnunet_labelset.nnunet.selection import Selection, check_same_cases, choose, write_choice

FOLDS = [0, 1, 2, 3, 4]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset_name_or_id", help="data set: id or name")
    parser.add_argument(
        "-tr", nargs="+", default=[DEFAULT_TRAINER], help=f"trainers (default: {DEFAULT_TRAINER})"
    )
    parser.add_argument(
        "-c", nargs="+", default=list(CONFIGURATIONS), help=f"default: {' '.join(CONFIGURATIONS)}"
    )
    parser.add_argument(
        "-p",
        nargs="+",
        default=[DEFAULT_PLANS],
        help=f"plans (default: {DEFAULT_PLANS})",
    )
    parser.add_argument(
        "-f",
        nargs="+",
        type=int,
        default=FOLDS,
        help=f"folds (default: {' '.join(map(str, FOLDS))})",
    )
    add_processes(parser)
    parser.add_argument(
        "--disable_ensembling", action="store_true", help="compare single models only"
    )
    parser.add_argument(
        "--no_overwrite",
        action="store_true",
        help="reuse what an earlier run collected and ensembled",
    )


def run(args: argparse.Namespace) -> None:
    selection = Selection(args.dataset_name_or_id, args.f, args.np, not args.no_overwrite)
    models = selection.available(args.tr, args.c, args.p)
    ensembling = len(models) > 1 and not args.disable_ensembling
    if ensembling:
        selection.require_probabilities(models)
    candidates = [selection.model(model) for model in models]
    check_same_cases(candidates, selection.file_ending)
    if ensembling:
        candidates += [
            selection.ensemble(first, second) for first, second in combinations(models, 2)
        ]
    best = choose(candidates)
    write_choice(selection, candidates, best, models, ensembling=not args.disable_ensembling)
