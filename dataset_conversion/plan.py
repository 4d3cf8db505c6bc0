"""From sources and case lists to one job per case, with all checks that need no volume."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract, LabelSet
from nnunet_labelset.dataset_conversion.job import (
    RENAME,
    CaseJob,
    CaseNames,
    Renamed,
    UnsafeNameError,
    common_ending,
)
from nnunet_labelset.dataset_conversion.meaning import Mask, SourceProtocol
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.regrid import UNKNOWN, Outside
from nnunet_labelset.dataset_conversion.sources.cases import (
    CaseRow,
    CaseRows,
    SourceCase,
    cases_in_folder,
    listed_cases,
)
from nnunet_labelset.dataset_conversion.sources.manifest import (
    ALL_CHANNELS,
    LABEL,
    MASK,
    Kind,
    Manifest,
    Role,
    Source,
)
from nnunet_labelset.dataset_conversion.sources.named_structures import dicom_cases, with_segments
from nnunet_labelset.dataset_conversion.sources.names import Matching
from nnunet_labelset.datasets.normalisation import may_use_mask
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.flat import is_flat, refuse_lossy
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.raw import DEFAULT_ENDING, TRAINING


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
    safe_names: bool = False


@dataclass
class Plan:
    """Jobs, and problems by case; a case that has no job cannot be converted at all."""

    labels: Contract  # leaves and regions of the data set
    channels: tuple[str, ...]
    jobs: list[CaseJob] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)  # cases with a row that says what is annotated
    renamed: list[Renamed] = field(default_factory=list)
    matchings: list[Matching] = field(default_factory=list)  # of names of structures
    # The data sets that are merged, each with the dataset.json that was read.
    inputs: Mapping[Path, Mapping[str, Any]] = field(default_factory=dict)

    def add_problem(self, cases: Iterable[str], text: str) -> None:
        self.problems += [(case, text) for case in cases]


def plan(
    sources: Sequence[Source],
    rows: Mapping[tuple[str, str], CaseRow],
    options: Options,
    other_sources: Iterable[str] = (),
    present: Collection[str] = (),
) -> Plan:
    """Return one job for every case of every source; problems are collected, not raised.

    Rows may be about `other_sources`, which are not converted now. Cases that are `present` in the
    data set need no new declaration.
    """
    if options.infer_annotated and not any(source.varies for source in sources):
        raise LabelSetError(
            "--infer-annotated: no source has labels that vary from case to case: name them in the "
            "manifest (varies = [...]), or use the source 'case_folders_partial'"
        )
    result = Plan(options.manifest.labels, options.manifest.channels)
    case_rows = CaseRows(rows, lost_zeros=options.safe_names)
    names = CaseNames(safe=options.safe_names)
    for source in sources:
        _plan_source(source, result, case_rows, names, options, present)
    result.renamed += names.renamed
    result.problems += case_rows.problems(
        {source.name for source in sources}, set(other_sources), [job.case for job in result.jobs]
    )
    _check_patterns(sources, result, options)
    ending = common_ending(map(_ending, result.jobs))
    result.jobs = [replace(job, ending=ending) for job in result.jobs]
    return result


class _NotDrawnError(LabelSetError):
    """Files of some structures of a case do not exist; told once for all cases of the source."""

    def __init__(self, structures: Sequence[str]) -> None:
        super().__init__(", ".join(structures))
        self.structures = structures


def _ending(job: CaseJob) -> str:
    """Return the ending of a case's images, which are written anew unless they are pictures."""
    return job.images[0].suffix if is_flat(job.images[0]) else DEFAULT_ENDING


