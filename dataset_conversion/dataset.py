"""Write a data set from jobs: in parallel, into a hidden folder that becomes the data set only when
all is well.

A killed run leaves the hidden folder with a record of every case that is done; the next run goes on
from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from nnunet_labelset.contract import Contract, LabelSet, Protocol
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult
from nnunet_labelset.dataset_conversion.notes import NOTES, Note, write_notes
from nnunet_labelset.dataset_conversion.plan import Plan
from nnunet_labelset.dataset_conversion.records import Records, convert_and_record, output_names
from nnunet_labelset.dataset_conversion.target import Target, publish, staged
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.nnunet.raw import TRAINING, new_dataset_json


@dataclass
class Written:
    """What came of a run."""

    contract: Contract
    jobs: dict[str, CaseJob]  # by case
    skipped: list[str]
    notes: list[tuple[str, Note]]  # case, what was noticed
    resumed: int
    kept: list[str]  # files of the data set that was replaced


def write_dataset(target: Target, made: Plan, processes: int, skip_bad_cases: bool) -> Written:
    """Convert all jobs and publish the data set, or raise one error that lists every problem, with
    nothing written.
    """
    if processes < 1:
        raise LabelSetError(f"-np {processes}: expected 1 or more")
    with staged(target, (path for job in made.jobs for path in job.inputs)) as staging:
        return _write(target, Records(staging), made, processes, skip_bad_cases)


def _write(
    target: Target, records: Records, made: Plan, processes: int, skip_bad_cases: bool
) -> Written:
    stopped_before = bool(
        records
    )  # then its finished cases are worth keeping, whatever happens now
    try:
        # A run that cannot succeed any more still looks for all problems, but need not write.
        results, resumed = _convert_all(
            records, made.jobs, processes, write=not made.problems or skip_bad_cases
        )
    except LabelSetError as error:
        if not records:
            raise
        raise LabelSetError(
            f"{error}; what is done is kept: the same command goes on from there"
        ) from None
    bad = [
        *made.problems,
        *((job.case, text) for job in made.jobs for text in results[job.case].problems),
    ]
    skipped = {case for case, _ in bad}
    good = [job for job in made.jobs if job.case not in skipped]
    failure = ""
    if bad and not skip_bad_cases:
        failure = (
            _list_problems(bad) + "\nNothing was written; --skip-bad-cases leaves these cases out."
        )
    elif not any(job.part == TRAINING for job in good):
        failure = "no training case is left" + (": " + _list_problems(bad) if bad else "")
    if failure:
        if not stopped_before:
            records.path.unlink(missing_ok=True)
        raise LabelSetError(failure)
    contract = _contract(made.labels, good, results)
    notes = [(job.case, note) for job in good for note in results[job.case].notes]
    write_notes(target.staging / NOTES, notes)
    num_training = sum(job.part == TRAINING for job in good)
    layout = new_dataset_json(target.folder.name, made.channels, num_training, good[0].ending)
    dataset_json = {**layout, **contract.to_dataset_json()}
    kept = publish(
        target,
        {name for job in good for name in output_names(job, results[job.case])},
        dataset_json,
    )
    texts = list(dict.fromkeys(text for _, text in bad))
    return Written(contract, {job.case: job for job in good}, texts, notes, resumed, kept)


def _convert_all(
    records: Records, jobs: Sequence[CaseJob], processes: int, write: bool
) -> tuple[dict[str, CaseResult], int]:
    results = records.recall(jobs)
    resumed = len(results)
    todo = [job for job in jobs if job.case not in results]
    if write:
        records.forget(todo)
    work = partial(convert_and_record, folder=records.folder, write=write)
    for job, (result, record) in map_parallel(
        work, todo, processes, "converting" if write else "checking"
    ):
        results[job.case] = result
        if record:
            records.add(record)
    return results, resumed


def _contract(
    labels: Contract, jobs: Sequence[CaseJob], results: dict[str, CaseResult]
) -> Contract:
    """Equal protocols of a source get one name; a source with several gets them numbered, most
    annotated first.
    """
    has_ignore = any(results[job.case].uses_ignore for job in jobs)
    of_case = {
        job.case: (job.source, sets if has_ignore else sets[:-1])
        for job in jobs
        if (sets := results[job.case].sets) is not None
    }
    by_source: dict[str, set[tuple[LabelSet, ...]]] = {}
    for source, sets in of_case.values():
        by_source.setdefault(source, set()).add(sets)
    names: dict[tuple[str, tuple[LabelSet, ...]], str] = {}
    for source, protocols in by_source.items():
        ordered = sorted(
            protocols, key=lambda sets: (sum(map(len, sets)), [sorted(leaves) for leaves in sets])
        )
        for number, protocol in enumerate(ordered, start=1):
            names[source, protocol] = source if len(ordered) == 1 else f"{source}_{number}"
    if len(set(names.values())) != len(
        names
    ):  # a source 'a' with two protocols beside a source 'a_1'
        names = {key: f"{key[0]}_protocol_{number}" for number, key in enumerate(names)}
    vouched: dict[str, LabelSet] = {}
    for case, key in of_case.items():
        single = frozenset().union(*(leaves for leaves in key[1] if len(leaves) == 1))
        uncertain = Protocol(key[1], labels.num_leaves).uncertain
        disputed = results[case].vouched & single & uncertain
        vouched[names[key]] = vouched.get(names[key], disputed) & disputed
    return replace(
        labels,
        protocols={
            name: Protocol(sets, labels.num_leaves, vouched.get(name, frozenset()))
            for (_, sets), name in names.items()
        },
        cases={case: names[key] for case, key in of_case.items()},
        has_ignore=has_ignore,
    )


def _list_problems(problems: Sequence[tuple[str, str]]) -> str:
    texts = list(dict.fromkeys(text for _, text in problems))
    return f"{len(texts)} problem(s):\n" + "\n".join(f"  {text}" for text in texts)
