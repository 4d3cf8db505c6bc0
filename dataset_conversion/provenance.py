"""`provenance.csv`: the files that every case was made from, their checksums, and the rules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nnunet_labelset.dataset_conversion.job import CaseJob
from nnunet_labelset.dataset_conversion.records import dump
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import checksum
from nnunet_labelset.io.tables import csv_text, read_table

COLUMNS = ("case", "file", "blake2b", "annotated", "rules")


@dataclass(frozen=True)
class Origin:
    """Where a case comes from: checksums by file, the labels that were declared, and its rules.

    `rules` is a checksum of all that a manifest and options say about a case, but for what is
    annotated in it.
    """

    checksums: Mapping[str, str]
    annotated: str
    rules: str

    @property
    def first_image(self) -> str:
        """The checksum of the first image."""
        return next(iter(self.checksums.values()))


def origin_of(job: CaseJob, checksums: Mapping[str, str]) -> Origin:
    names = (job.leaves[leaf] for leaf in sorted(job.protocol.annotated))
    return Origin(checksums=checksums, annotated=";".join(names), rules=_rules(job))


def read_origin(job: CaseJob) -> Origin:
    """Return the origin of a case from its files as they are now."""
    return origin_of(job, {str(path): checksum(path) for path in job.inputs})


def _rules(job: CaseJob) -> str:
    nothing = frozenset[int]()
    protocol = replace(job.protocol, annotated=nothing, varies=nothing, partly=nothing)
    rules = replace(
        job,
        case="",
        source="",
        images=(),
        labels=(),
        mask=None,
        protocol=protocol,
        link=False,
        looks_for_air=False,
        ending="",
        notes=(),
        dicom=None,
    )
    return hashlib.sha256(dump(rules).encode()).hexdigest()[:16]


def provenance_text(origins: Mapping[str, Origin]) -> str:
    rows = []
    for case, origin in origins.items():
        for file, digest in origin.checksums.items():
            rows.append((case, file, digest, origin.annotated, origin.rules))
    return csv_text(COLUMNS, rows)


def read_provenance(path: Path) -> dict[str, Origin]:
    rows = read_table(path)
    if missing := [column for column in COLUMNS if column not in rows[0]]:
        raise LabelSetError(f"{path}: no column '{missing[0]}': was the file edited?")
    checksums: dict[str, dict[str, str]] = {}
    for row in rows:
        checksums.setdefault(row["case"], {})[row["file"]] = row["blake2b"]
    return {
        row["case"]: Origin(checksums[row["case"]], row["annotated"], row["rules"]) for row in rows
    }
