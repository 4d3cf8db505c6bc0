"""One page to look and decide: cases x labels with a picture of each, and a table to be saved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from nnunet_labelset.audit.findings import Finding, Reason
from nnunet_labelset.audit.pictures import COLUMNS, Sprite
from nnunet_labelset.contract.annotated_table import ANNOTATED, WRONG
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.report.page import Section, page


class State(str, Enum):
    """What the table will say about a label of a case."""

    YES = "yes"  # drawn wherever it is
    NO = "no"  # not drawn
    WRONG = "wrong"  # drawn, but not to be trusted


@dataclass(frozen=True)
class CaseRow:
    """A case of the page: the state of each foreground label, and which of them have voxels.

    `locked` tells why a table cannot say anything else about the case, None if it can.
    """

    name: str
    states: tuple[State, ...]
    drawn: tuple[bool, ...]
    sprite: Sprite
    locked: str | None = None


@dataclass(frozen=True)
class DecisionPage:
    """What the page shows, and what it saves: a table of all cases, or of those that change."""

    title: str
    lead: tuple[str, ...]
    label_names: tuple[str, ...]  # background first
    cases: tuple[CaseRow, ...]
    command: str  # that takes the table; FILE stands for its name
    table_name: str
    findings: tuple[Finding, ...] = ()
    saves_all: bool = False


def asset(name: str) -> str:
    return (files("nnunet_labelset.audit") / "assets" / name).read_text(encoding="utf-8")


ENVIRONMENT = Environment(autoescape=True, loader=FunctionLoader(asset))


def decision_page(content: DecisionPage) -> str:
    """Return the HTML; it needs nothing else, and nothing that a case is called can run."""
    for name in content.label_names:
        if ";" in name:
            raise LabelSetError(f"label '{name}': a table cannot list a name with a semicolon")
    body = ENVIRONMENT.get_template("decide.html").render(
        data=Markup(_safe_json(_data(content))),
        style=Markup(asset("decide.css")),
        script=Markup(asset("decide.js")),
        has_findings=bool(content.findings),
        reasons=[reason.value for reason in Reason],
        labels=content.label_names[1:],
    )
    return page(content.title, content.lead, [Section("decide", "Decide", Markup(body))])


def _safe_json(data: Any) -> str:
    """Return JSON that cannot end the script element around it."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(content: DecisionPage) -> Mapping[str, Any]:
    numbers = {case.name: number for number, case in enumerate(content.cases)}
    return {
        "labels": content.label_names[1:],
        "columns": COLUMNS,
        "header": ["case", ANNOTATED, WRONG],
        "command": content.command,
        "table": content.table_name,
        "savesAll": content.saves_all,
        "cases": [_case_data(case) for case in content.cases],
        "findings": [_finding_data(finding, numbers) for finding in content.findings],
    }


def _case_data(case: CaseRow) -> Mapping[str, Any]:
    return {
        "name": case.name,
        "states": [state.value for state in case.states],
        "drawn": case.drawn,
        "locked": case.locked,
        "picture": case.sprite.url,
        "side": case.sprite.side,
    }


def _finding_data(finding: Finding, numbers: Mapping[str, int]) -> Mapping[str, Any]:
    return {
        "case": numbers[finding.case],
        "labels": [label - 1 for label in finding.labels],
        "reason": finding.reason.value,
        "isFault": finding.reason is not Reason.GAP,
        "doubt": round(finding.doubt, 1),
        "volume": round(finding.volume, 2),
        "confidence": None if finding.confidence is None else round(finding.confidence, 2),
    }


def states_of(annotated: Sequence[bool], drawn: Sequence[bool]) -> tuple[State, ...]:
    """Return what a contract claims about each label: `wrong` is drawn, yet not annotated."""
    states = []
    for is_annotated, is_drawn in zip(annotated, drawn, strict=True):
        if is_annotated:
            states.append(State.YES)
        else:
            states.append(State.WRONG if is_drawn else State.NO)
    return tuple(states)
