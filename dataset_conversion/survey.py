"""What a conversion would find, before any volume is read or written (`convert --dry-run`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from nnunet_labelset.contract import Contract, LabelSet
from nnunet_labelset.dataset_conversion.dataset import note_lines
from nnunet_labelset.dataset_conversion.job import CaseJob
from nnunet_labelset.dataset_conversion.meaning import interpret
from nnunet_labelset.dataset_conversion.plan import Plan
from nnunet_labelset.io.text import some

MOST_NAMES = 20


def survey(plan: Plan) -> str:
    """Return in how many cases each label is annotated, what voxels may be there and why, which
    names matched nothing, and the notes.

    Cases with a problem are named and not counted.
    """
    problematic = dict.fromkeys(case for case, _ in plan.problems)
    good = [job for job in plan.jobs if job.case not in problematic]
    lines = [*_coverage(plan.labels, good), *_names(plan)]
    lines += note_lines((job.case, note) for job in good for note in job.notes)
    if problematic:
        lines.append(f"not counted, because of problems: {some(problematic, MOST_NAMES)}")
    return "\n".join(lines)


def _coverage(labels: Contract, good: Sequence[CaseJob]) -> Iterator[str]:
    for source in dict.fromkeys(job.source for job in good):
        jobs = [job for job in good if job.source == source]
        labelled = [job for job in jobs if job.labels]
        yield f"{source}: {len(jobs)} case(s), {len(jobs) - len(labelled)} of them without labels"
        yield from _labels(labels.leaf_names, labelled)
        yield from _meanings(labels, labelled)


def _meanings(labels: Contract, jobs: Sequence[CaseJob]) -> Iterator[str]:
    """Yield what unlabelled voxels may be, and values of several labels, in which cases and why."""
    groups: dict[str, list[CaseJob]] = defaultdict(list)
    for job in jobs:
        groups[_meaning(labels, job)].append(job)
    for meaning, members in list(groups.items())[:MOST_NAMES]:
        cases = some((job.case for job in members), 3)
        reasons = some(dict.fromkeys(job.reason for job in members), 2)
        yield f"  {meaning}: {cases} ({reasons})"
    if len(groups) > MOST_NAMES:
        yield f"  ... and {len(groups) - MOST_NAMES} more kinds of cases"


def _meaning(labels: Contract, job: CaseJob) -> str:
    meaning = interpret(job.protocol, present=())
    inside, outside = meaning.inside, meaning.label_set_outside
    values = {meaning.label_set(value) for value in job.protocol.values if value in meaning.values}
    if {inside, outside, *values} == {labels.full_set}:
        return "no label is annotated, every voxel may be anything"
    words = f"unlabelled: {labels.words(inside)}"
    if inside != outside:
        words += f" inside the mask, {labels.words(outside)} outside"
    for value in job.protocol.values:
        if value in meaning.values and len(meaning.label_set(value)) > 1:
            name = "structure" if job.per_structure else "value"
            words += f"; {name} {value}: {labels.words(meaning.label_set(value))}"
    return words


def _labels(names: Sequence[str], jobs: Sequence[CaseJob]) -> Iterator[str]:
    """Yield a line for every label: in how many labelled cases of a source it is annotated."""
    counts = Counter(leaf for job in jobs for leaf in _annotated(job))
    varying = frozenset().union(*(job.protocol.varies for job in jobs))
    merged = _merged(jobs)
    for leaf in range(1, len(names)):
        line = f"  {names[leaf]} in {counts[leaf]} of {len(jobs)}"
        if leaf in varying:
            line += ", in others where it occurs"
        if leaf in merged:
            line += f", drawn as one with {some(names[other] for other in merged[leaf])}"
        yield line


def _merged(jobs: Sequence[CaseJob]) -> dict[int, list[int]]:
    """Return the labels that share a value with another one, and with which."""
    merged: dict[int, set[int]] = defaultdict(set)
    for job in jobs:
        for labels in job.protocol.values.values():
            is_merged = 1 < len(labels) < job.protocol.num_leaves
            for leaf in labels if is_merged else ():
                merged[leaf] |= labels - {leaf}
    return {leaf: sorted(others) for leaf, others in merged.items()}


def _annotated(job: CaseJob) -> LabelSet:
    """Return the labels that the case will be counted for, whichever values occur in it."""
    return interpret(job.protocol, present=()).protocol.annotated


def _names(plan: Plan) -> Iterator[str]:
    unmatched = Counter(name for matching in plan.matchings for name in matching.unmatched)
    if unmatched:
        yield f"names that matched nothing: {_counted(unmatched)}"
    absent = Counter(name for matching in plan.matchings for name in matching.absent)
    if absent:
        why = "if a template made them, 'empty_rois = \"unknown\"' says so"
        yield f"ROIs without contours, taken as absent: {_counted(absent)}; {why}"
    undrawn = Counter(name for matching in plan.matchings for name in matching.undrawn)
    if undrawn:
        yield f"ROIs without closed contours, not annotated: {_counted(undrawn)}"
    several = Counter(name for matching in plan.matchings for name in matching.several)
    for name, count in several.items():
        yield f"several structures for '{name}' in {count} case(s)"


def _counted(names: Counter[str]) -> str:
    return some((f"{name} ({count})" for name, count in names.most_common()), MOST_NAMES)