def _plan_source(
    source: Source,
    result: Plan,
    rows: CaseRows,
    names: CaseNames,
    options: Options,
    present: Collection[str],
) -> None:
    undeclared = []
    unsafe = []
    not_drawn: dict[str, Sequence[str]] = {}
    for case in _source_cases(source, options.manifest):
        full_name = _prefix(source, options) + case.name
        case = replace(case, row=rows.find(source.name, full_name, case.name) or case.row)
        chosen_name = case.chosen_name or full_name
        try:
            name = names.add(chosen_name, case.where, "give one source a prefix (--prefix)")
        except UnsafeNameError:
            unsafe.append(chosen_name)
            continue
        except LabelSetError as error:
            # Not under its name: another case may have it, and is sound.
            result.problems.append((f"{source.name}/{chosen_name}", str(error)))
            continue
        result.renamed += _renamed_dicom(case, name)
        if _is_undeclared(case, options) and name not in present:
            undeclared.append(name)
        not_drawn |= _plan_case(name, case, result, options)
    if unsafe:
        names_there = [f"{source.name}/{name}" for name in unsafe]
        result.add_problem(names_there, _unsafe_text(source, unsafe))
    leaves = options.manifest.leaves
    if undeclared:
        result.add_problem(undeclared, _undeclared_text(source, undeclared, leaves))
    if not_drawn:
        result.add_problem(not_drawn, _not_drawn_text(source, not_drawn, leaves))


def _renamed_dicom(case: SourceCase, name: str) -> list[Renamed]:
    """Return the case if the attributes that name it cannot be a file name."""
    original = case.dicom.original_name if case.dicom is not None else ""
    return [Renamed(case.where, original, name)] if original not in ("", case.name) else []


def _prefix(source: Source, options: Options) -> str:
    return source.prefix or (f"{source.name}_" if options.prefix else "")


def _plan_case(
    name: str, case: SourceCase, result: Plan, options: Options
) -> dict[str, Sequence[str]]:
    """Add the job of a case to the plan, or what is wrong with it.

    Returns the case with the structures that lack files, if there are any.
    """
    result.problems += [(name, text) for text in case.problems]
    if case.is_declared:
        result.declared.add(name)
    if case.matching is not None:
        result.matchings.append(case.matching)
    if case.problems and case.source.finds_names:  # without structures, no more to say
        return {}
    try:
        job = _job(name, case, options)
        for path in filter(None, (*job.labels, job.mask)):
            refuse_lossy(path)
        result.jobs.append(job)
    except _NotDrawnError as error:
        return {name: error.structures}
    except LabelSetError as error:
        result.problems.append((name, str(error)))
    return {}


def _is_undeclared(case: SourceCase, options: Options) -> bool:
    has_labels = any(role.kind in (Kind.LABEL, Kind.RATER) for role in case.files)
    if not case.source.varies or case.source.per_structure or not has_labels:
        return False
    return not case.is_declared and not options.infer_annotated


def _unsafe_text(source: Source, cases: Sequence[str]) -> str:
    names = some((f"'{case}'" for case in cases), 3)
    return (
        f"{source.name} ({source.folder or source.cases}): case {names}: expected letters, digits, "
        f"'_', '-', '+' and '.', starting with a letter or digit: {RENAME}, or use --safe-names"
    )


def _undeclared_text(source: Source, cases: Sequence[str], leaves: Sequence[str]) -> str:
    labels = some((leaves[leaf] for leaf in sorted(source.varies)), 3)
    return (
        f"{source.name} ({source.folder or source.cases}): nothing says whether {labels} is "
        f"annotated in {some(cases)}: list the cases with --annotated FILE.csv, or infer it from "
        "their values with --infer-annotated"
    )


def _not_drawn_text(
    source: Source, not_drawn: Mapping[str, Sequence[str]], leaves: Sequence[str]
) -> str:
    """Return which structures lack files in which cases, with the line that declares it."""
    cases_by_structure: dict[str, list[str]] = {}
    for case, structures in not_drawn.items():
        for structure in structures:
            cases_by_structure.setdefault(structure, []).append(case)
    gaps = [f"'{name}' in {some(cases, 3)}" for name, cases in cases_by_structure.items()]
    labels = source.varies.union(*(source.labels[name] for name in cases_by_structure)) - {0}
    names = ", ".join(f'"{leaves[leaf]}"' for leaf in sorted(labels))
    return (
        f"{source.name} ({source.folder or source.cases}): no label file of structure "
        f"{'; '.join(gaps)}: if these were not drawn there, put into "
        f"[sources.{source.name}]: varies = [{names}]"
    )


