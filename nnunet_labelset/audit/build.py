"""The page of `audit`, and that of `annotate --suggest --page`."""

from __future__ import annotations

from collections.abc import Sequence

from nnunet_labelset.audit.findings import Finding
from nnunet_labelset.audit.page import CaseRow, DecisionPage, State, decision_page, states_of
from nnunet_labelset.audit.pictures import Shown, draw_sprites
from nnunet_labelset.audit.predictions import Prediction
from nnunet_labelset.contract import Protocol
from nnunet_labelset.datasets.annotate.declaration import declaration_of
from nnunet_labelset.datasets.annotate.labelled import LabelledDataset, Values
from nnunet_labelset.datasets.verify.case_facts import read_values
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.nnunet.raw import RawCase

LOCKED = "its protocol says more than a table can: edit the block in dataset.json"


def audit_rows(
    predictions: Sequence[Prediction], label_names: Sequence[str], processes: int
) -> tuple[CaseRow, ...]:
    """Return the audited cases with what the contract claims about each label."""
    cases = [item.case for item in predictions]
    shown = [_shown(item.case, item) for item in predictions]
    sprites = draw_sprites(shown, len(label_names), processes)
    facts = dict(map_parallel(read_values, cases, processes, "counting voxels"))
    rows = []
    for item in predictions:
        labels = range(1, len(label_names))
        values = facts[item.case].values or {}
        drawn = tuple(label in values for label in labels)
        annotated = [label in item.protocol.annotated for label in labels]
        rows.append(
            CaseRow(
                name=item.case.name,
                states=states_of(annotated, drawn),
                drawn=drawn,
                sprite=sprites[item.case.name],
                locked=None if _fits_a_table(item.protocol) else LOCKED,
            )
        )
    return tuple(rows)


def _fits_a_table(protocol: Protocol) -> bool:
    """Tell whether a table says all that the protocol does: otherwise it would say less."""
    declaration = declaration_of(protocol)
    return declaration is not None and not declaration.merged


def _shown(case: RawCase, prediction: Prediction | None = None) -> Shown:
    assert case.label is not None
    return Shown(
        name=case.name,
        image=case.images[0] if case.images else None,
        drawn=case.label,
        predicted=prediction.file if prediction else None,
    )


def audit_page(
    dataset: str,
    typed: str,
    label_names: Sequence[str],
    rows: tuple[CaseRow, ...],
    findings: Sequence[Finding],
) -> str:
    """Return the page of an audit; its table lists the cases that somebody changed."""
    return decision_page(
        DecisionPage(
            title=f"Audit of {dataset}",
            lead=(
                "Cross-validated predictions against what was declared. Nothing is changed until "
                "you save a table and pass it to annotate.",
            ),
            label_names=tuple(label_names),
            cases=rows,
            findings=tuple(findings),
            command=f"nnunet_labelset annotate -d {typed} --annotated FILE --add",
            table_name=f"{dataset}_decided.csv",
        )
    )


def suggestion_page(data: LabelledDataset, values: Values, typed: str, processes: int) -> str:
    """Return the page of a suggestion; its table lists all cases."""
    names = data.labels.leaf_names
    sprites = draw_sprites([_shown(case) for case in data.cases], len(names), processes)
    rows = []
    for case in data.cases:
        drawn = tuple(label in values[case.name] for label in range(1, len(names)))
        states = tuple(State.YES if is_drawn else State.NO for is_drawn in drawn)
        rows.append(CaseRow(name=case.name, states=states, drawn=drawn, sprite=sprites[case.name]))
    dataset = data.folder.resolve().name
    return decision_page(
        DecisionPage(
            title=f"What was drawn in {dataset}?",
            lead=(
                "A label with voxels was drawn. One without was not drawn, or looked for and not "
                "found: only you can tell.",
            ),
            label_names=names,
            cases=tuple(rows),
            command=f"nnunet_labelset annotate -d {typed} --annotated FILE",
            table_name=f"{dataset}_annotated.csv",
            saves_all=True,
        )
    )
