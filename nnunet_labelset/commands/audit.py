"""`nnunet_labelset audit`: what was forgotten or drawn wrongly, by cross-validated predictions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from nnunet_labelset.audit.audit import Audit, audit_dataset
from nnunet_labelset.audit.build import audit_page, audit_rows
from nnunet_labelset.audit.findings import Finding, Reason, findings_table
from nnunet_labelset.commands.options import add_dataset, add_model, add_processes
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_text
from nnunet_labelset.io.text import aligned
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.models import find_model

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
    dataset = folder.resolve().name
    target = args.o or Path(f"{dataset}_audit")
    table = target / "audit.csv"
    if table.exists() and not args.overwrite:
        raise LabelSetError(f"{table} exists: choose another -o, or add --overwrite")
    audit = audit_dataset(folder, find_model(dataset, args.tr, args.p, args.c), args.np)
    _print(audit.findings, audit.label_names, len(audit.predictions.cases))
    for remark in audit.remarks:
        print(remark)
    if not args.no_page:
        write_page(audit, dataset, args, target / "audit.html")
    write_text(table, findings_table(audit.findings, audit.label_names))  # marks a finished audit
    print(f"wrote {table}")


def write_page(audit: Audit, dataset: str, args: argparse.Namespace, page: Path) -> None:
    names = audit.label_names
    rows = audit_rows(audit.predictions.cases, names, args.np)
    write_text(page, audit_page(dataset, args.d, names, rows, audit.findings))
    print(f"wrote {page}: look, decide, save the table")


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
