"""Write a data set from jobs: in parallel, and published only when all is well.

A killed run leaves its hidden folder with a record of every finished case; the next run continues
there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nnunet_labelset.contract import Contract, Protocol
from nnunet_labelset.dataset_conversion.case_names import Renamed
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.dataset_conversion.notes import Note, write_notes
from nnunet_labelset.dataset_conversion.plan import Plan
from nnunet_labelset.dataset_conversion.records import Records, convert_and_record, output_names
from nnunet_labelset.datasets.annotate.declaration import protocol_name
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_text
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.tables import csv_text
from nnunet_labelset.nnunet.publish import NOTES, PROVENANCE, RENAMED, Target, publish, staged
from nnunet_labelset.nnunet.raw import TRAINING, new_dataset_json


@dataclass
class Written:
    """The data set that a run has written."""

    contract: Contract
    jobs: dict[str, CaseJob]  # by case
    skipped: list[str]
    notes: list[tuple[str, Note]]  # case, what was noticed
    resumed: int
    kept: list[str]  # files of the data set that was replaced
    is_flat: bool = False  # nnU-Net plans the configuration 2d only


def write_dataset(target: Target, plan: Plan, processes: int, skip_bad_cases: bool) -> Written:
    """Convert all jobs and publish the data set.

    If there are problems, one error lists all of them and nothing is written.
    """
    if processes < 1:
        raise LabelSetError(f"-np {processes}: expected 1 or more")
    with staged(target, (path for job in plan.jobs for path in job.inputs)) as staging:
        records = Records(staging)
        was_stopped = bool(records)  # then its finished cases are worth keeping
        # A run that cannot succeed any more still looks for all problems, but need not write.
        writes = not plan.problems or skip_bad_cases
        results, resumed = _convert_all(records, plan.jobs, processes, writes)
        problems = [*plan.problems, *_problems(plan.jobs, results)]
        skipped = {case for case, _ in problems}
        good_jobs = [job for job in plan.jobs if job.case not in skipped]
        failure = _failure(problems, good_jobs, skip_bad_cases)
        if failure:
            if not was_stopped:
                records.path.unlink(missing_ok=True)
            raise LabelSetError(failure)
        written = Written(
            contract=_contract(plan.labels, good_jobs, results),
            jobs={job.case: job for job in good_jobs},
            skipped=_texts(problems),
            notes=[
                *((job.case, note) for job in good_jobs for note in results[job.case].notes),
                *_same_images(good_jobs, results),
            ],
            resumed=resumed,
            kept=[],
            is_flat=_plans_flat(good_jobs, results),
        )
        if plan.renamed:
            write_text(staging / RENAMED, csv_text(Renamed._fields, plan.renamed))
        written.kept = _publish(target, written, plan.channels, results)
        return written


def _plans_flat(jobs: Iterable[CaseJob], results: Mapping[str, CaseResult]) -> bool:
    """Tell whether the median training image has one slice: then nnU-Net plans no 3D network."""
    flat = [results[job.case].is_flat for job in jobs if job.part == TRAINING]
    return sum(flat) > len(flat) / 2


def _same_images(
    jobs: Iterable[CaseJob], results: Mapping[str, CaseResult]
) -> Iterator[tuple[str, Note]]:
    """Yield a note for every case whose first image another case has, too."""
    first_case: dict[str, str] = {}
    for job in jobs:
        checksum = results[job.case].checksums[str(job.images[0])]
        other = first_case.setdefault(checksum, job.case)
        if other != job.case:
            yield job.case, Note("the same image as another case", other)


def _publish(
    target: Target, written: Written, channels: Sequence[str], results: Mapping[str, CaseResult]
) -> list[str]:
    """Write what is about all cases, and publish; returns what was kept of the old data set."""
    jobs = list(written.jobs.values())
    write_notes(target.staging / NOTES, written.notes)
    rows = [(job.case, *pair) for job in jobs for pair in results[job.case].checksums.items()]
    write_text(target.staging / PROVENANCE, csv_text(["case", "file", "sha256"], rows))
    num_training = sum(job.part == TRAINING for job in jobs)
    layout = new_dataset_json(target.folder.name, channels, num_training, jobs[0].ending)
    dataset_json = {**layout, **written.contract.to_dataset_json()}
    files = {name for job in jobs for name in output_names(job, results[job.case])}
    return publish(target, files, dataset_json)


def _problems(jobs: Iterable[CaseJob], results: Mapping[str, CaseResult]) -> list[tuple[str, str]]:
    return [(job.case, text) for job in jobs for text in results[job.case].problems]


def _failure(
    problems: Sequence[tuple[str, str]], good_jobs: Sequence[CaseJob], skip_bad_cases: bool
) -> str:
    """Return why nothing can be written, or an empty text."""
    texts = _texts(problems)
    listed = f"{len(texts)} problem(s):\n" + "\n".join(f"  {text}" for text in texts)
    if problems and not skip_bad_cases:
        return f"{listed}\nNothing was written; --skip-bad-cases leaves these cases out."
    if any(job.part == TRAINING for job in good_jobs):
        return ""
    return "no training case is left" + (f": {listed}" if problems else "")


def _texts(problems: Iterable[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(text for _, text in problems))


def _convert_all(
    records: Records, jobs: Sequence[CaseJob], processes: int, writes: bool
) -> tuple[dict[str, CaseResult], int]:
    """Return the result of every case, and how many an earlier run had finished."""
    results = records.recall(jobs)
    resumed = len(results)
    open_jobs = [job for job in jobs if job.case not in results]
    if writes:
        records.forget(open_jobs)
    work = partial(convert_and_record, folder=records.folder, write=writes)
    title = "converting" if writes else "checking"
    try:
        for job, (result, record) in map_parallel(work, open_jobs, processes, title):
            results[job.case] = result
            if record:
                records.add(record)
    except LabelSetError as error:
        if not records:
            raise
        raise LabelSetError(
            f"{error}; finished cases are kept: the same command continues from there"
        ) from None
    return results, resumed


def _contract(
    labels: Contract, jobs: Sequence[CaseJob], results: Mapping[str, CaseResult]
) -> Contract:
    protocols = {job.case: results[job.case].protocol for job in jobs}
    known = {case: protocol for case, protocol in protocols.items() if protocol is not None}
    has_ignore = any(protocol.has_ignore for protocol in known.values())
    if has_ignore:
        known = {case: protocol.with_ignore() for case, protocol in known.items()}
    by_source: dict[str, set[Protocol]] = {}
    for job in jobs:
        if job.case in known:
            by_source.setdefault(job.source, set()).add(known[job.case])
    names = _protocol_names(labels, by_source)
    sources = {job.case: job.source for job in jobs}
    return replace(
        labels,
        protocols={name: protocol for (_, protocol), name in names.items()},
        cases={case: names[sources[case], protocol] for case, protocol in known.items()},
        has_ignore=has_ignore,
    )


def _protocol_names(
    labels: Contract, by_source: Mapping[str, Collection[Protocol]]
) -> dict[tuple[str, Protocol], str]:
    """Return a name for every protocol of every source.

    The only protocol of a source has its name; several are told apart by what was not drawn.
    """
    names: dict[tuple[str, Protocol], str] = {}
    for source, protocols in by_source.items():
        for protocol in sorted(protocols, key=_order):
            name = source
            if len(protocols) > 1:
                missing = protocol.full_set - protocol.annotated - {0}
                name = f"{source}: {protocol_name(labels, missing)}"
            while name in names.values():  # the same gaps, stored in another way
                name += "'"
            names[source, protocol] = name
    return names


def _order(protocol: Protocol) -> tuple[int, list[list[int]], list[int], bool]:
    sets = [sorted(leaves) for leaves in protocol.sets]
    return sum(map(len, sets)), sets, sorted(protocol.vouched), protocol.states_ignore
