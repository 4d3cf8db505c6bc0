"""Write a data set from jobs: in parallel, and published only when all is well; and tell what was
written.

A killed run leaves its hidden folder with a record of every finished case; the next run continues
there.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract, Protocol
from nnunet_labelset.dataset_conversion.addition import (
    ConvertedDataset,
    joined,
    new_cases,
    read_converted,
)
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseResult, Renamed
from nnunet_labelset.dataset_conversion.notes import VOLUME, Note
from nnunet_labelset.dataset_conversion.plan import Plan
from nnunet_labelset.dataset_conversion.records import (
    Records,
    convert_and_record,
    origin_of,
    output_names,
    provenance_text,
)
from nnunet_labelset.datasets.annotate.declaration import protocol_name
from nnunet_labelset.datasets.coverage import coverage_table, describe_label_sets, format_table
from nnunet_labelset.datasets.normalisation import find_labelled_air
from nnunet_labelset.datasets.slips import find_slips
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_text
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.tables import csv_text
from nnunet_labelset.io.text import some, variants
from nnunet_labelset.nnunet.folders import preprocessed_copy
from nnunet_labelset.nnunet.names import (
    CHANNELS,
    DEFAULT_CONFIGURATION,
    FILE_ENDING,
    FLAT_CONFIGURATION,
    NUM_TRAINING,
    RAW,
    dataset_words,
)
from nnunet_labelset.nnunet.publish import (
    NOTES,
    PROVENANCE,
    RENAMED,
    Target,
    link_cases,
    publish,
    staged,
)
from nnunet_labelset.nnunet.raw import TEST, TRAINING, check_unchanged
from nnunet_labelset.nnunet.recommendation import next_commands

MOST_LINES = 10  # of one kind; the table has them all
NOTE_COLUMNS = ("case", "note", "about", "detail")


@dataclass
class Written:
    """The data set that a run has written; `parts` and `groups` are about all of its cases."""

    contract: Contract
    parts: dict[str, str]
    groups: dict[str, str]  # the source of a case
    added: list[str]  # cases that this run has converted
    skipped: list[str]
    notes: list[tuple[str, Note]]  # case, what was noticed
    slips: list[str]
    resumed: int
    kept: list[str]  # files of the data set that was replaced
    is_flat: bool = False  # nnU-Net plans the configuration 2d only


def write_dataset(target: Target, plan: Plan, processes: int, skip_bad_cases: bool) -> Written:
    """Convert all jobs and publish the data set, or add the new ones of them to it.

    If there are problems, one error lists all of them and nothing is written.
    """
    if processes < 1:
        raise LabelSetError(f"-np {processes}: expected 1 or more")
    with staged(target, (path for job in plan.jobs for path in job.inputs)) as staging:
        before = None
        if target.adds:
            before = read_converted(target.folder)
            plan = new_cases(before, plan, processes)
        records = Records(staging)
        was_stopped = bool(records)  # then its finished cases are worth keeping
        # A run that cannot succeed any more still looks for all problems, but need not write.
        writes = not plan.problems or skip_bad_cases
        results, resumed = _convert_all(records, plan.jobs, processes, writes)
        problems = [*plan.problems, *_problems(plan.jobs, results)]
        good_jobs = _without_problems(plan.jobs, problems)
        if failure := failure_text(problems, good_jobs, skip_bad_cases, before is not None):
            if not was_stopped:
                records.path.unlink(missing_ok=True)
            raise LabelSetError(failure)
        for folder, dataset_json in plan.inputs.items():
            check_unchanged(folder, dataset_json)
        written = _summary(plan.labels, good_jobs, results, before)
        written.skipped = _texts(problems)
        written.resumed = resumed
        if written.added or before is None:
            written.kept = _publish(target, plan, good_jobs, results, written, before)
        return written


def _without_problems(
    jobs: Iterable[CaseJob], problems: Iterable[tuple[str, str]]
) -> list[CaseJob]:
    skipped = {case for case, _ in problems}
    return [job for job in jobs if job.case not in skipped]


def _summary(
    labels: Contract,
    jobs: Sequence[CaseJob],
    results: Mapping[str, CaseResult],
    before: ConvertedDataset | None,
) -> Written:
    """Return what the data set will be, together with the cases that were there before."""
    contract = _contract(labels, jobs, results)
    parts = {job.case: job.part for job in jobs}
    groups = {job.case: job.source for job in jobs}
    images = {job.case: results[job.case].checksums[str(job.inputs[0])] for job in jobs}
    values = {job.case: results[job.case].values for job in jobs}
    if before is not None:
        contract = joined(before.contract, contract, groups)
        parts = {**before.parts, **parts}
        groups = {**before.groups, **groups}
        images = {**before.first_images, **images}
    training = [case for case, part in parts.items() if part == TRAINING]
    return Written(
        contract=contract,
        parts=parts,
        groups=groups,
        added=[job.case for job in jobs],
        skipped=[],
        notes=_notes(jobs, results),
        slips=[*find_slips(contract, training, values, images), *_air(training, results)],
        resumed=0,
        kept=[],
        is_flat=_plans_flat(jobs, results),
    )


def _notes(jobs: Iterable[CaseJob], results: Mapping[str, CaseResult]) -> list[tuple[str, Note]]:
    return [(job.case, note) for job in jobs for note in results[job.case].notes]


def _air(cases: Iterable[str], results: Mapping[str, CaseResult]) -> Iterator[str]:
    """Yield warnings about air in those of the cases that this run has read."""
    return find_labelled_air({case: results[case].air for case in cases if case in results})


def _plans_flat(jobs: Iterable[CaseJob], results: Mapping[str, CaseResult]) -> bool:
    """Tell whether the median training image has one slice: then nnU-Net plans no 3D network."""
    flat = [results[job.case].is_flat for job in jobs if job.part == TRAINING]
    return sum(flat) > len(flat) / 2


def _publish(
    target: Target,
    plan: Plan,
    jobs: Sequence[CaseJob],
    results: Mapping[str, CaseResult],
    written: Written,
    before: ConvertedDataset | None,
) -> list[str]:
    """Write what is about all cases, and publish; returns what was kept of the old data set."""
    origins = {job.case: origin_of(job, results[job.case]) for job in jobs}
    files = [name for job in jobs for name in output_names(job, results[job.case])]
    ending = jobs[0].ending
    content = _new_dataset_json(target.folder.name, plan.channels, ending)
    if before is not None:
        origins = {**before.origins, **origins}
        files += link_cases(target, files)
        content = dict(before.dataset_json)
    content[NUM_TRAINING] = list(written.parts.values()).count(TRAINING)
    content |= written.contract.to_dataset_json()
    write_text(target.staging / PROVENANCE, provenance_text(origins))
    tables = {
        NOTES: csv_text(NOTE_COLUMNS, [(case, *note) for case, note in written.notes]),
        RENAMED: csv_text(Renamed._fields, plan.renamed),
    }
    for name, text in tables.items():
        _write_table(target, name, text)
    return publish(target, files, content)


def _new_dataset_json(name: str, channels: Sequence[str], ending: str) -> dict[str, Any]:
    """Return what dataset.json says beside the labels and the number of cases."""
    return {
        CHANNELS: {str(number): channel for number, channel in enumerate(channels)},
        NUM_TRAINING: 0,
        FILE_ENDING: ending,
        "name": name,
    }


def _write_table(target: Target, name: str, text: str) -> None:
    """Write a table, after the lines that the data set has already; no lines, no file."""
    earlier = target.place / name
    if target.adds and earlier.is_file():
        text = earlier.read_text(encoding="utf-8") + text.partition("\n")[2]
    target.staging.joinpath(name).unlink(missing_ok=True)
    if text.count("\n") > 1:
        write_text(target.staging / name, text)


def _problems(jobs: Iterable[CaseJob], results: Mapping[str, CaseResult]) -> list[tuple[str, str]]:
    return [(job.case, text) for job in jobs for text in results[job.case].problems]


def failure_text(
    problems: Sequence[tuple[str, str]],
    good_jobs: Sequence[CaseJob],
    skip_bad_cases: bool,
    has_cases: bool,
) -> str:
    """Return why nothing can be written, or an empty text."""
    texts = _texts(problems)
    listed = f"{len(texts)} problem(s):\n" + "\n".join(f"  {text}" for text in texts)
    if problems and not skip_bad_cases:
        return f"{listed}\nNothing was written; --skip-bad-cases leaves these cases out."
    if has_cases or any(job.part == TRAINING for job in good_jobs):
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
    sources = {job.case: job.source for job in jobs}
    names = _protocol_names(labels, _by_source(known, sources))
    return replace(
        labels,
        protocols={name: protocol for (_, protocol), name in names.items()},
        cases={case: names[sources[case], protocol] for case, protocol in known.items()},
        has_ignore=has_ignore,
    )


def _by_source(
    protocols: Mapping[str, Protocol], sources: Mapping[str, str]
) -> dict[str, set[Protocol]]:
    by_source: dict[str, set[Protocol]] = {}
    for case, protocol in protocols.items():
        by_source.setdefault(sources[case], set()).add(protocol)
    return by_source


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
            # Taken: the same gaps, stored in another way.
            name = next(word for word in variants(name) if word not in names.values())
            names[source, protocol] = name
    return names


def _order(protocol: Protocol) -> tuple[int, list[list[int]], list[int], bool]:
    sets = [sorted(leaves) for leaves in protocol.sets]
    return sum(map(len, sets)), sets, sorted(protocol.vouched), protocol.states_ignore


def closing_words(written: Written, folder: Path, remarks: Sequence[str] = ()) -> str:
    """Return what was written, what was noticed, the coverage table and the next commands."""
    if not written.added:
        lines = [f"{folder}: nothing to add", *_counts(written, folder)]
        return "\n".join(lines)
    number, _ = dataset_words(folder.name) or (folder.name, "")
    lines = [*_counts(written, folder), *_notices(written, folder, remarks)]
    lines += ["", _coverage(written).rstrip(), "", "next:"]
    if os.path.realpath(os.environ.get(RAW, "")) != os.path.realpath(folder.parent):
        lines.append(f"  export {RAW}={shlex.quote(str(folder.parent.resolve()))}")
    names = written.contract.leaf_names
    first = FLAT_CONFIGURATION if written.is_flat else DEFAULT_CONFIGURATION
    return "\n".join([*lines, *next_commands(number, folder, names, configuration=first)])


def _counts(written: Written, folder: Path) -> Iterator[str]:
    parts = list(written.parts.values())
    yield f"{folder}: {parts.count(TRAINING)} training and {parts.count(TEST)} test cases"
    if 0 < len(written.added) < len(parts):
        yield f"{len(written.added)} of them are new, the others stay as they were"
    if written.resumed:
        yield f"{written.resumed} of them were finished by an earlier run that was interrupted"
    yield from (f"skipped: {text}" for text in written.skipped)


def _notices(written: Written, folder: Path, remarks: Sequence[str]) -> Iterator[str]:
    yield from (f"note: {text}" for text in remarks)
    if len(written.added) < len(written.parts) and preprocessed_copy(folder) is not None:
        yield (
            "note: nnU-Net has preprocessed this data set without the new cases, and its folds do "
            "not have them: preprocess again and make new splits (splits --overwrite)"
        )
    if written.kept:
        yield f"note: kept from the data set that was replaced: {some(written.kept)}"
    yield from note_lines(written.notes)
    yield from (f"note: {text}" for text in written.slips)
    if written.notes:
        yield f"note: all notes, case by case: {folder / NOTES}"
    unlabelled = [case for case in written.parts if case not in written.contract.cases]
    if unlabelled:
        yield f"note: test cases without label map: {some(unlabelled)}"


def note_lines(notes: Iterable[tuple[str, Note]]) -> list[str]:
    """Return notes by kind and by what they are about, the most frequent first."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for case, note in notes:
        if note.kind == VOLUME:
            continue
        cases = kinds.setdefault(note.kind, {}).setdefault(note.about, [])
        cases.append(f"{note.detail} in {case}" if note.detail else case)
    lines = []
    for kind, things in kinds.items():
        ordered = sorted(things.items(), key=lambda item: -len(item[1]))
        for about, cases in ordered[:MOST_LINES]:
            lines.append(
                f"note: {kind}{': ' + about if about else ''}: {some(dict.fromkeys(cases))}"
            )
        if len(ordered) > MOST_LINES:
            lines.append(f"note: {kind}: {len(ordered) - MOST_LINES} more, see {NOTES}")
    return lines


def _coverage(written: Written) -> str:
    """Return in how many cases of each source every label is annotated, and the label-sets."""
    has_few = len(set(written.groups.values())) <= MOST_LINES
    groups = written.groups if has_few else dict.fromkeys(written.groups, "all sources")
    rows = []
    for part in (TRAINING, TEST):
        cases = [case for case in written.contract.cases if written.parts[case] == part]
        rows += coverage_table(written.contract, cases, groups, part) if cases else []
    sets = describe_label_sets(written.contract).splitlines()
    if len(sets) > 2 * MOST_LINES:
        sets[MOST_LINES:] = [f"  ... ({len(sets) - MOST_LINES} more: nnunet_labelset coverage)"]
    return "in how many cases each label is annotated:\n" + format_table(rows) + "\n".join(sets)
