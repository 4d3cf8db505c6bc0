"""Records of finished cases, so that a stopped run goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from nnunet_labelset import __version__
from nnunet_labelset.dataset_conversion.case import convert_case
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json

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
        files = {name: size_of(folder / name) for name in output_names(job, result)}
        with suppress(OSError):  # without a record, or with half of one, the case is only converted again
            record.write_text(_dump({"fingerprint": stamp, "files": files, "result": result}), encoding="utf-8")
    return result


def output_names(job: CaseJob, result: CaseResult) -> list[str]:
    """The files of a case in the data set folder."""
    return job.image_files + ([job.label_file] if result.sets is not None else [])


def size_of(path: Path) -> int | None:
    """Bytes of a file or link, None if there is none."""
    return path.lstat().st_size if os.path.lexists(path) else None


def fingerprint(job: CaseJob) -> str:
    """Changes when the rules of a case, any of its files, or the version of this code change."""
    stats = [(path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None for path in job.inputs]
    return hashlib.sha256(_dump([__version__, job, stats]).encode()).hexdigest()


def recall(folder: Path, job: CaseJob) -> CaseResult | None:
    """The result of a case that an earlier run finished by the same rules from the same files, if its files are there.

    A record that cannot be read is as none.
    """
    try:
        record = read_json(folder / RECORDS / f"{job.case}.json")
        if record["fingerprint"] != fingerprint(job):
            return None
        result = CaseResult(**record["result"])
        result.notes = [Note(*note) for note in result.notes]
        result.vouched = frozenset(result.vouched)
        if result.sets is not None:
            result.sets = tuple(frozenset(labels) for labels in result.sets)
        files = {name: size_of(folder / name) for name in output_names(job, result)}
        return result if files == record["files"] and None not in files.values() else None
    except (LabelSetError, KeyError, TypeError):
        return None


def _dump(value: Any) -> str:
    """As JSON; sets in order, data classes by their fields."""
    return json.dumps(value, default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return vars(value) if is_dataclass(value) else str(value)  # paths, members of an Enum