def _check_patterns(sources: Sequence[Source], result: Plan, options: Options) -> None:
    """Fail if a pattern of an option matches neither a source nor a case."""
    names = [source.name for source in sources]
    names += [job.case for job in result.jobs]
    names += [case for case, _ in result.problems]
    for option, patterns in (
        ("--withhold-in", options.withhold_in if options.withhold else ()),
        ("--fully-annotated", options.fully_annotated),
    ):
        for pattern in patterns:
            if not any(_matches([pattern], name) for name in names):
                hint = did_you_mean(pattern, [source.name for source in sources])
                raise LabelSetError(f"{option} {pattern}: no such source or case{hint}")


def _source_cases(source: Source, manifest: Manifest) -> Iterator[SourceCase]:
    if source.dicom is not None:
        yield from dicom_cases(source, manifest)
        return
    cases = cases_in_folder(source) if source.cases is None else listed_cases(source, manifest)
    for case in cases:
        yield case if source.several_segments is None else with_segments(case)


def _job(name: str, case: SourceCase, options: Options) -> CaseJob:
    source, leaves = case.source, options.manifest.leaves
    where = f"{case.where}: case '{name}'"
    protocol = _protocol(name, case, options)
    partly_drawn = (leaves[leaf] for leaf in sorted(protocol.partly))
    notes = tuple(Note("only some structures drawn, not annotated", leaf) for leaf in partly_drawn)
    return CaseJob(
        case=name,
        source=source.name,
        part=case.part,
        images=tuple(_image_files(case, options.manifest.channels, where)),
        labels=_label_files(case, protocol, where),
        mask=case.files.get(MASK),
        protocol=protocol,
        leaves=leaves,
        per_structure=source.per_structure,
        overlap=source.overlap,
        first_volume=source.first_volume,
        replace_nan=source.replace_nan,
        mask_images=options.mask_images,
        fully_annotated=_matches(options.fully_annotated, name, source.name),
        link=options.link,
        looks_for_air=may_use_mask(options.manifest.channels),
        colours=len(options.manifest.channels) if ALL_CHANNELS in case.files else 1,
        notes=case.notes + notes + _rater_notes(case),
        reason=_reason(case, protocol, options),
        dicom=case.dicom.dicom if case.dicom is not None else None,
        segments=_segments(case),
        grid=source.grid,
        raters=_raters(case) > 0,
    )


def _reason(case: SourceCase, protocol: SourceProtocol, options: Options) -> str:
    """Return what says which labels are annotated in a case."""
    if case.row is not None and case.row.annotated is not None:
        reasons = [case.row.where]
    else:
        reasons = [f"source '{case.source.name}'"]
        if case.source.per_structure:
            reasons.append("the structures that have a file")
        elif case.source.varies:
            reasons.append("labels that occur (--infer-annotated)")
    if protocol.withheld:
        withheld = sorted(options.manifest.leaves[leaf] for leaf in protocol.withheld)
        reasons.append(f"--withhold {some(withheld)}")
    if MASK in case.files:
        reasons.append(f"mask {case.files[MASK]}")
    return "; ".join(reasons)


def _segments(case: SourceCase) -> Mapping[int, tuple[str, ...]] | None:
    is_slicer = case.source.several_segments is not None and case.matching is not None
    return case.matching.structures if is_slicer and case.matching is not None else None


def _raters(case: SourceCase) -> int:
    """Return how many raters have a pattern in the source."""
    return sum(role.kind is Kind.RATER for role in case.source.patterns)


def _rater_notes(case: SourceCase) -> tuple[Note, ...]:
    files = sum(role.kind is Kind.RATER for role in case.files)
    if files in (0, _raters(case)):
        return ()
    return (Note("fewer raters", f"{files} of {_raters(case)}"),)


def _image_files(case: SourceCase, channels: Iterable[str], where: str) -> Iterator[Path]:
    if ALL_CHANNELS in case.files:
        yield case.files[ALL_CHANNELS]
        return
    for channel in channels:
        role = Role(Kind.IMAGE, channel)
        if role not in case.files:
            looked_for = some(case.source.patterns.get(role, ("the column image",)))
            raise LabelSetError(f"{where}: no image ({channel}): looked for {looked_for}")
        yield case.files[role]


