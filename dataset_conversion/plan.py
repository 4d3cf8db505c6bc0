"""From sources and case lists to one job per case, with everything that can be checked before reading volumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.dataset_conversion.job import CaseJob
from nnunet_labelset.dataset_conversion.meaning import Scheme
from nnunet_labelset.dataset_conversion.sources.case_list import Row, read_case_list
from nnunet_labelset.dataset_conversion.sources.manifest import LABELLED, Source
from nnunet_labelset.dataset_conversion.sources.patterns import find_cases
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import check_name
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.raw import TRAINING

Rows = Mapping[tuple[str | None, str], Row]


@dataclass(frozen=True)
class Options:
    """What the user chose for the whole run."""

    leaves: tuple[str, ...]
    channels: tuple[str, ...]
    infer_annotated: bool = False
    withhold: LabelSet = frozenset()
    withhold_in: tuple[str, ...] = ("*",)  # names or patterns of sources or cases
    mask_images: float | None = None
    link: bool = False
    prefix: bool = False


@dataclass
class Plan:
    """Jobs, problems by case (a problem without job is a case that cannot be converted at all) and notes by case."""

    jobs: list[CaseJob] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)


def plan(sources: Sequence[Source], rows: Rows, options: Options, other_sources: Iterable[str] = ()) -> Plan:
    """One job for every case of every source; problems are collected, not raised.

    Rows may be about `other_sources`, which are not converted now.
    """
    made = Plan()
    used: set[tuple[str | None, str]] = set()
    seen: dict[str, str] = {}
    for source in sources:
        prefix = source.prefix or (f"{source.name}_" if options.prefix else "")
        where = f"{source.name} ({source.folder or source.cases})"
        undeclared: list[str] = []
        for found_case, found in _files(source, prefix, options, made).items():
            case = prefix + found_case
            keys = [(name, key) for name in (source.name, None) for key in (case, found_case)]
            key = next((key for key in keys if key in rows), None)
            row = rows[key] if key else found.get("row")
            if key:
                used.add(key)
            try:
                check_name(case, f"{where}: case")
                # Names that differ only in case are one file on some systems.
                if case.lower() in seen:
                    other = seen[case.lower()]
                    raise LabelSetError(
                        f"{where}: case '{case}' is also in {other}: give one source a prefix (--prefix)"
                    )
                seen[case.lower()] = where
                if source.varies and not options.infer_annotated and (row is None or row.annotated is None):
                    undeclared.append(case)
                made.jobs.append(_job(case, source, found, row, where, options))
            except LabelSetError as error:
                made.problems.append((case, str(error)))
        if undeclared:
            leaves = some((options.leaves[leaf] for leaf in sorted(source.varies)), 3)
            text = (
                f"{where}: nothing says whether {leaves} is annotated in {some(undeclared)}: "
                f"list the cases with --annotated FILE.csv, or read it off their values with --infer-annotated"
            )
            made.problems += [(case, text) for case in undeclared]
    names = {source.name for source in sources}
    known = names.union(other_sources)
    for key, row in rows.items():
        if row.source is not None and row.source not in known:
            hint = did_you_mean(row.source, sorted(known))
            made.problems.append((row.case, f"{row.where}: no such source: '{row.source}'{hint}"))
        elif key not in used and (row.source is None or row.source in names):
            hint = did_you_mean(row.case, [job.case for job in made.jobs])
            made.problems.append(
                (row.case, f"{row.where}: no source has a case '{row.case}'{hint if 'did' in hint else ''}")
            )
    if options.withhold:
        for pattern in options.withhold_in:
            if not any(_matches(pattern, job.case, job.source) for job in made.jobs):
                raise LabelSetError(f"--withhold-in {pattern}: no such source or case{did_you_mean(pattern, names)}")
    return made


def _files(source: Source, prefix: str, options: Options, made: Plan) -> dict[str, dict]:
    """The chosen file of every role ("image:T2w", "label", "label:liver", "mask") by case."""
    if source.cases is not None:
        rows = read_case_list(source.cases, options.leaves, options.channels, source.folder)
        return {row.case: {**row.files, "row": row} for row in rows.values()}
    assert source.folder is not None
    roles = {f"image:{channel}": patterns for channel, patterns in source.images.items()}
    roles["label"] = source.label
    if source.mask and source.mask != (LABELLED,):
        roles["mask"] = source.mask
    cases = find_cases(source.folder, roles, source.case, source.exclude)
    if not cases:
        examples = some(next(iter(patterns)) for patterns in roles.values())
        raise LabelSetError(f"{source.folder}: no case of source '{source.name}' found: expected files like {examples}")
    chosen: dict[str, dict] = {}
    for case, found in cases.items():
        chosen[case] = {}
        for role, groups in found.items():
            if len(groups[0]) > 1:
                made.problems.append((prefix + case, f"several files for {role} of case '{case}': {some(groups[0])}"))
            elif len(groups) > 1:
                made.notes.append((prefix + case, f"several files for {role.split(':')[0]}, the preferred one taken"))
            chosen[case][role] = groups[0][0]
    return chosen


def _job(case: str, source: Source, found: dict, row: Row | None, where: str, options: Options) -> CaseJob:
    part = (row.part if row else None) or source.part
    images = [found.get(f"image:{channel}") for channel in options.channels]
    for channel, image in zip(options.channels, images, strict=True):
        if image is None:
            patterns = some(source.images.get(channel, ("the column image",)))
            raise LabelSetError(f"{where}: case '{case}': no image ({channel}): looked for {patterns}")
    annotated, inferred = source.annotated, frozenset[int]()
    if row is not None and row.annotated is not None:
        annotated = row.annotated
    else:
        inferred = source.varies
    labels, values = _labels(case, source, found, annotated, inferred, part, where)
    chosen = any(_matches(pattern, case, source.name) for pattern in options.withhold_in)
    scheme = Scheme(
        num_leaves=len(options.leaves),
        values=values,
        annotated=annotated,
        inferred=inferred,
        absorbs=source.absorbs,
        withheld=options.withhold if chosen else frozenset(),
        mask=LABELLED if source.mask == (LABELLED,) else "file" if source.mask or "mask" in found else "",
    )
    return CaseJob(
        case,
        source.name,
        part,
        tuple(Path(image) for image in images if image is not None),
        labels,
        found.get("mask"),
        scheme,
        options.leaves,
        source.per_structure,
        source.overlap,
        source.first_volume,
        source.replace_nan,
        options.mask_images,
        options.link,
    )


def _matches(pattern: str, case: str, source: str) -> bool:
    """Whether a pattern of --withhold-in means the case, by its name or that of its source."""
    return fnmatchcase(case, pattern) or fnmatchcase(source, pattern)


def _labels(
    case: str, source: Source, found: dict, annotated: LabelSet | None, inferred: LabelSet, part: str, where: str
) -> tuple[tuple[Path | None, ...], dict[int, LabelSet]]:
    """The label files of a case and what their values mean."""
    if not source.per_structure:
        if "label" not in found and part == TRAINING:
            raise LabelSetError(f"{where}: case '{case}': no label file: looked for {some(source.label)}")
        values = {int(value): labels for value, labels in source.labels.items()}
        return ((found["label"],) if "label" in found else ()), values
    files = tuple(found.get(f"label:{structure}") for structure in source.labels)
    values = dict(enumerate(source.labels.values(), start=1))
    if part != TRAINING and not any(files):
        return (), values
    drawn = annotated if annotated is None else annotated | {0}
    for (structure, labels), path in zip(source.labels.items(), files, strict=True):
        optional = labels <= inferred or (drawn is not None and not labels & drawn)
        if path is None and not (optional and any(files)):
            raise LabelSetError(f"{where}: case '{case}': no label file of structure '{structure}'")
    return files, values
