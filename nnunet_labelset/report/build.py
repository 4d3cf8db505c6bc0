"""`nnunet_labelset report`: one self-contained HTML file about one evaluation or several."""

from __future__ import annotations

from markupsafe import Markup

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.read_results import read_contract
from nnunet_labelset.evaluation.results import Evaluation
from nnunet_labelset.io.text import some
from nnunet_labelset.report.page import Section, page
from nnunet_labelset.report.report import Report
from nnunet_labelset.report.sections import (
    all_scores,
    answer,
    comparison,
    coverage,
    failures,
    groups,
    headline,
    leaves,
    pictures,
    source_files,
    strips,
    training,
    volumes,
)

# A section is a module with a TITLE and a function `body(report)`, which returns nothing where it
# has nothing to say.
SECTIONS = (
    answer,
    headline,
    all_scores,
    comparison,
    strips,
    failures,
    pictures,
    volumes,
    leaves,
    groups,
    coverage,
    training,
    source_files,
)


STALE = Markup('<strong class="alarm">Scores are out of date:</strong> {}')


def build_report(report: Report, title: str) -> str:
    """The HTML of the report."""
    sections = []
    for module in SECTIONS:
        body = module.body(report)
        if body:
            sections.append(Section(module.__name__.rpartition(".")[2], module.TITLE, body))
    lead: list[object] = [f"{len(report.cases)} evaluated case(s); {', '.join(report.methods)}"]
    lead += map(STALE.format, report.stale)
    if missing := sorted(
        {case for result in report.results.values() for case in result.missing_predictions}
    ):
        lead.append(f"{len(missing)} case(s) without prediction were left out: {some(missing)}")
    return page(title, lead, sections)


def contract_of(result: Evaluation) -> tuple[Contract | None, str]:
    """The contract that the evaluation used, or why it cannot be read any more."""
    try:
        contract = read_contract(result.settings.dataset_json, result.settings.annotated)
        contract.require_cases(result.by_case)
    except LabelSetError as error:
        return None, str(error)
    return contract, ""
