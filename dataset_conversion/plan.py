"""From sources and case lists to one job per case, with everything that can be checked before
reading volumes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from nnunet_labelset.contract import Contract, LabelSet
from nnunet_labelset.dataset_conversion.job import CaseJob
from nnunet_labelset.dataset_conversion.meaning import Mask, SourceProtocol
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.sources.case_list import Row, read_case_list
from nnunet_labelset.dataset_conversion.sources.manifest import Manifest, Source
from nnunet_labelset.dataset_conversion.sources.patterns import LABEL, MASK, Kind, Role, find_cases
from nnunet_labelset.errors import LabelSetError, did_you_mean, near_miss
from nnunet_labelset.io.files import check_name
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.raw import TRAINING

Rows = Mapping[tuple[str, str], Row]  # by source, which may be empty, and case
RENAME = ": a case list can rename it (--annotated FILE.csv, column 'name')"


@dataclass(frozen=True)
class Options:
    """What the user chose for the whole run; names are those of sources or cases, or patterns."""

    manifest: Manifest
    infer_annotated: bool = False
    fully_annotated: tuple[str, ...] = ()
    withhold: LabelSet = frozenset()
    withhold_in: tuple[str, ...] = ("*",)
    mask_images: float | None = None
    link: bool = False
    prefix: bool = False


@dataclass(frozen=True)
class Found:
    """The files of one case of a source, and the line of its case list, if it has one."""

    files: Mapping[Role, Path]
    row: Row | None = None
    notes: tuple[Note, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass
class Plan:
    """Jobs, and problems by case; a problem without job is a case that cannot be converted at all."""

    labels: Contract  # leaves and regions of the data set
    channels: tuple[str, ...]
    jobs: list[CaseJob] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    places: dict[str, str] = field(
        default_factory=dict
    )  # where each case was found, by its name in small letters

    def add_name(self, case: str, where: str, way_out: str) -> None:
        """Check a name; names that differ only in case are one file on some systems."""
        try:
            check_name(case, f"{where}: case")
        except LabelSetError as error:
            raise LabelSetError(f"{error}{RENAME}") from None
        if case.lower() in self.places:
            raise LabelSetError(
                f"{where}: case '{case}' is also in {self.places[case.lower()]}: {way_out}"
            )
        self.places[case.lower()] = f"{where} as '{case}'"


def plan(
    sources: Sequence[Source], rows: Rows, options: Options, other_sources: Iterable[str] = ()
) -> Plan:
    """One job for every case of every source; problems are collected, not raised.

    Rows may be about `other_sources`, which are not converted now.
    """
    if options.infer_annotated and not any(source.varies for source in sources):
        raise LabelSetError(
            "--infer-annotated: no source has leaves that vary from case to case: name them in the manifest "
            "(varies = [...]), or take the source 'case_folders_partial'"
        )
    leaf_names = options.manifest.leaves
    made = Plan(options.manifest.labels, options.manifest.channels)
    unused = dict(rows)
    for source in sources:
        prefix = source.prefix or (f"{source.name}_" if options.prefix else "")
        where = f"{source.name} ({source.folder or source.cases})"
        undeclared: list[str] = []
        for found_case, found in _find(source, options).items():
            case = prefix + found_case
            keys = [(name, key) for name in (source.name, "") for key in (case, found_case)]
            row = next((rows[key] for key in keys if key in rows), None)
            if row:
                unused.pop((row.source, row.case), None)
            row = row or found.row
            case = row.name if row and row.name else case
            made.problems += [(case, text) for text in found.problems]
            try:
                made.add_name(case, where, f"give one source a prefix (--prefix){RENAME}")
                declared = row is not None and row.annotated is not None
                if source.varies and not (
                    declared or options.infer_annotated or source.per_structure
                ):
                    undeclared.append(case)
                made.jobs.append(_job(case, source, found, row, where, options))
            except LabelSetError as error:
                made.problems.append((case, str(error)))
        if undeclared:
            leaves = some((leaf_names[leaf] for leaf in sorted(source.varies)), 3)
            text = (
                f"{where}: nothing says whether {leaves} is annotated in {some(undeclared)}: "
                f"list the cases with --annotated FILE.csv, or read it off their values with --infer-annotated"
            )
            made.problems += [(case, text) for case in undeclared]
    _check_unused(made, unused.values(), {source.name for source in sources}, other_sources)
    for option, patterns in (
        ("--withhold-in", options.withhold_in if options.withhold else ()),
        ("--fully-annotated", options.fully_annotated),
    ):
        for pattern in patterns:
            if not any(_matches([pattern], job.case, job.source) for job in made.jobs):
                hint = did_you_mean(pattern, {source.name for source in sources})
                raise LabelSetError(f"{option} {pattern}: no such source or case{hint}")
    return made


def _check_unused(
    made: Plan, rows: Iterable[Row], names: set[str], other_sources: Iterable[str]
) -> None:
    """Every line of a case list is about a source and a case that exist; sources that exist may
    wait.
    """
    known = sorted(names.union(other_sources))
    cases = (
        [job.case for job in made.jobs] if len(made.jobs) < 1000 else []
    )  # looking for near misses takes its time
    for row in rows:
        if row.source and row.source not in known:
            hint = did_you_mean(row.source, known)
            made.problems.append((row.case, f"{row.where}: no such source: '{row.source}'{hint}"))
        elif not row.source or row.source in names:
            hint = near_miss(row.case, cases)
            made.problems.append(
                (row.case, f"{row.where}: no source has a case '{row.case}'{hint}")
            )


def _find(source: Source, options: Options) -> dict[str, Found]:
    """The chosen file of every role by case."""
    if source.cases is not None:
        rows = read_case_list(
            source.cases, options.manifest.leaves, options.manifest.channels, source.folder
        )
        return {row.case: Found(row.files, row) for row in rows.values()}
    assert source.folder is not None
    cases = find_cases(source.folder, source.patterns, source.case, source.exclude)
    if not cases:
        examples = some(next(iter(patterns)) for patterns in source.patterns.values())
        raise LabelSetError(
            f"{source.folder}: no case of source '{source.name}' found: expected files like {examples}"
        )
    chosen = {}
    for case, found in cases.items():
        several = [role for role, groups in found.items() if len(groups[0]) > 1]
        preferred = dict.fromkeys(
            role.kind.value for role, groups in found.items() if len(groups) > 1
        )
        chosen[case] = Found(
            {role: groups[0][0] for role, groups in found.items()},
            notes=tuple(Note("several files, the preferred one taken", kind) for kind in preferred),
            problems=tuple(
                f"several files for {role} of case '{case}': {some(found[role][0])}"
                for role in several
            ),
        )
    return chosen


def _job(
    case: str, source: Source, found: Found, row: Row | None, where: str, options: Options
) -> CaseJob:
    leaves, part = options.manifest.leaves, (row.part if row else None) or source.part
    where = f"{where}: case '{case}'"
    images = []
    for channel in options.manifest.channels:
        role = Role(Kind.IMAGE, channel)
        if role not in found.files:
            looked_for = some(source.patterns.get(role, ("the column image",)))
            raise LabelSetError(f"{where}: no image ({channel}): looked for {looked_for}")
        images.append(found.files[role])
    annotated, varies, partly = source.annotated, source.varies, frozenset[int]()
    if row is not None and row.annotated is not None:
        annotated, varies = row.annotated, frozenset()
    elif (
        source.per_structure
    ):  # a file that is there says that somebody looked, even when it is empty
        files = {
            structure: Role(Kind.LABEL, structure) in found.files for structure in source.labels
        }
        drawn = varies & frozenset().union(
            *(sets for name, sets in source.labels.items() if files[name])
        )
        partly = drawn & frozenset().union(
            *(sets for name, sets in source.labels.items() if not files[name])
        )
        annotated |= drawn - partly
    labels = _label_files(source, found, annotated, varies, part, where)
    values = (
        enumerate(source.labels.values(), start=1)
        if source.per_structure
        else source.labels.items()
    )
    protocol = SourceProtocol(
        num_leaves=len(leaves),
        values={int(value): sets for value, sets in values},
        annotated=annotated,
        varies=frozenset() if source.per_structure else varies,
        partly=partly,
        absorbs=source.absorbs,
        withheld=options.withhold
        if _matches(options.withhold_in, case, source.name)
        else frozenset(),
        mask=Mask.FILE if MASK in found.files else source.mask_kind,
    )
    notes = tuple(
        Note("only some structures drawn, not annotated", leaves[leaf]) for leaf in sorted(partly)
    )
    return CaseJob(
        case=case,
        source=source.name,
        part=part,
        images=tuple(images),
        labels=labels,
        mask=found.files.get(MASK),
        protocol=protocol,
        leaves=leaves,
        per_structure=source.per_structure,
        overlap=source.overlap,
        first_volume=source.first_volume,
        replace_nan=source.replace_nan,
        mask_images=options.mask_images,
        fully_annotated=_matches(options.fully_annotated, case, source.name),
        link=options.link,
        notes=found.notes + notes,
    )


def _matches(patterns: Iterable[str], case: str, source: str) -> bool:
    """Whether one of the patterns means the case, by its name or that of its source."""
    return any(fnmatchcase(case, pattern) or fnmatchcase(source, pattern) for pattern in patterns)


def _label_files(
    source: Source, found: Found, annotated: LabelSet, varies: LabelSet, part: str, where: str
) -> tuple[Path | None, ...]:
    """The label file of a case, or its files by structure, None where a structure was not drawn."""
    if not source.per_structure:
        if LABEL not in found.files and part == TRAINING:
            raise LabelSetError(
                f"{where}: no label file: looked for {some(source.patterns.get(LABEL, ('the column label',)))}"
            )
        return (found.files[LABEL],) if LABEL in found.files else ()
    files = tuple(found.files.get(Role(Kind.LABEL, structure)) for structure in source.labels)
    if part != TRAINING and not any(files):
        return ()
    absent = [
        f"'{structure}'"
        for (structure, sets), path in zip(source.labels.items(), files, strict=True)
        if path is None and not (any(files) and (sets <= varies or not sets & (annotated | {0})))
    ]
    if absent:
        hint = (
            ": if it was not drawn in every case, name its leaves in 'varies'" if any(files) else ""
        )
        raise LabelSetError(f"{where}: no label file of structure {', '.join(absent)}{hint}")
    return files
