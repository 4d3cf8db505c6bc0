"""`nnunet_labelset compare`: result sets of the same cases side by side, as in the paper's Table 2,
with tests.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.commands.options import add_statistics, chosen_baseline
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.compare import comparison
from nnunet_labelset.evaluation.files import comparison_csv
from nnunet_labelset.evaluation.fresh import require_fresh
from nnunet_labelset.evaluation.metric import SHOWN
from nnunet_labelset.evaluation.results import load_results
from nnunet_labelset.evaluation.tables import latex_tables, markdown_tables
from nnunet_labelset.io.files import write_json, write_text
from nnunet_labelset.io.records import to_json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", nargs="+", metavar="[NAME=]PATH", help="what evaluate wrote, or its predictions"
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
    baseline = chosen_baseline(args, results)
    found = comparison(results, baseline, args.alpha, args.holm, args.metrics, sources)
    output = Path(args.o)
    cells, tests = comparison_csv(found)
    markdown = markdown_tables(found)
    write_text(output / "table.md", markdown)
    write_text(output / "table.tex", latex_tables(found))
    write_text(output / "table.csv", cells)
    write_text(output / "tests.csv", tests)
    write_json(output / "comparison.json", to_json(found))
    print(markdown)
    print(f"written to {output}")
