"""`nnunet_labelset merge`: several nnU-Net data sets in one label space, by the names of their labels.

What a data set does not annotate may be anywhere in its background: there, a voxel is {background + those leaves}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, IGNORE, VERSION, Contract, LabelSet
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.raw import RawCase, raw_cases

EPILOG = """\
example: data set 3 calls the tumour 'cancer', and in data set 12 'liver' includes the tumour:
  nnunet_labelset merge -d 50 -n Abdomen 3 9 12 --label 3:cancer=liver_tumour --label 12:liver=liver+liver_tumour
"""


@dataclass(frozen=True)
class Part:
    """One data set of the merge; `names` maps each of its labels to the leaves that it may be."""

    given: str  # as the user wrote it
    folder: Path
    dataset_json: Mapping[str, Any]
    contract: Contract
    names: Mapping[str, tuple[str, ...]]
    cases: Sequence[RawCase]

    @property
    def name(self) -> str:
        return self.folder.resolve().name.partition("_")[2] or self.folder.resolve().name

    @property
    def has_contract(self) -> bool:
        return BLOCK in self.dataset_json

    @property
    def channels(self) -> tuple[str, ...]:
        channels = self.dataset_json.get("channel_names")
        if not isinstance(channels, Mapping) or not channels:
            raise LabelSetError(
                f"{self.folder / 'dataset.json'}: expected 'channel_names', an object of number -> name"
            )
        return tuple(str(channels[key]) for key in sorted(channels, key=int))


def read_part(given: str, options: Sequence[str]) -> Part:
    """A data set with its contract; without one, everything in its own label space is annotated."""
    folder = find_dataset(given)
    dataset_json = read_json(folder / "dataset.json")
    cases = raw_cases(folder, dataset_json)
    block = {"version": VERSION, "protocols": {"": {}}, "cases": {case.name: "" for case in cases}}
    try:
        contract = Contract.from_dataset_json({BLOCK: block, **dataset_json})
    except LabelSetError as error:
        raise LabelSetError(f"{folder / 'dataset.json'}: {error}") from None
    names: dict[str, tuple[str, ...]] = {name: (name,) for name in contract.leaf_names}
    for option in options:
        dataset, label, leaves = parse_label(option)
        if dataset in (given, folder.name):
            if label not in names or label == contract.leaf_names[0]:
                raise LabelSetError(f"--label {option}: no such label{did_you_mean(label, contract.leaf_names[1:])}")
            names[label] = leaves
    names[contract.leaf_names[0]] = ("background",)
    return Part(given, folder, dataset_json, contract, names, cases)


def parse_label(option: str) -> tuple[str, str, tuple[str, ...]]:
    """`DATASET:LABEL=LEAF[+LEAF]`."""
    dataset, _, rest = option.rpartition(":") if option.count(":") > 1 else option.partition(":")
    label, _, leaves = rest.partition("=")
    names = tuple(name.strip() for name in leaves.split("+"))
    if not dataset or not label or not all(names) or IGNORE in names:
        raise LabelSetError(f"--label {option}: expected DATASET:LABEL=LEAF or DATASET:LABEL=LEAF+LEAF")
    return dataset, label, names


def check_label_options(parts: Sequence[Part], options: Sequence[str]) -> None:
    known = {name for part in parts for name in (part.given, part.folder.name)}
    for option in options:
        if parse_label(option)[0] not in known:
            raise LabelSetError(f"--label {option}: no such data set among {', '.join(part.given for part in parts)}")


def common_leaves(parts: Sequence[Part]) -> tuple[str, ...]:
    """Background and all leaves, in the order of the data sets and of their values."""
    return tuple(dict.fromkeys(["background", *(leaf for part in parts for n in part.names.values() for leaf in n)]))


def common_channels(parts: Sequence[Part], chosen: Sequence[str] | None) -> tuple[str, ...]:
    found = {part.channels: part for part in parts}
    if len({len(channels) for channels in found}) > 1 or (chosen is None and len(found) > 1):
        listed = "; ".join(f"{part.folder.name}: {', '.join(channels)}" for channels, part in found.items())
        raise LabelSetError(f"the data sets have different channels ({listed}): if they mean the same, use --channels")
    channels = next(iter(found))
    if chosen is not None and len(chosen) != len(channels):
        raise LabelSetError(f"--channels: expected {len(channels)} names, but got {len(chosen)}")
    return tuple(chosen or channels)


def merged_sets(part: Part, sets: Sequence[LabelSet], leaves: tuple[str, ...]) -> dict[int, LabelSet]:
    """What each value of a case may be in the common label space."""
    known = [frozenset(leaves.index(name) for name in part.names[leaf]) for leaf in part.contract.leaf_names]
    unknown = frozenset(range(len(leaves))).difference(*known)  # may hide in the background of this data set
    values = {}
    for value, labels in enumerate(sets):
        values[value] = frozenset().union(*(known[leaf] for leaf in labels)) | (unknown if 0 in labels else frozenset())
    return values
