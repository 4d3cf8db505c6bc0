"""The command `nnunet_labelset <verb>`: one table of verbs, one place where user errors become one line."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from nnunet_labelset import __version__
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.parallel import exit_when_terminated

# verb -> (module with `configure(parser)` and `run(args)`, help). Only the module of the chosen verb is imported.
VERBS = {
    "convert": ("nnunet_labelset.dataset_conversion.convert", "turn sources into an nnU-Net data set with label-sets"),
    "merge": ("nnunet_labelset.dataset_conversion.merge", "merge nnU-Net data sets into one label space"),
    "verify": ("nnunet_labelset.datasets.verify.check", "check a data set against its contract"),
    "coverage": ("nnunet_labelset.datasets.coverage", "show which leaves are annotated in how many cases"),
    "splits": ("nnunet_labelset.datasets.splits", "write splits_final.json, stratified by protocol"),
    "trainers": ("nnunet_labelset.nnunet.discovery", "print the folder to put into nnUNet_extTrainer"),
    "export": ("nnunet_labelset.nnunet.export", "zip a trained model so that stock nnU-Net predicts with it"),
    "evaluate": ("nnunet_labelset.evaluation.evaluate", "score predictions where the reference is annotated"),
    "compare": ("nnunet_labelset.evaluation.compare", "compare result sets: table, statistics"),
    "report": ("nnunet_labelset.report.build", "one self-contained HTML report"),
    "find_best_configuration": ("nnunet_labelset.nnunet.selection", "choose configurations by label-set-aware Dice"),
    "experiment": ("nnunet_labelset.study.experiment", "write the scripts of a whole study"),
    "demo": ("nnunet_labelset.study.demo", "the whole road on generated volumes"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="nnunet_labelset", description=sys.modules["nnunet_labelset"].__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", metavar="verb", required=True)
    for verb, (module, summary) in VERBS.items():
        subparser = verbs.add_parser(verb, help=summary, description=summary)
        if verb in arguments[:1]:
            importlib.import_module(module).configure(subparser)
    args = parser.parse_args(arguments)
    try:
        importlib.import_module(VERBS[args.verb][0]).run(args)
    except LabelSetError as error:
        print(f"nnunet_labelset {args.verb}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"nnunet_labelset {args.verb}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
    return 0


def entry() -> None:
    """Entry point of the installed command."""
    exit_when_terminated()
    sys.exit(main())
