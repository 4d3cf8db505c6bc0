"""`nnunet_labelset compare`: result sets of the same cases side by side, as in the paper's Table 2, with tests."""

from __future__ import annotations

import argparse
from pathlib import Path

from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.evaluation.compare import CELL_COLUMNS, TEST_COLUMNS, comparison, load_results
from nnunet_labelset.evaluation.evaluate import csv_text
from nnunet_labelset.evaluation.tables import latex_tables, markdown_tables
from nnunet_labelset.io.files import write_json, write_text


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", nargs="+", metavar="[NAME=]PATH", help="what evaluate wrote, or its predictions")
    parser.add_argument("-o", required=True, metavar="FOLDER", help="output")
    parser.add_argument("--baseline", metavar="NAME", help="compare against this method (default: the first)")
    parser.add_argument("--alpha", type=float, default=0.01, help="level of significance (default: %(default)s)")
    parser.add_argument("--holm", action="store_true", help="correct p-values for the number of tests of a metric")


def run(args: argparse.Namespace) -> None:
    if not 0 < args.alpha < 1:
        raise LabelSetError(f"Expected --alpha to be between 0 and 1, but got {args.alpha}")
    results, sources = load_results(args.results)
    if len(results) < 2:
        raise LabelSetError("a comparison needs two or more result sets")
    baseline = args.baseline or next(iter(results))
    if baseline not in results:
        raise LabelSetError(f"--baseline: no result set '{baseline}'{did_you_mean(baseline, results)}")
    content = comparison(results, baseline, args.alpha, args.holm)
    content["sources"] = sources
    output = Path(args.o)
    markdown = markdown_tables(content)
    write_text(output / "table.md", markdown)
    write_text(output / "table.tex", latex_tables(content))
    write_text(
        output / "table.csv", csv_text(CELL_COLUMNS, ([c[name] for name in CELL_COLUMNS] for c in content["cells"]))
    )
    write_text(
        output / "tests.csv", csv_text(TEST_COLUMNS, ([t[name] for name in TEST_COLUMNS] for t in content["tests"]))
    )
    write_json(output / "comparison.json", content)
    print(markdown)
    print(f"written to {output}")
