"""`nnunet_labelset report`: one self-contained HTML file about one evaluation or several."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nnunet_labelset.commands.options import add_statistics, comparison_options
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.evaluation.compare import comparison
from nnunet_labelset.evaluation.read_results import load_results, stale_results
from nnunet_labelset.io.files import write_text
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.logs import LOGS, Curves, read_curves
from nnunet_labelset.nnunet.names import fold_name
from nnunet_labelset.report.build import build_report, contract_of
from nnunet_labelset.report.page import Report


def _models(folders: Sequence[str]) -> dict[str, list[Curves]]:
    models = {}
    for folder in folders:
        curves = read_curves(folder)
        if not curves:
            raise LabelSetError(
                f"{folder}: no {fold_name('*')}/{LOGS} with a finished epoch: expected a model "
                "folder"
            )
        name = Path(folder).absolute().name
        models[name if name not in models else str(folder)] = curves
    return models


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "results",
        nargs="+",
        metavar="[NAME=]PATH",
        help="an evaluation, or the folder of its predictions",
    )
    add("-o", required=True, metavar="FILE", help="the report, such as report.html")
    add(
        "-m",
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="model folders (TRAINER__PLANS__CONFIGURATION) whose training curves are shown",
    )
    add_statistics(parser)
    add(
        "--worst",
        type=int,
        default=3,
        metavar="N",
        help="number of worst cases to draw, 0 for none (default: %(default)s)",
    )
    add("--cases", nargs="+", default=[], metavar="CASE", help="draw these cases instead")
    add("--title", default="Evaluation report", help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    target = _target(args)
    report = _report(args, target.parent)
    for line in report.stale:
        print(f"scores are out of date, as the report says: {line}", file=sys.stderr)
    html = build_report(report, args.title)
    write_text(target, html)
    print(f"written to {target} ({len(html.encode()) / 1e6:.1f} MB)")


def _target(args: argparse.Namespace) -> Path:
    target = Path(os.path.abspath(args.o))
    if os.path.isdir(target) or target.suffix.lower() not in (".html", ".htm"):
        raise LabelSetError(f"-o {args.o}: expected the name of an .html file")
    return target


def _report(args: argparse.Namespace, folder: Path) -> Report:
    """Return what was asked for, from the evaluations; `folder` is where the report will stand."""
    if args.worst < 0:
        raise LabelSetError(f"Expected --worst to be 0 or more, but got {args.worst}")
    results, sources = load_results(args.results)
    options = comparison_options(args, results)
    models = _models(args.m)
    compared = comparison(results, options, sources) if len(results) > 1 else None
    contract, reason = contract_of(next(iter(results.values())))
    report = Report(
        results=results,
        sources=sources,
        folder=folder,
        contract=contract,
        no_contract=reason,
        compared=compared,
        stale=stale_results(results),
        models=models,
        worst=args.worst,
        wanted_cases=args.cases,
    )
    if unknown := [case for case in args.cases if case not in report.cases]:
        raise LabelSetError(
            f"--cases {some(unknown)}: not in all result "
            f"sets{did_you_mean(unknown[0], report.cases)}"
        )
    return report
