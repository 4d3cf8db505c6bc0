"""`nnunet_labelset compare`: result sets of the same cases side by side, as in the paper's Table 2,
with tests.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from nnunet_labelset.commands.options import add_statistics, comparison_options
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.compare import comparison
from nnunet_labelset.evaluation.comparison_tables import (
    comparison_csv,
    latex_tables,
    markdown_tables,
    screen_tables,
)
from nnunet_labelset.evaluation.metric import SHOWN
from nnunet_labelset.evaluation.read_results import load_results, require_fresh
from nnunet_labelset.io.files import write_json, write_text
from nnunet_labelset.io.records import to_json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="+",
        metavar="[NAME=]PATH",
        help="an evaluation, or the folder of its predictions",
    )
    parser.add_argument("-o", required=True, metavar="FOLDER", help="output")
    add_statistics(parser)
    default = " ".join(SHOWN)
    parser.add_argument(
        "--metrics", nargs="+", metavar="NAME", help=f"columns of per_case.csv (default: {default})"
    )


def run(args: argparse.Namespace) -> None:
    results, sources = load_results(args.results)
    if len(results) < 2:
        raise LabelSetError("a comparison needs two or more result sets")
    require_fresh(results)
    compared = comparison(results, comparison_options(args, results), sources)
    output = Path(args.o)
    cells, tests = comparison_csv(compared)
    write_text(output / "table.md", markdown_tables(compared))
    write_text(output / "table.tex", latex_tables(compared))
    write_text(output / "table.csv", cells)
    write_text(output / "tests.csv", tests)
    write_json(output / "comparison.json", to_json(compared))
    print(screen_tables(compared, shutil.get_terminal_size().columns))
    print(f"written to {output}")
