"""What is remembered of cases: in a hidden journal, so that a stopped run continues, and in
`provenance.csv`, so that later runs know which files a case was made from, and by which rules.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from nnunet_labelset import __version__
from nnunet_labelset.contract import LabelSet, Protocol
from nnunet_labelset.dataset_conversion.case import convert_case
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.datasets.normalisation import Air
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import checksum, write_text
from nnunet_labelset.io.tables import csv_text, read_table
from nnunet_labelset.nnunet.publish import JOURNAL, size_of

PROVENANCE_COLUMNS = ("case", "file", "blake2b", "annotated", "rules")
DECLARED_BY = "declared_by"  # further columns, since 0.3.1
PARTLY_DRAWN = "partly_drawn"


def convert_and_record(job: CaseJob, folder: Path, write: bool = True) -> tuple[CaseResult, str]:
    """Convert a case in a worker; return the result and its record, empty if nothing was
    written.
    """
    if not write:
        return convert_case(job, None), ""
    stamp = fingerprint(job)
    result = convert_case(job, folder)
    if result.problems:
        return result, ""
    result.checksums = {str(path): checksum(path) for path in job.inputs}
    files = {name: size_of(folder / name) for name in output_names(job, result)}
    return result, dump({"case": job.case, "fingerprint": stamp, "files": files, "result": result})


def output_names(job: CaseJob, result: CaseResult) -> list[str]:
    """The files of a case in the data set folder."""
    return job.image_files + ([job.label_file] if result.protocol is not None else [])


def fingerprint(job: CaseJob) -> str:
    """Changes when the rules of a case, any of its files, or the version of this code change."""
    stats: list[tuple[int, int] | None] = []
    for path in job.inputs:
        try:
            found = os.stat(path)
            stats.append((found.st_size, found.st_mtime_ns))
        except OSError:
            stats.append(None)
    return hashlib.sha256(dump([__version__, job, stats]).encode()).hexdigest()


class Records:
    """The records in the hidden folder of a data set. Unreadable lines are ignored."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / JOURNAL

    def __bool__(self) -> bool:
        return bool(size_of(self.path))

    def recall(self, jobs: Sequence[CaseJob]) -> dict[str, CaseResult]:
        """Return the results of cases that an earlier run finished by the same rules from the same
        files, if the files it wrote are still there.
        """
        records = {record["case"]: record for record, _ in self._read()}
        found = {}
        for job in jobs if records else ():
            with suppress(KeyError, TypeError):
                record = records[job.case]
                result = _result(record["result"])
                files = {name: size_of(self.folder / name) for name in output_names(job, result)}
                whole = files == record["files"] and None not in files.values()
                if whole and record["fingerprint"] == fingerprint(job):
                    found[job.case] = result
        return found

    def forget(self, jobs: Sequence[CaseJob]) -> None:
        """Drop the records of cases that are about to be converted: old records must not describe
        new files.
        """
        cases = {job.case for job in jobs}
        if self:
            write_text(
                self.path,
                "".join(line for record, line in self._read() if record["case"] not in cases),
            )

    def add(self, record: str) -> None:
        """Append a record, after the files of its case were written."""
        # without, it is only converted again
        with suppress(OSError), open(self.path, "a", encoding="utf-8") as file:
            file.write(record + "\n")

    def _read(self) -> Iterator[tuple[dict[str, Any], str]]:
        if not self:
            return
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines(
            keepends=True
        ):
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if (
                    isinstance(record, dict)
                    and isinstance(record.get("case"), str)
                    and line.endswith("\n")
                ):
                    yield record, line


def _result(record: dict[str, Any]) -> CaseResult:
    protocol = record["protocol"]
    if protocol is not None:
        sets = tuple(frozenset(labels) for labels in protocol["sets"])
        vouched = frozenset(protocol["vouched"])
        protocol = Protocol(**{**protocol, "sets": sets, "vouched": vouched})
    values = {int(value): count for value, count in record["values"].items()}
    return CaseResult(
        **{
            **record,
            "protocol": protocol,
            "notes": [Note(*note) for note in record["notes"]],
            "values": values,
            "air": Air(*record["air"]) if record["air"] is not None else None,
        }
    )


def dump(value: Any) -> str:
    """Return JSON; sets in order, data classes by their fields."""
    return json.dumps(value, default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if not is_dataclass(value):
        return str(value)  # paths, members of an Enum
    return {entry.name: getattr(value, entry.name) for entry in fields(value)}


@dataclass(frozen=True)
class Origin:
    """Where a case comes from: checksums by file, the labels that were declared, and its rules.

    `rules` is a checksum of all that a manifest and options say about a case, but for what is
    annotated in it. `partly_drawn` are labels that have voxels although they are not annotated.
    """

    checksums: Mapping[str, str]
    annotated: str
    rules: str
    reason: str = ""
    partly_drawn: str = ""

    @property
    def first_image(self) -> str:
        """The checksum of the first image."""
        return next(iter(self.checksums.values()))


def origin_of(job: CaseJob, result: CaseResult) -> Origin:
    return Origin(
        checksums=result.checksums,
        annotated=_listed(job, job.protocol.annotated),
        rules=_rules(job),
        reason=job.reason,
        partly_drawn=_listed(job, _partly_drawn(result)),
    )


def _listed(job: CaseJob, leaves: LabelSet) -> str:
    return ";".join(job.leaves[leaf] for leaf in sorted(leaves))


def _partly_drawn(result: CaseResult) -> LabelSet:
    """Return the labels that have voxels in the new label map although they are not annotated."""
    if result.protocol is None:
        return frozenset()
    present = (result.protocol.sets[value] for value in result.values)
    alone = frozenset[int]().union(*(leaves for leaves in present if len(leaves) == 1))
    return alone - result.protocol.annotated - {0}


def read_origin(job: CaseJob) -> Origin:
    """Return the origin of a case from its files as they are now."""
    return origin_of(job, CaseResult(checksums={str(path): checksum(path) for path in job.inputs}))


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
    facts = _plain(rules)
    del facts["reason"]  # a table may list a case in another line
    return hashlib.sha256(dump(facts).encode()).hexdigest()[:16]


def provenance_text(origins: Mapping[str, Origin]) -> str:
    rows = []
    for case, origin in origins.items():
        for file, digest in origin.checksums.items():
            facts = (origin.annotated, origin.rules, origin.reason, origin.partly_drawn)
            rows.append((case, file, digest, *facts))
    return csv_text((*PROVENANCE_COLUMNS, DECLARED_BY, PARTLY_DRAWN), rows)


def read_provenance(path: Path) -> dict[str, Origin]:
    rows = read_table(path)
    if missing := [column for column in PROVENANCE_COLUMNS if column not in rows[0]]:
        raise LabelSetError(f"{path}: no column '{missing[0]}': was the file edited?")
    checksums: dict[str, dict[str, str]] = {}
    for row in rows:
        checksums.setdefault(row["case"], {})[row["file"]] = row["blake2b"]
    return {
        row["case"]: Origin(
            checksums=checksums[row["case"]],
            annotated=row["annotated"],
            rules=row["rules"],
            reason=row.get(DECLARED_BY, ""),
            partly_drawn=row.get(PARTLY_DRAWN, ""),
        )
        for row in rows
    }
