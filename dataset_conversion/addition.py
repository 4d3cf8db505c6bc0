"""New cases for a data set that exists (`convert --add`): what is there stays as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract, Protocol
from nnunet_labelset.contract.completed import COMPLETED
from nnunet_labelset.dataset_conversion.job import CaseJob
from nnunet_labelset.dataset_conversion.plan import Plan
from nnunet_labelset.dataset_conversion.records import Origin, read_origin, read_provenance
from nnunet_labelset.datasets.annotate.declaration import protocol_name
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.text import some, variants
from nnunet_labelset.nnunet.names import DATASET, LISTED
from nnunet_labelset.nnunet.publish import PROVENANCE
from nnunet_labelset.nnunet.raw import (
    BEFORE_ANNOTATE,
    channel_names,
    file_ending,
    raw_cases,
    read_dataset,
)

AGAIN = "convert all cases again (--overwrite)"


@dataclass(frozen=True)
class ConvertedDataset:
    """A data set that `convert` has written: its cases by part, and where they come from."""

    folder: Path
    dataset_json: Mapping[str, Any]
    contract: Contract
    parts: Mapping[str, str]
    origins: Mapping[str, Origin]

    @property
    def groups(self) -> dict[str, str]:
        """The source of every labelled case."""
        return {case: name.partition(":")[0] for case, name in self.contract.cases.items()}

    @property
    def first_images(self) -> dict[str, str]:
        """The checksum of the first image of every case."""
        return {case: origin.first_image for case, origin in self.origins.items()}


def read_converted(folder: Path) -> ConvertedDataset:
    """Return a data set that can be extended; anything else is an error."""
    if not folder.is_dir():
        raise LabelSetError(f"--add: {folder} does not exist: leave --add out to write it")
    dataset_json, contract = read_dataset(folder)
    for problem in _obstacles(folder, dataset_json):
        raise LabelSetError(f"--add: {problem}")
    parts = {case.name: case.part for case in raw_cases(folder, dataset_json)}
    return ConvertedDataset(
        folder=folder,
        dataset_json=dataset_json,
        contract=contract,
        parts=parts,
        origins=read_provenance(folder / PROVENANCE),
    )


def _obstacles(folder: Path, dataset_json: Mapping[str, Any]) -> Iterator[str]:
    if LISTED in dataset_json or COMPLETED in dataset_json:
        yield f"{folder / DATASET} lists files of another data set: add the cases to that one"
    if not (folder / PROVENANCE).is_file():
        yield (
            f"{folder} has no {PROVENANCE}, so nothing says where its cases come from: {AGAIN}; or "
            f"copy the new files into its folders and declare them with 'annotate --add'"
        )
    if (folder / BEFORE_ANNOTATE).exists():
        yield (
            f"{folder} was changed by 'annotate': undo that first (annotate --undo), or "
            f"convert the new cases into a separate data set and merge the two"
        )
    for path in folder.glob("*s[TC]*"):
        if path.is_symlink():
            yield f"{path} is a link: the new cases would be written there: copy the folder first"


def check_same_labels(data: ConvertedDataset, plan: Plan) -> None:
    """Fail if the manifest has other labels, regions or channels than the data set."""
    facts = {
        "labels": (data.contract.leaf_names, plan.labels.leaf_names),
        "regions": (data.contract.regions, plan.labels.regions),
        "regions_class_order": (
            data.contract.regions_class_order,
            plan.labels.regions_class_order,
        ),
        "channels": (channel_names(data.dataset_json), plan.channels),
        "kinds of files": (
            (file_ending(data.dataset_json),),
            tuple({job.ending for job in plan.jobs}) or (file_ending(data.dataset_json),),
        ),
    }
    for what, (before, now) in facts.items():
        if before != now:
            raise LabelSetError(
                f"--add: the manifest has other {what} than {data.folder}: {_listed(now)} instead "
                f"of {_listed(before)}: {AGAIN}"
            )


def _listed(value: object) -> str:
    return some(value, 12) if isinstance(value, tuple) else str(value)


def new_cases(data: ConvertedDataset, plan: Plan, processes: int) -> Plan:
    """Return the plan of the cases that are not in the data set yet.

    A case that is there must be made from the same files, by the same rules: else it is a problem.
    """
    check_same_labels(data, plan)
    present = [job for job in plan.jobs if job.case in data.parts]
    problems = list(plan.problems)
    for job, origin in map_parallel(_try_origin, present, processes, "comparing"):
        before = data.origins.get(job.case)
        for text in _differences(job, before, origin, job.case in plan.declared):
            problems.append((job.case, text))
    jobs = [job for job in plan.jobs if job.case not in data.parts]
    problems += _same_but_for_capitals(data, jobs)
    added = {job.case for job in jobs}
    renamed = [entry for entry in plan.renamed if entry.new in added]
    return replace(plan, jobs=jobs, problems=problems, renamed=renamed)


def _same_but_for_capitals(
    data: ConvertedDataset, jobs: Iterable[CaseJob]
) -> Iterator[tuple[str, str]]:
    names = {name.lower(): name for name in data.parts}
    for job in jobs:
        other = names.get(job.case.lower())
        if other is not None:
            text = f"case '{job.case}' and '{other}' of {data.folder} differ by capitals only"
            yield job.case, text


def _try_origin(job: CaseJob) -> Origin | str:
    try:
        return read_origin(job)
    except OSError as error:
        return f"{error.filename}: not readable: {error.strerror}"


def _differences(
    job: CaseJob, before: Origin | None, now: Origin | str, is_declared: bool
) -> Iterator[str]:
    """Yield how a case differs from the one of this name in the data set."""
    if isinstance(now, str):
        yield now
    elif before is None:
        yield f"case '{job.case}' is in the data set, but {PROVENANCE} does not list it: {AGAIN}"
    elif list(before.checksums.values()) != list(now.checksums.values()):
        yield _other_files(job, before.checksums, now.checksums)
    elif before.rules != now.rules:
        yield (
            f"case '{job.case}': the manifest or options that apply to it have changed "
            f"since it was converted: --add leaves existing cases unchanged: {AGAIN}"
        )
    elif is_declared and before.annotated != now.annotated:
        yield (
            f"case '{job.case}': the table says that {now.annotated or 'nothing'} is annotated, "
            f"but it was converted with {before.annotated or 'nothing'}: {AGAIN}"
        )


def _other_files(job: CaseJob, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    changed = [file for file in now if file in before and before[file] != now[file]]
    if changed:
        return f"{changed[0]}: has changed since case '{job.case}' was converted: {AGAIN}"
    if before.keys() & now.keys():
        other = sorted(before.keys() ^ now.keys())
        return (
            f"case '{job.case}' has other files than when it was converted ({some(other, 2)}): "
            f"{AGAIN}"
        )
    return (
        f"case '{job.case}' is in the data set already, made from {next(iter(before))}: give the "
        f"new one another name (--prefix, or a column 'name' in a case list)"
    )


def joined(before: Contract, added: Contract, sources: Mapping[str, str]) -> Contract:
    """Return the contract of the cases that are there and of the new ones.

    Protocols keep their names; a new case shares that of an earlier case of its source.
    """
    has_ignore = before.has_ignore or added.has_ignore
    protocols = _with_ignore(before.protocols, has_ignore)
    new_protocols = _with_ignore(added.protocols, has_ignore)
    cases = dict(before.cases)
    for case, added_name in added.cases.items():
        protocol = new_protocols[added_name]
        name = _shared_name(protocol, sources[case], protocols)
        if name is None:
            name = _free_name(added, added_name, protocol, protocols)
        protocols[name] = protocol
        cases[case] = name
    return replace(before, protocols=protocols, cases=cases, has_ignore=has_ignore)


def _with_ignore(protocols: Mapping[str, Protocol], has_ignore: bool) -> dict[str, Protocol]:
    if not has_ignore:
        return dict(protocols)
    return {name: protocol.with_ignore() for name, protocol in protocols.items()}


def _shared_name(protocol: Protocol, source: str, protocols: Mapping[str, Protocol]) -> str | None:
    """Return the name of an equal protocol of the same source."""
    for name, other in protocols.items():
        if other == protocol and name.partition(":")[0] == source:
            return name
    return None


def _free_name(labels: Contract, name: str, protocol: Protocol, names: Collection[str]) -> str:
    if name in names and ":" not in name:
        missing = protocol.full_set - protocol.annotated - {0}
        name = f"{name}: {protocol_name(labels, missing)}"
    return next(word for word in variants(name) if word not in names)