def _protocol(name: str, case: SourceCase, options: Options) -> SourceProtocol:
    """Return how the case was annotated: by its row, by its files, or as its source says."""
    source = case.source
    annotated = source.annotated
    varies = source.varies
    partly = frozenset[int]()
    if case.row is not None and case.row.annotated is not None:
        annotated = case.row.annotated
        varies = frozenset()
    elif source.per_structure:
        drawn, partly = _drawn_structures(case)
        annotated |= drawn
    values = source.labels.items()
    if source.per_structure:
        values = {str(number): s for number, s in enumerate(source.labels.values(), 1)}.items()
    numbers = {int(value): labels for value, labels in values}
    if source.grid.outside is Outside.UNKNOWN:
        numbers[UNKNOWN] = frozenset(range(len(options.manifest.leaves)))
    is_withheld = _matches(options.withhold_in, name, source.name)
    return SourceProtocol(
        num_leaves=len(options.manifest.leaves),
        values=numbers,
        annotated=annotated,
        varies=frozenset() if source.per_structure else varies,
        partly=partly,
        absorbs=source.absorbs,
        withheld=options.withhold if is_withheld else frozenset(),
        mask=_mask_kind(case),
    )


def _mask_kind(case: SourceCase) -> Mask:
    if MASK not in case.files:
        return case.source.mask_kind
    return Mask.FILE if case.dicom is None else Mask.BODY


def _drawn_structures(case: SourceCase) -> tuple[LabelSet, LabelSet]:
    """Return the varying leaves that were drawn, and those of which only some files exist.

    A file that exists says that somebody looked, even if it is empty.
    """
    present, absent = frozenset[int](), frozenset[int]()
    for structure, labels in case.source.labels.items():
        if Role(Kind.LABEL, structure) in case.files:
            present |= labels
        else:
            absent |= labels
    drawn = case.source.varies & present
    return drawn - absent, drawn & absent


def _matches(patterns: Iterable[str], *names: str) -> bool:
    """Tell whether one of the patterns means one of the names: a case, or its source."""
    return any(
        name == pattern or fnmatchcase(name, pattern) for pattern in patterns for name in names
    )


def _label_files(case: SourceCase, protocol: SourceProtocol, where: str) -> tuple[Path | None, ...]:
    """Return the label file of a case, or its files by structure, None if one was not drawn."""
    source = case.source
    if source.per_structure:
        return _structure_files(case, protocol, where)
    if LABEL in case.files:
        return (case.files[LABEL],)
    rated = tuple(path for role, path in case.files.items() if role.kind is Kind.RATER)
    if rated:
        return rated
    if case.part == TRAINING:
        looked_for = some(_label_patterns(source) or ["the column label"])
        raise LabelSetError(
            f"{where}: no label file: looked for {looked_for} (only test cases may lack one: see "
            "the column 'part' and --test-source)"
        )
    return ()


def _label_patterns(source: Source) -> list[str]:
    patterns: list[str] = []
    for role, texts in source.patterns.items():
        patterns += texts if role.kind in (Kind.LABEL, Kind.RATER) else ()
    return patterns


def _needed_structures(case: SourceCase, protocol: SourceProtocol) -> list[str]:
    """Return the structures without which a case is not what it was declared to be."""
    varies = frozenset[int]() if case.is_declared else case.source.varies
    expected = protocol.annotated | {0}
    return [
        structure
        for structure, labels in case.source.labels.items()
        if labels & expected and not labels <= varies
    ]


def _structure_files(
    case: SourceCase, protocol: SourceProtocol, where: str
) -> tuple[Path | None, ...]:
    structures = case.source.labels
    files = {structure: case.files.get(Role(Kind.LABEL, structure)) for structure in structures}
    if not any(files.values()):
        if case.part != TRAINING:
            return ()
        raise LabelSetError(f"{where}: {_nothing_drawn(case)}")
    needed = _needed_structures(case, protocol)
    absent = [structure for structure in needed if files[structure] is None]
    if absent and not case.is_declared:
        raise _NotDrawnError(absent)
    if absent:
        raise LabelSetError(f"{where}: no label file of structure {_quoted(absent)}")
    return tuple(files.values())


def _nothing_drawn(case: SourceCase) -> str:
    """Return what is missing in a case without any structure."""
    if case.source.several_segments is not None:
        return f"no label file: looked for {some(_label_patterns(case.source))}"
    if case.dicom is not None:
        return "no structure set or segmentation refers to its image"
    return f"no label file of structure {_quoted(case.source.labels)}"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
