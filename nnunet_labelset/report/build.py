"""`nnunet_labelset report`: one self-contained HTML file about one evaluation or several."""

from __future__ import annotations

from markupsafe import Markup

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.read_results import read_contract
from nnunet_labelset.evaluation.results import Evaluation
from nnunet_labelset.io.text import some
from nnunet_labelset.report import cases, labels, overview
from nnunet_labelset.report.page import Report, Section, page

# Anchor, title, and a function of the report that returns nothing where it has nothing to say.
SECTIONS = (
    ("answer", "Answer", overview.answer_section),
    ("headline", "Overview", overview.headline_section),
    ("all_scores", "All scores", labels.all_scores_section),
    ("comparison", "Comparison", overview.comparison_section),
    ("strips", "Scores per label", labels.strips_section),
    ("failures", "Failures", cases.failures_section),
    ("pictures", "Drawn cases", cases.pictures_section),
    ("volumes", "Volumes", labels.volumes_section),
    ("leaves", "Labels in numbers", labels.leaves_section),
    ("groups", "Groups", overview.groups_section),
    ("coverage", "Coverage", cases.coverage_section),
    ("training", "Training", cases.training_section),
    ("source_files", "Cases and files", cases.source_files_section),
)
STALE = Markup('<strong class="alarm">Scores are out of date:</strong> {}')


def build_report(report: Report, title: str) -> str:
    """The HTML of the report."""
    sections = []
    for anchor, heading, make in SECTIONS:
        body = make(report)
        if body:
            sections.append(Section(anchor, heading, body))
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
