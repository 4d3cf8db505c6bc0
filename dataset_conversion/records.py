"""Records of finished cases, so that a stopped run goes on where it was: one file, with a line for
every case.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from nnunet_labelset import __version__
from nnunet_labelset.dataset_conversion.case import convert_case
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.io.files import write_text

RECORDS = ".records"


def convert_and_record(job: CaseJob, folder: Path, write: bool = True) -> tuple[CaseResult, str]:
    """Runs in a worker: what came of a case, and its record, which is empty if it was not written."""
    if not write:
        return convert_case(job, None), ""
    stamp = fingerprint(job)
    result = convert_case(job, folder)
    if result.problems:
        return result, ""
    files = {name: size_of(folder / name) for name in output_names(job, result)}
    return result, _dump({"case": job.case, "fingerprint": stamp, "files": files, "result": result})


def output_names(job: CaseJob, result: CaseResult) -> list[str]:
    """The files of a case in the data set folder."""
    return job.image_files + ([job.label_file] if result.sets is not None else [])


def size_of(path: Path) -> int | None:
    """Bytes of a file or link, None if there is none."""
    return path.lstat().st_size if os.path.lexists(path) else None


def fingerprint(job: CaseJob) -> str:
    """Changes when the rules of a case, any of its files, or the version of this code change."""
    stats: list[tuple[int, int] | None] = []
    for path in job.inputs:
        try:
            found = os.stat(path)
            stats.append((found.st_size, found.st_mtime_ns))
        except OSError:
            stats.append(None)
    return hashlib.sha256(_dump([__version__, job, stats]).encode()).hexdigest()


class Records:
    """The records in the hidden folder of a data set. A line that cannot be read is as none."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / RECORDS

    def __bool__(self) -> bool:
        return bool(size_of(self.path))

    def recall(self, jobs: Sequence[CaseJob]) -> dict[str, CaseResult]:
        """Results of cases that an earlier run finished by the same rules from the same files, if
        these are there.
        """
        records = {record["case"]: record for record, _ in self._read()}
        found = {}
        for job in jobs if records else ():
            with suppress(KeyError, TypeError):
                record = records[job.case]
                result = CaseResult(**record["result"])
                result.notes = [Note(*note) for note in result.notes]
                result.vouched = frozenset(result.vouched)
                if result.sets is not None:
                    result.sets = tuple(frozenset(labels) for labels in result.sets)
                files = {name: size_of(self.folder / name) for name in output_names(job, result)}
                whole = files == record["files"] and None not in files.values()
                if whole and record["fingerprint"] == fingerprint(job):
                    found[job.case] = result
        return found

    def forget(self, jobs: Sequence[CaseJob]) -> None:
        """Before these cases are converted: whoever stops then must not find their old records with
        new files.
        """
        cases = {job.case for job in jobs}
        if self:
            write_text(
                self.path,
                "".join(line for record, line in self._read() if record["case"] not in cases),
            )

    def add(self, record: str) -> None:
        """After the files of a case were written, so that a case with a record is a whole case."""
        with (
            suppress(OSError),
            open(self.path, "a", encoding="utf-8") as file,
        ):  # without, it is only converted again
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


def _dump(value: Any) -> str:
    """As JSON; sets in order, data classes by their fields."""
    return json.dumps(value, default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return vars(value) if is_dataclass(value) else str(value)  # paths, members of an Enum
