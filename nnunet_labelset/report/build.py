"""`nnunet_labelset report`: one self-contained HTML file about one evaluation or several."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from nnunet_labelset import __version__
from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.annotated_table import contract_with_list
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.compare import comparison
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.logs import Curves
from nnunet_labelset.report.page import page
from nnunet_labelset.report.result import Result
from nnunet_labelset.report.sections.cases import cases_section
from nnunet_labelset.report.sections.comparison import comparison_section
from nnunet_labelset.report.sections.figures import curves_section, plots_section
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
        compared = comparison({result.name: result.evaluation for result in results}, baseline, alpha, holm)
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
    missing = sorted({case for result in results for case in result.evaluation.missing_predictions})
    if missing:
        lead += f"<br>{len(missing)} case(s) without prediction were left out: {escape(some(missing))}"
    return page(title, lead, sections, f"nnunet_labelset {escape(__version__)}")


def _contract(result: Result) -> tuple[Contract | None, str]:
    """The contract that the evaluation used, or why it cannot be read any more."""
    settings = result.evaluation.settings
    try:
        dataset_json = read_json(settings.dataset_json)
        if settings.annotated:
            contract = contract_with_list(dataset_json, settings.annotated)
        else:
            contract = Contract.from_dataset_json(dataset_json)
        contract.require_cases(result.cases)
    except LabelSetError as error:
        return None, str(error)
    return contract, ""
