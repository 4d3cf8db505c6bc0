"""`nnunet_labelset report`: one self-contained HTML file about one evaluation or several."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from nnunet_labelset import __version__
from nnunet_labelset.contract.annotated_table import contract_with_list
from nnunet_labelset.evaluation.compare import comparison, load_results
from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import read_json, some, write_text
from nnunet_labelset.report.sections.cases import cases_section
from nnunet_labelset.report.sections.comparison import comparison_section
from nnunet_labelset.report.curves import Curves, read_curves
from nnunet_labelset.report.sections.figures import curves_section, plots_section
from nnunet_labelset.report.page import page
from nnunet_labelset.report.result import Result
from nnunet_labelset.report.sections.overview import (
    all_cases_section,
    coverage_section,
    files_section,
    groups_section,
    summary_section,
)


def build_report(
    results: Sequence[Result],
    baseline: str,
    models: dict[str, list[Curves]],
    folder: Path,
    title: str,
    worst: int = 3,
    alpha: float = 0.01,
    holm: bool = False,
) -> str:
    """The HTML of the report; `folder` is where it will stand, for the links."""
    common = sorted(set.intersection(*(set(result.cases) for result in results)))
    sections = []
    contract, reason = _contract(results[0])
    if contract is not None:
        sections.append(("coverage", "Coverage", coverage_section(contract, common)))
    if len(results) > 1:
        compared = comparison({result.name: result.metrics for result in results}, baseline, alpha, holm)
        sections.append(("comparison", "Comparison", comparison_section(compared)))
    sections.append(("leaves", "Scores per leaf", plots_section(results)))
    if contract is None:
        sections.append(("worst", "Worst and median cases", f'<p class="note">No pictures: {escape(reason)}</p>'))
    elif worst:
        sections.append(("worst", "Worst and median cases", cases_section(results, contract, common, worst, folder)))
    if models:
        sections.append(("training", "Training", curves_section(models)))
    sections.append(("summary", "Summary of leaves", summary_section(results)))
    if groups := groups_section(results):
        sections.append(("groups", "Groups", groups))
    sections.append(("cases", "All cases", all_cases_section(results, folder)))
    sections.append(("files", "Files", files_section(results, folder)))
    names = ", ".join(result.name for result in results)
    lead = f"{len(common)} evaluated case(s); {escape(names)}"
    missing = sorted({case for result in results for case in result.metrics["missing_predictions"]})
    if missing:
        lead += f"<br>{len(missing)} case(s) without prediction were left out: {escape(some(missing))}"
    return page(title, lead, sections, f"nnunet_labelset {escape(__version__)}")


def _contract(result: Result) -> tuple[Contract | None, str]:
    """The contract that the evaluation used, or why it cannot be read any more."""
    settings = result.metrics["settings"]
    try:
        dataset_json = read_json(settings["dataset_json"])
        if settings.get("annotated"):
            contract = contract_with_list(dataset_json, settings["annotated"])
        else:
            contract = Contract.from_dataset_json(dataset_json)
        contract.require_cases(result.cases)
    except LabelSetError as error:
        return None, str(error)
    return contract, ""


def _models(folders: Sequence[str]) -> dict[str, list[Curves]]:
    models = {}
    for folder in folders:
        curves = read_curves(folder)
        if not curves:
            raise LabelSetError(
                f"{folder}: no fold_*/training_log_*.txt with a finished epoch: expected a model folder"
            )
        name = Path(folder).absolute().name
        models[name if name not in models else str(folder)] = curves
    return models


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("results", nargs="+", metavar="[NAME=]PATH", help="what evaluate wrote, or its predictions")
    add("-o", required=True, metavar="FILE", help="the report, such as report.html")
    add("-m", nargs="+", default=[], metavar="FOLDER", help="model folders (TRAINER__PLANS__CONFIGURATION), for curves")
    add("--baseline", metavar="NAME", help="compare against this method (default: the first)")
    add("--alpha", type=float, default=0.01, help="level of significance (default: %(default)s)")
    add("--holm", action="store_true", help="correct p-values for the number of tests of a metric")
    add("--worst", type=int, default=3, metavar="N", help="worst cases to draw; 0: no pictures (default: %(default)s)")
    add("--title", default="Evaluation report", help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    if not 0 < args.alpha < 1:
        raise LabelSetError(f"Expected --alpha to be between 0 and 1, but got {args.alpha}")
    if args.worst < 0:
        raise LabelSetError(f"Expected --worst to be 0 or more, but got {args.worst}")
    target = Path(os.path.abspath(args.o))
    if target.is_dir() or target.suffix.lower() not in (".html", ".htm"):
        raise LabelSetError(f"-o {args.o}: expected the name of an .html file")
    contents, sources = load_results(args.results)
    baseline = args.baseline or next(iter(contents))
    if baseline not in contents:
        raise LabelSetError(f"--baseline: no result set '{baseline}'{did_you_mean(baseline, contents)}")
    results = [Result(name, Path(sources[name]), content) for name, content in contents.items()]
    models = _models(args.m)
    html = build_report(results, baseline, models, target.parent, args.title, args.worst, args.alpha, args.holm)
    write_text(target, html)
    print(f"written to {target} ({len(html) / 1e6:.1f} MB)")
