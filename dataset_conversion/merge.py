"""Several nnU-Net data sets in one label space, by the names of their labels.

What a data set does not annotate may be anywhere in its background: there, a voxel is {background + those leaves}.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, IGNORE, VERSION, Contract, LabelSet
from nnunet_labelset.contract.annotated_table import contract_with_list
from nnunet_labelset.dataset_conversion.job import CaseJob
from nnunet_labelset.dataset_conversion.meaning import Meaning
from nnunet_labelset.dataset_conversion.plan import Plan
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.raw import RawCase, raw_cases

NEARLY = 0.9  # names as alike as 'liver_tumor' and 'liver_tumour'


@dataclass
class Part:
    """One data set of the merge; `names` maps each of its labels to the leaves that it may be."""

    given: str  # as the user wrote it
    folder: Path
    dataset_json: Mapping[str, Any]
    contract: Contract
    cases: Sequence[RawCase]
    name: str  # before its cases and protocols; no other part has it
    fully_annotated: bool
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    renamed: set[str] = field(default_factory=set)  # labels for which there is a --label

    @property
    def channels(self) -> tuple[str, ...]:
        channels = self.dataset_json.get("channel_names")
        if not isinstance(channels, Mapping) or not channels or not all(str(key).isdigit() for key in channels):
            raise LabelSetError(f"{self.folder / 'dataset.json'}: expected 'channel_names', such as {{'0': 'CT'}}")
        return tuple(str(channels[key]) for key in sorted(channels, key=int))


@dataclass(frozen=True)
class Declared:
    """What the user says of data sets that do not say it themselves."""

    annotated: Sequence[str] = ()  # [DATASET=]FILE
    fully_annotated: Sequence[str] = ()


def read_parts(given: Sequence[str], labels: Sequence[str], declared: Declared) -> list[Part]:
    """The data sets with what is annotated in them; one that nobody declared is not taken for complete."""
    folders = [find_dataset(name) for name in given]
    resolved = [folder.resolve() for folder in folders]
    for number, folder in enumerate(resolved):
        if folder in resolved[:number]:
            raise LabelSetError(f"{given[number]}: the data set {folder.name} is given twice")
    keys = {number: _keys(name, folder) for number, (name, folder) in enumerate(zip(given, folders, strict=True))}
    complete = {_chosen("--fully-annotated", name, keys, given) for name in declared.fully_annotated}
    contents = [_read_json(folder) for folder in folders]
    silent = [number for number, content in enumerate(contents) if BLOCK not in content and number not in complete]
    tables = dict(_tables(declared.annotated, keys, given, silent))
    if undeclared := [number for number in silent if number not in tables]:
        listed = [given[number] for number in undeclared]
        raise LabelSetError(
            f"nothing says what is annotated in which case of {', '.join(listed)}: give a table (--annotated "
            f"{listed[0]}=FILE.csv), or --fully-annotated {' '.join(listed)} if all labels were drawn in every case"
        )
    parts = []
    for number, (folder, content) in enumerate(zip(folders, contents, strict=True)):
        contract, cases = _contract(folder, content, tables.get(number), number in complete)
        name = _unique_name(number, resolved)
        parts.append(Part(given[number], folder, content, contract, cases, name, number in complete))
        parts[-1].names.update({leaf: (leaf,) for leaf in contract.leaf_names})
        parts[-1].names[contract.leaf_names[0]] = ("background",)
    for option in labels:
        _rename(option, parts, keys, given)
    return parts


def _keys(given: str, folder: Path) -> set[str]:
    """All ways to write a data set in an option."""
    names = {given, given.rstrip("/"), folder.name, str(folder), str(folder.resolve())}
    match = re.match(r"Dataset(\d{3})_", folder.resolve().name)
    return names | ({match[1], str(int(match[1]))} if match else set())


def _chosen(option: str, name: str, keys: Mapping[int, set[str]], given: Sequence[str]) -> int:
    for number, known in keys.items():
        if name in known or name.rstrip("/") in known:
            return number
    raise LabelSetError(f"{option} {name}: no such data set among {', '.join(given)}")


def _tables(
    options: Sequence[str], keys: Mapping[int, set[str]], given: Sequence[str], silent: Sequence[int]
) -> Iterator[tuple[int, str]]:
    """The table of every data set that has one; FILE alone is about the one data set that needs it."""
    for option in options:
        name, _, table = option.partition("=")
        if table:
            number = _chosen("--annotated", name, keys, given)
            if number not in silent:
                raise LabelSetError(f"--annotated {option}: {given[number]} is declared already, by its dataset.json")
            yield number, table
        elif len(silent) == 1:
            yield silent[0], option
        else:
            raise LabelSetError(f"--annotated {option}: say for which data set: --annotated DATASET={option}")


def _read_json(folder: Path) -> dict[str, Any]:
    path = folder / "dataset.json"
    content = read_json(path)
    labels = content.get("labels")
    if isinstance(labels, Mapping) and labels and all(str(key).isdigit() for key in labels):
        raise LabelSetError(
            f"{path}: in the style of the Medical Segmentation Decathlon: convert it first, "
            f"nnUNetv2_convert_MSD_dataset -i {folder}"
        )
    return content


def _contract(
    folder: Path, dataset_json: dict[str, Any], table: str | None, complete: bool
) -> tuple[Contract, list[RawCase]]:
    """What is annotated in which case: as dataset.json says, as the table says, or everything."""
    try:
        cases = raw_cases(folder, dataset_json)
        labelled = [case.name for case in cases if case.label is not None]
        if table is not None:
            contract = contract_with_list(dataset_json, table)
        else:
            everything = {"version": VERSION, "protocols": {"": {}}, "cases": dict.fromkeys(labelled, "")}
            contract = Contract.from_dataset_json({BLOCK: everything, **dataset_json})
        contract.require_cases(labelled)
    except LabelSetError as error:
        raise LabelSetError(f"{folder / 'dataset.json'}: {error}") from None
    if partial := [name for name in labelled if complete and not contract.is_fully_annotated(name)]:
        raise LabelSetError(f"--fully-annotated: {folder / 'dataset.json'} says that '{partial[0]}' is not")
    return contract, cases


def _unique_name(number: int, folders: Sequence[Path]) -> str:
    """The name of a data set, with as much of its folder as it takes to be the only one."""
    short = [folder.name.partition("_")[2] or folder.name for folder in folders]
    if short.count(short[number]) == 1:
        return short[number]
    whole = [folder.name for folder in folders]
    return whole[number] if whole.count(whole[number]) == 1 else f"{whole[number]}_{number + 1}"


def _rename(option: str, parts: Sequence[Part], keys: Mapping[int, set[str]], given: Sequence[str]) -> None:
    """`DATASET:LABEL=LEAF[+LEAF]`; a folder may have a colon in its name."""
    form = "expected DATASET:LABEL=LEAF or DATASET:LABEL=LEAF+LEAF"
    written = [(len(key), number) for number, known in keys.items() for key in known if option.startswith(f"{key}:")]
    length, number = max(written, default=(option.find(":"), -1))
    label, _, leaves = option[length + 1 :].partition("=")
    names = tuple(name.strip() for name in leaves.split("+"))
    if length < 1 or not label or not all(names) or IGNORE in names:
        raise LabelSetError(f"--label {option}: {form}")
    if number < 0:
        raise LabelSetError(f"--label {option}: no such data set among {', '.join(given)}")
    known = parts[number].contract.leaf_names[1:]
    if label not in known:
        raise LabelSetError(f"--label {option}: {given[number]} has no such label{did_you_mean(label, known)}")
    parts[number].names[label] = names
    parts[number].renamed.add(label)


def common_leaves(parts: Sequence[Part]) -> tuple[str, ...]:
    """Background and all leaves, in the order of the data sets and of their values.

    A leaf that no data set has, but only a `--label` as one of several, is a slip: nothing could teach it.
    """
    leaves = tuple(dict.fromkeys(["background", *(leaf for part in parts for n in part.names.values() for leaf in n)]))
    known = {names[0] for part in parts for names in part.names.values() if len(names) == 1}
    known.update(*(part.contract.leaf_names for part in parts))
    for leaf in leaves:
        if leaf not in known:
            hint = did_you_mean(leaf, sorted(known - {"background"}))
            raise LabelSetError(f"--label ...+{leaf}: no data set has a label '{leaf}'{hint}")
    return leaves


def remarks(parts: Sequence[Part], leaves: Sequence[str], linked: bool) -> list[str]:
    """What was done by names alone, and is for the user to confirm."""
    having = {leaf: [part for part in parts if any(leaf in names for names in part.names.values())] for leaf in leaves}
    united = []
    for leaf in leaves[1:]:
        by_name = [part.given for part in parts if leaf in part.names and leaf not in part.renamed]
        if len(by_name) > 1:
            united.append(f"{leaf} ({', '.join(by_name)})")
    lines = [f"united because their names are equal; the same structure? {', '.join(united)}"] if united else []
    for a, b in combinations(leaves[1:], 2):
        apart = not any(part in having[b] for part in having[a])
        if apart and _nearly_equal(a, b):
            first, second = having[a][0].given, having[b][0].given
            lines.append(
                f"kept apart, though their names are nearly equal: '{a}' ({first}) and '{b}' ({second}); "
                f"to unite them: --label '{second}:{b}={a}'"
            )
    return lines + (["images are links into the data sets that were merged: --copy copies them"] if linked else [])


def _nearly_equal(a: str, b: str) -> bool:
    """Whether two names differ only in spelling; what differs in its numbers differs."""
    plain = [re.sub(r"[\W_]", "", name.casefold()) for name in (a, b)]
    if re.findall(r"\d+", a) != re.findall(r"\d+", b):
        return False
    matcher = difflib.SequenceMatcher(None, plain[0], plain[1])
    return plain[0] == plain[1] or (matcher.quick_ratio() >= NEARLY and matcher.ratio() >= NEARLY)


def common_channels(parts: Sequence[Part], chosen: Sequence[str] | None) -> tuple[str, ...]:
    found = {part.channels: part for part in parts}
    if len({len(channels) for channels in found}) > 1 or (chosen is None and len(found) > 1):
        listed = "; ".join(f"{part.folder.name}: {', '.join(channels)}" for channels, part in found.items())
        raise LabelSetError(f"the data sets have different channels ({listed}): if they mean the same, use --channels")
    channels = next(iter(found))
    if chosen is not None and len(chosen) != len(channels):
        raise LabelSetError(f"--channels: expected {len(channels)} names, but got {len(chosen)}")
    return tuple(chosen or channels)


def merged_sets(part: Part, sets: Sequence[LabelSet], leaves: Sequence[str]) -> dict[int, LabelSet]:
    """What each value of a case may be in the common label space."""
    known = [frozenset(leaves.index(name) for name in part.names[leaf]) for leaf in part.contract.leaf_names]
    unknown = frozenset(range(len(leaves))).difference(*known)  # may hide in the background of this data set
    return {
        value: frozenset().union(*(known[leaf] for leaf in labels)) | (unknown if 0 in labels else frozenset())
        for value, labels in enumerate(sets)
    }


def merge_jobs(
    parts: Sequence[Part], leaves: tuple[str, ...], channels: int, ending: str, link: bool, prefix: bool
) -> Plan:
    """One job for every case of every data set; problems are collected, not raised."""
    made = Plan()
    for part in parts:
        for case in part.cases:
            name = f"{part.name}_{case.name}" if prefix else case.name
            try:
                made.add_name(name, str(part.folder), "use --prefix")
                if len(case.images) != channels:
                    found = f"case '{case.name}' has {len(case.images)} images, expected {channels}"
                    raise LabelSetError(f"{part.folder}: {found}")
                made.jobs.append(_job(name, part, case, leaves, link, ending))
            except LabelSetError as error:
                made.problems.append((name, str(error)))
    return made


def _job(name: str, part: Part, case: RawCase, leaves: tuple[str, ...], link: bool, ending: str) -> CaseJob:
    values, source, complete = {0: frozenset([0])}, part.name, False
    if case.label is not None:
        values = merged_sets(part, part.contract.sets_of(case.name), leaves)
        complete = part.contract.is_fully_annotated(case.name)
        if BLOCK in part.dataset_json and len(part.contract.protocols) > 1:
            source = f"{part.name}_{part.contract.protocol_of(case.name)}"
    unlabelled = values.pop(0)
    ignored = unlabelled if len(unlabelled) > 1 else None
    return CaseJob(
        case=name,
        source=source,
        part=case.part,
        images=case.images,
        labels=() if case.label is None else (case.label,),
        mask=case.mask if case.label is not None else None,
        protocol=Meaning(values, unlabelled, unlabelled, ignored, complete=complete),
        leaves=leaves,
        fully_annotated=part.fully_annotated,
        link=link,
        ending=ending,
    )
