"""Options that several verbs share, so that they read and mean the same everywhere."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.parallel import default_processes
from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER
from nnunet_labelset.nnunet.names import DEFAULT_CONFIGURATION, DEFAULT_PLANS

if TYPE_CHECKING:  # what only a few verbs need takes time to import
    from nnunet_labelset.evaluation.compare import ComparisonOptions


class OldSpelling(argparse.Action):
    """A flag under its old name, which works for this version and says what to type instead."""

    def __init__(self, option_strings: list[str], dest: str, new: str) -> None:
        self.new = new
        super().__init__(option_strings, dest, nargs=0, default=False, help=argparse.SUPPRESS)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(f"note: {option_string} is now called {self.new}", file=sys.stderr)
        setattr(namespace, self.dest, True)


def add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-d", required=True, metavar="ID_OR_FOLDER", help="data set: id, name or folder"
    )


def add_processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-np", type=int, default=default_processes(), help="processes (default: %(default)s)"
    )


def add_names(
    parser: argparse.ArgumentParser, option: str, metavar: str, text: str, *default: str
) -> None:
    """An option that takes one or several words."""
    parser.add_argument(option, nargs="+", default=list(default), metavar=metavar, help=text)


def add_repeatable(parser: argparse.ArgumentParser, option: str, metavar: str, text: str) -> None:
    """An option that may be given several times."""
    parser.add_argument(option, action="append", default=[], metavar=metavar, help=text)


def add_model(
    parser: argparse.ArgumentParser, several: bool = False, trainer: str | None = DEFAULT_TRAINER
) -> None:
    """nnU-Net's `-tr`, `-c` and `-p`: one model, or `several` (lists of trainers and
    configurations).
    """
    number: dict[str, Any] = {"nargs": "+"} if several else {}
    default = [trainer] if several and trainer else trainer
    said = "%(default)s" if trainer else f"the four of the paper; with --cv {DEFAULT_TRAINER}"
    many = "s to compare, the baseline first" if several else ""
    add = parser.add_argument
    add(
        "-tr", default=default, metavar="TRAINER", help=f"trainer{many} (default: {said})", **number
    )
    configurations = [DEFAULT_CONFIGURATION] if several else DEFAULT_CONFIGURATION
    add(
        "-c",
        default=configurations,
        metavar="CONFIGURATION",
        help=f"default: {DEFAULT_CONFIGURATION}",
        **number,
    )
    add("-p", default=DEFAULT_PLANS, metavar="PLANS", help="plans (default: %(default)s)")


def add_table(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """A table of the cases and columns of it that make groups; the two belong together
    (`check_table`).
    """
    parser.add_argument(
        "--table",
        metavar="FILE",
        help="table of the cases (.tsv or .csv), such as participants.tsv",
    )
    number: dict[str, Any] = {"nargs": "+", "default": []} if several else {}
    parser.add_argument(
        "--group-by", metavar="COLUMN", help="group by this column of --table", **number
    )


def check_table(args: argparse.Namespace) -> None:
    """`--table` needs an option that names a column of it, and the other way round."""
    columns = bool(args.group_by or getattr(args, "subject", None))
    if bool(args.table) != columns:
        raise LabelSetError(
            "--table and --group-by (or --subject) belong together: a table of the cases, and "
            "columns of it"
        )


def add_statistics(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how result sets are compared."""
    parser.add_argument(
        "--baseline", metavar="NAME", help="compare against this method (default: the first)"
    )
    parser.add_argument(
        "--alpha", type=float, default=0.01, help="significance level (default: %(default)s)"
    )
    parser.add_argument(
        "--holm", action="store_true", help="correct p-values for the number of tests of a metric"
    )
    parser.add_argument(
        "--margin",
        nargs="+",
        default=[],
        metavar="METRIC=NUMBER",
        help="test non-inferiority: at most this much worse (dice=2 means 2 percentage points)",
    )


def comparison_options(args: argparse.Namespace, methods: Collection[str]) -> ComparisonOptions:
    """Return how result sets are compared, from the options of `add_statistics`."""
    from nnunet_labelset.evaluation.compare import ComparisonOptions

    if not 0 < args.alpha < 1:
        raise LabelSetError(f"Expected --alpha to be between 0 and 1, but got {args.alpha}")
    baseline = args.baseline or next(iter(methods))
    if baseline not in methods:
        raise LabelSetError(
            f"--baseline: no result set '{baseline}'{did_you_mean(baseline, methods)}"
        )
    return ComparisonOptions(
        baseline=baseline,
        alpha=args.alpha,
        correct=args.holm,
        metrics=getattr(args, "metrics", None),
        margins=dict(map(_margin, args.margin)),
    )


def _margin(text: str) -> tuple[str, float]:
    """Return the metric and the margin of `dice=2`, which is in the unit that tables show."""
    from nnunet_labelset.evaluation.metric import METRICS

    name, _, number = text.partition("=")
    if name not in METRICS or not METRICS[name].better:
        raise LabelSetError(f"--margin '{text}': no metric '{name}'{did_you_mean(name, METRICS)}")
    try:
        margin = float(number)
    except ValueError:
        margin = math.nan
    if not 0 < margin < math.inf:
        raise LabelSetError(f"--margin '{text}': expected METRIC=NUMBER, such as dice=2")
    return name, margin / METRICS[name].scale


def add_forwarded(parser: argparse.ArgumentParser, command: str) -> None:
    """Every word after the verb goes to a command of nnU-Net as it is, options and `--help` too."""
    parser.usage = f"nnunet_labelset {parser.prog.split()[-1]} ARGUMENTS OF {command} ..."
    parser.prefix_chars = "\0"  # so that no word looks like an option of ours
    parser.add_argument("arguments", nargs="*", help=f"as {command} takes them")


def add_target(parser: argparse.ArgumentParser) -> None:
    """The data set that `convert` or `merge` writes."""
    parser.add_argument("-d", type=int, required=True, metavar="ID", help="id of the new data set")
    parser.add_argument("-n", required=True, metavar="NAME", help="name of the new data set")
    parser.add_argument(
        "-o", type=Path, metavar="FOLDER", help="where to write it (default: $nnUNet_raw)"
    )
    add_processes(parser)
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the data set if it exists"
    )
    parser.add_argument(
        "--skip-bad-cases",
        action="store_true",
        help="leave out cases with problems instead of stopping",
    )
