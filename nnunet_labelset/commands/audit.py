"""`nnunet_labelset audit`: what was forgotten or drawn wrongly, by cross-validated predictions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from nnunet_labelset.audit.build import audit_page, audit_rows
from nnunet_labelset.audit.findings import FEW, Finding, Reason, blind_labels, find, findings_table
from nnunet_labelset.audit.predictions import find_predictions, gather_all, said_about
from nnunet_labelset.commands.options import add_dataset, add_model, add_processes
from nnunet_labelset.contract import Contract
from nnunet_labelset.dataset_conversion.completions import check_labels
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json, write_text
from nnunet_labelset.io.text import aligned, some
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.model_file import output_names
from nnunet_labelset.nnunet.models import find_model, read_splits
from nnunet_labelset.nnunet.names import DATASET
from nnunet_labelset.nnunet.raw import read_dataset
from nnunet_labelset.nnunet.recommendation import paired_labels

EPILOG = """Train every fold with --npz first. audit changes nothing: the page saves a table of your
decisions for 'nnunet_labelset annotate --annotated FILE --add'."""
SHOWN = 30  # findings on screen


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_dataset(parser)
    add_model(parser)
    parser.add_argument(
        "-o",
        type=Path,
        metavar="FOLDER",
        help="where to write audit.csv and audit.html (default: DatasetXXX_Name_audit)",
    )
    parser.add_argument(
        "--no-page", action="store_true", help="write the list only, without pictures"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier audit")
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    folder = find_dataset(args.d)
    name = folder.resolve().name
    target = args.o or Path(f"{name}_audit")
    table = target / "audit.csv"
    if table.exists() and not args.overwrite:
        raise LabelSetError(f"{table} exists: choose another -o, or add --overwrite")
    dataset_json, contract = read_dataset(folder)
    model = find_model(name, args.tr, args.p, args.c)
    has_probabilities = _tells_labels(model, contract, name)
    predictions = find_predictions(
        folder, dataset_json, contract, model, read_splits(name), has_probabilities
    )
    evidence = gather_all(predictions.cases, model, args.np)
    names = contract.leaf_names
    sides = paired_labels(names, dataset_json)
    pairs = [(names.index(left), names.index(right)) for left, right in sides]
    findings = find(evidence, pairs)
    _print(findings, names, len(predictions.cases))
    blind = [f"'{names[label]}'" for label in blind_labels(evidence)]
    if blind:
        print(
            f"WARNING: an empty list says nothing about {some(blind, 20)}: fewer than {FEW} cases "
            "annotate it, or the model does not know it well enough to contradict a drawing"
        )
    for note in said_about(predictions):
        print(f"note: {note}")
    if not args.no_page:
        rows = audit_rows(predictions.cases, names, args.np)
        write_text(target / "audit.html", audit_page(name, args.d, names, rows, findings))
        print(f"wrote {target / 'audit.html'}: look, decide, save the table")
    write_text(table, findings_table(findings, names))  # last: it marks a finished audit
    print(f"wrote {table}")


def _tells_labels(model: Path, contract: Contract, dataset: str) -> bool:
    """Tell whether the probabilities of a model are those of the labels of the data set.

    Where they are those of regions, or of one sigmoid per label, they are not read.
    """
    outputs = output_names(read_json(model / DATASET))
    is_sigmoid = set(outputs) == set(contract.leaf_names[1:])
    if contract.regions is not None or is_sigmoid:
        return False
    check_labels(model, contract, dataset)
    return True


def _print(findings: Sequence[Finding], label_names: Sequence[str], cases: int) -> None:
    faults = [finding for finding in findings if finding.reason is not Reason.GAP]
    print(f"{len(faults)} finding(s) in {cases} case(s), the most doubtful first:")
    rows = [("case", "label", "why", "doubt", "ml", "confidence")]
    for finding in faults[:SHOWN]:
        labels = ", ".join(label_names[label] for label in finding.labels)
        confidence = "-" if finding.confidence is None else f"{finding.confidence:.2f}"
        numbers = (f"{finding.doubt:.1f}", f"{finding.volume:.2f}", confidence)
        rows.append((finding.case, labels, finding.reason.value, *numbers))
    if faults:
        print("\n".join(aligned(rows, 3)))
    if len(faults) > SHOWN:
        print(f"... {len(faults)} in all: see the table")
    if gaps := len(findings) - len(faults):
        print(f"{gaps} label(s) predicted in gaps: listed at the end of the table")
