"""Records of finished cases, so that a stopped run goes on where it was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from nnunet_labelset.dataset_conversion.case import convert_case
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.io.files import read_json, write_json

RECORDS = ".records"


def convert_and_record(job: CaseJob, folder: Path, write: bool = True) -> CaseResult:
    """Runs in a worker. The record is written after the files, so that a case with a record is a whole case."""
    if not write:
        return convert_case(job, None)
    record = folder / RECORDS / f"{job.case}.json"
    record.unlink(missing_ok=True)
    stamp = fingerprint(job)
    result = convert_case(job, folder)
    if not result.problems:
        write_json(record, {"fingerprint": stamp, "result": _plain(asdict(result))})
    return result


def fingerprint(job: CaseJob) -> str:
    """Changes when the rules of a case or any of its files change."""
    stats = [(path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None for path in job.inputs]
    return hashlib.sha256(json.dumps([_plain(job), stats], sort_keys=True).encode()).hexdigest()


def recall(records: Path, job: CaseJob) -> CaseResult | None:
    """The result of a case that an earlier run finished by the same rules from the same files."""
    path = records / f"{job.case}.json"
    if not path.is_file():
        return None
    record = read_json(path)
    if record.get("fingerprint") != fingerprint(job):
        return None
    result = CaseResult(**record["result"])
    if result.protocol is not None:
        result.protocol = tuple(frozenset(labels) for labels in result.protocol)
    return result


def _plain(value: Any) -> Any:
    """Data classes, sets and paths as JSON, sets in order."""
    if is_dataclass(value):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
