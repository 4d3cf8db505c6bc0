"""Several nnU-Net data sets in one label space, by the names of their labels.

What a data set does not annotate may be anywhere in its background: there, a voxel is {background +
those leaves}.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, Contract, LabelSet, Protocol
from nnunet_labelset.contract.annotated_table import contract_with_list, refuse_unknown
from nnunet_labelset.contract.completed import COMPLETED
from nnunet_labelset.dataset_conversion.job import CaseJob, CaseNames, common_ending
from nnunet_labelset.dataset_conversion.meaning import SourceProtocol
from nnunet_labelset.dataset_conversion.merge_channels import channel_order
from nnunet_labelset.dataset_conversion.plan import Options, Plan
from nnunet_labelset.datasets.normalisation import may_use_mask
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.flat import is_picture
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.names import DATASET, dataset_words
from nnunet_labelset.nnunet.raw import (
    RawCase,
    channel_names,
    file_ending,
    raw_cases,
    why_values_come_first,
)


@dataclass
class InputDataset:
    """One data set of the merge; `names` maps each of its labels to the leaves that it may be."""

    given: str  # as the user wrote it
    folder: Path
    dataset_json: Mapping[str, Any]
    contract: Contract
    cases: Sequence[RawCase]
    name: str  # before its cases and protocols; no other data set has it
    fully_annotated: bool
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    renamed: set[str] = field(default_factory=set)  # labels for which there is a --label

    @property
    def short_name(self) -> str:
        return self.given if self.given.isdigit() else self.name

    @property
    def common_names(self) -> set[str]:
        """All labels of the merged data set that labels of this one may be."""
        return set(chain.from_iterable(self.names.values()))

    @property
    def channels(self) -> tuple[str, ...]:
        try:
            return channel_names(self.dataset_json)
        except LabelSetError as error:
            raise LabelSetError(f"{self.folder}: {error}") from None


def read_datasets(
    given: Sequence[str], annotated: Sequence[str], fully_annotated: Sequence[str]
) -> list[InputDataset]:
    """The data sets with what is annotated in them; one that nobody declared is not taken for
    complete.

    `annotated` are texts [DATASET=]FILE. They and `fully_annotated` speak of data sets that do not
    say it themselves.
    """
    folders = list(map(find_dataset, given))
    resolved = [folder.resolve() for folder in folders]
    _refuse_twice(given, resolved)
    keys = list(map(ways_to_write, given, folders))
    complete = {_chosen("--fully-annotated", name, keys, given) for name in fully_annotated}
    contents = list(map(_read_json, folders))
    undeclared = (number for number, content in enumerate(contents) if BLOCK not in content)
    silent = [number for number in undeclared if number not in complete]
    tables = dict(_tables(annotated, keys, given, silent))
    _refuse_silence([given[number] for number in sorted(set(silent) - tables.keys())])
    datasets = []
    for number, (folder, content) in enumerate(zip(folders, contents, strict=True)):
        is_complete = number in complete
        contract, cases = _contract(folder, content, tables.get(number), is_complete)
        dataset = InputDataset(
            given=given[number],
            folder=folder,
            dataset_json=content,
            contract=contract,
            cases=cases,
            name=_unique_name(number, resolved),
            fully_annotated=is_complete,
            names={leaf: (leaf,) for leaf in contract.leaf_names},
        )
        dataset.names[contract.leaf_names[0]] = ("background",)
        datasets.append(dataset)
    return datasets


def _refuse_twice(given: Sequence[str], folders: Sequence[Path]) -> None:
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise LabelSetError(f"{given[number]}: the data set {folder.name} is given twice")


def _refuse_silence(undeclared: Sequence[str]) -> None:
    if undeclared:
        raise LabelSetError(
            f"nothing says what is annotated in which case of {', '.join(undeclared)}: give a "
            f"table (--annotated {undeclared[0]}=FILE.csv), or --fully-annotated "
            f"{' '.join(undeclared)} if all labels were drawn in every case"
        )


def ways_to_write(given: str, folder: Path) -> set[str]:
    """All ways to write a data set in an option."""
    names = {given, given.rstrip("/"), folder.name, str(folder), str(folder.resolve())}
    words = dataset_words(folder.resolve().name)
    return names | ({f"{words[0]:03d}", str(words[0])} if words else set())


def _chosen(option: str, name: str, keys: Sequence[set[str]], given: Sequence[str]) -> int:
    for number, known in enumerate(keys):
        if name in known or name.rstrip("/") in known:
            return number
    raise LabelSetError(f"{option} {name}: no such data set among {', '.join(given)}")


def _tables(
    options: Sequence[str], keys: Sequence[set[str]], given: Sequence[str], silent: Sequence[int]
) -> Iterator[tuple[int, str]]:
    """The table of every data set that has one; FILE alone is about the one data set that
    needs it.
    """
    for option in options:
        name, _, table = option.partition("=")
        if table:
            number = _chosen("--annotated", name, keys, given)
            if number not in silent:
                raise LabelSetError(
                    f"--annotated {option}: {given[number]} is declared already, by its "
                    "dataset.json"
                )
            yield number, table
        elif len(silent) == 1:
            yield silent[0], option
        else:
            raise LabelSetError(
                f"--annotated {option}: say for which data set: --annotated DATASET={option}"
            )


def _read_json(folder: Path) -> dict[str, Any]:
    path = folder / DATASET
    content = read_json(path)
    labels = content.get("labels")
    if isinstance(labels, Mapping) and labels and all(str(key).isdigit() for key in labels):
        raise LabelSetError(f"{path}: {why_values_come_first(folder, content)}")
    if COMPLETED in content:  # its copies would pass for annotated cases, and be validated
        raise LabelSetError(f"{path}: completed by a model: merge first, complete afterwards")
    return content


def _contract(
    folder: Path, dataset_json: dict[str, Any], table: str | None, complete: bool
) -> tuple[Contract, list[RawCase]]:
    """What is annotated in which case: as dataset.json says, as the table says, or everything."""
    try:
        cases = raw_cases(folder, dataset_json)
        labelled = [case.name for case in cases if case.label is not None]
        if BLOCK in dataset_json:
            contract = Contract.from_dataset_json(dataset_json)
        else:
            contract = Contract.of_labels(dataset_json).fully_annotated(labelled)
    except LabelSetError as error:
        raise LabelSetError(f"{folder / DATASET}: {error}") from None
    if table is not None:
        contract = _contract_of_table(folder, dataset_json, table, cases)
    if complete:
        for name in contract.cases:
            if not contract.is_fully_annotated(name):
                raise LabelSetError(
                    f"--fully-annotated: {folder / DATASET} says that '{name}' is not"
                )
    return contract, cases


def _contract_of_table(
    folder: Path, dataset_json: dict[str, Any], table: str, cases: Sequence[RawCase]
) -> Contract:
    """Return what a table says; it must be about every labelled case, and about no other."""
    contract = contract_with_list(dataset_json, table)
    names = {case.name: case for case in cases}
    refuse_unknown(table, contract.cases, names, f"in {folder.name}")
    labelled = [case.name for case in cases if case.label is not None]
    if missing := [name for name in labelled if name not in contract.cases]:
        raise LabelSetError(f"{table}: no line for {some(missing)} of {folder.name}")
    return contract


def _unique_name(number: int, folders: Sequence[Path]) -> str:
    """The name of a data set, with as much of its folder as it takes to be the only one."""
    short = [folder.name.partition("_")[2] or folder.name for folder in folders]
    if short.count(short[number]) == 1:
        return short[number]
    whole = [folder.name for folder in folders]
    return whole[number] if whole.count(whole[number]) == 1 else f"{whole[number]}_{number + 1}"


def merge_jobs(datasets: Sequence[InputDataset], options: Options) -> Plan:
    """Return one job for every case of every data set; problems are collected, not raised."""
    plan = Plan(
        options.manifest.labels,
        options.manifest.channels,
        inputs={dataset.folder: dataset.dataset_json for dataset in datasets},
    )
    ending = _common_ending(datasets)
    names = CaseNames()
    for dataset in datasets:
        protocols = _common_protocols(dataset, plan.labels)
        for case in dataset.cases:
            name = f"{dataset.name}_{case.name}" if options.prefix else case.name
            try:
                names.add(name, str(dataset.folder), "use --prefix")
            except LabelSetError as error:
                plan.problems.append((f"{dataset.name}/{name}", str(error)))
                continue
            try:
                job = _job(name, dataset, case, protocols, options)
                plan.jobs.append(replace(job, ending=ending))
            except LabelSetError as error:
                plan.problems.append((name, f"{dataset.folder}: {error}"))
    return plan


def _common_protocols(dataset: InputDataset, labels: Contract) -> dict[str, SourceProtocol]:
    """Return the protocols of a data set, in the labels of the merged one."""
    number_of = {leaf: number for number, leaf in enumerate(labels.leaf_names)}
    known = [
        frozenset(number_of[name] for name in dataset.names[leaf])
        for leaf in dataset.contract.leaf_names
    ]
    known[0] |= labels.full_set.difference(*known)  # may hide in the background of this data set
    return {
        name: SourceProtocol(
            num_leaves=labels.num_leaves,
            values={
                value: frozenset[int]().union(*(known[leaf] for leaf in leaves))
                for value, leaves in enumerate(protocol.sets)
            },
            annotated=_common_annotated(protocol, known),
            is_final=True,
            is_complete=protocol.is_complete,
        )
        for name, protocol in dataset.contract.protocols.items()
    }


def _common_annotated(protocol: Protocol, known: Sequence[LabelSet]) -> LabelSet:
    """Return the leaves that are annotated in the merged data set.

    Each label that may be such a leaf is annotated, and is nothing else. `known` are the common
    leaves of each label.
    """
    everything = frozenset[int]().union(*known)
    in_doubt = (
        common
        for leaf, common in enumerate(known)
        if leaf not in protocol.annotated or len(common) > 1
    )
    return everything.difference(*in_doubt)


def _common_ending(datasets: Sequence[InputDataset]) -> str:
    """Return the ending of all files: that of the data sets if they have one, whatever it is."""
    endings = {file_ending(dataset.dataset_json) for dataset in datasets}
    return endings.pop() if len(endings) == 1 else common_ending(endings)


def _job(
    name: str,
    dataset: InputDataset,
    case: RawCase,
    protocols: Mapping[str, SourceProtocol],
    options: Options,
) -> CaseJob:
    labels = options.manifest.labels
    channels = options.manifest.channels
    # A picture may hold all channels as colours.
    in_one_file = len(case.images) == 1 and is_picture(case.images[0])
    if len(case.images) != len(channels) and not in_one_file:
        raise LabelSetError(
            f"case '{case.name}' has {len(case.images)} images, expected {len(channels)}"
        )
    order = channel_order(dataset.channels, channels)
    if in_one_file and order != sorted(order):
        raise LabelSetError(
            f"case '{case.name}': the colours of a picture cannot be put into another order: "
            f"{', '.join(dataset.channels)} and {', '.join(channels)}"
        )
    source = dataset.name
    protocol = SourceProtocol(labels.num_leaves, {}, frozenset())  # of no label map
    if case.label is not None:
        protocol_name = dataset.contract.protocol_name(case.name)
        protocol = protocols[protocol_name]
        if BLOCK in dataset.dataset_json and len(protocols) > 1:
            source = f"{dataset.name}_{protocol_name}"
    return CaseJob(
        case=name,
        source=source,
        part=case.part,
        images=case.images if in_one_file else tuple(case.images[number] for number in order),
        labels=() if case.label is None else (case.label,),
        mask=case.mask if case.label is not None else None,
        protocol=protocol,
        leaves=labels.leaf_names,
        fully_annotated=dataset.fully_annotated,
        link=options.link,
        looks_for_air=may_use_mask(channels),
        colours=len(channels) if in_one_file else 1,
        reason=_reason(dataset, case.name),
    )


def _reason(dataset: InputDataset, case: str) -> str:
    """Return what says which labels are annotated in a case."""
    if dataset.fully_annotated:
        return f"--fully-annotated {dataset.given}"
    if BLOCK not in dataset.dataset_json:
        return f"the table of {dataset.folder.name} (--annotated)"
    protocol = dataset.contract.cases.get(case)
    return f"{dataset.folder / DATASET}, protocol '{protocol}'" if protocol else ""
