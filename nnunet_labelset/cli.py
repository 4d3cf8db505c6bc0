"""The command `nnunet_labelset <verb>`: one table of verbs, one place where user errors become one
line.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Sequence
from types import ModuleType

from nnunet_labelset import __version__
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet import names

# verb -> help. A verb is a module of `commands` with `configure(parser)` and `run(args)`; one is
# imported, the chosen.
VERBS = {
    "annotate": "declare what is annotated in an existing data set",
    "convert": "convert other sources into an nnU-Net data set with label-sets",
    "merge": "merge nnU-Net data sets into one label space",
    "verify": "check a data set against its declaration",
    "explain": "show what each value may stand for in a case, and which labels are annotated",
    "coverage": "count the cases that annotate each label",
    "splits": f"write {names.SPLITS}, stratified by protocol",
    "audit": "list labels that were probably forgotten or drawn incorrectly",
    "complete": "write a new data set with gaps filled in where a model is certain",
    "train": f"run {names.TRAIN} with the trainers of this package",
    "predict": f"run {names.PREDICT} with the trainers of this package",
    "trainers": f"print the folder to put into {names.EXTERNAL_TRAINERS}, or list the trainers",
    "extend": "prepare a training in which a trained model learns more labels",
    "export": "zip a trained model so that stock nnU-Net predicts with it",
    "evaluate": "score predictions where the reference is annotated",
    "compare": "compare methods: tables and statistics",
    "report": "write one self-contained HTML report",
    "find_best_configuration": "choose the best configuration by label-set-aware Dice",
    "experiment": "write a whole study as a Snakemake workflow",
    "demo": "end-to-end demo on synthetic volumes",
}


def module_of(verb: str) -> ModuleType:
    return importlib.import_module(f"nnunet_labelset.commands.{verb}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="nnunet_labelset", description=sys.modules["nnunet_labelset"].__doc__
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", metavar="verb", required=True)
    for verb, purpose in VERBS.items():
        description = f"{purpose[0].upper()}{purpose[1:]}."
        subparser = verbs.add_parser(verb, help=purpose, description=description)
        if verb in arguments[:1]:
            module_of(verb).configure(subparser)
    args = parser.parse_args(arguments)
    args.typed = shlex.join(["nnunet_labelset", *arguments])
    try:
        module_of(args.verb).run(args)
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
    try:
        # help starts nothing, and the import takes a third of its time
        if sys.argv[1:2] != ["--help"]:
            from nnunet_labelset.io.parallel import exit_when_terminated

            exit_when_terminated()
        sys.exit(main())
    except KeyboardInterrupt:  # while modules are imported
        sys.exit(130)


if __name__ == "__main__":  # python -m nnunet_labelset.cli
    entry()
