"""The contract: what a value of a label file means in a given case, read from `dataset.json`.

Pure Python on purpose: converters and evaluation workers read the contract without importing torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nnunet_labelset.errors import LabelSetError, did_you_mean

IGNORE = "ignore"
BLOCK = "label_sets"
VERSION = 1

LabelSet = frozenset[int]


@dataclass(frozen=True)
class Contract:
    """Leaves, protocols and cases of a data set.

    `leaf_names[c]` is the leaf with value `c`. `protocols[name][value]` is the label-set that `value` stands for; there
    is one more value than leaves if the data set declares nnU-Net's `ignore`, whose value is `num_leaves`.
    """

    leaf_names: tuple[str, ...]
    protocols: Mapping[str, tuple[LabelSet, ...]]
    cases: Mapping[str, str]
    has_ignore: bool

    @property
    def num_leaves(self) -> int:
        return len(self.leaf_names)

    @property
    def value_names(self) -> tuple[str, ...]:
        """The name of every value, `ignore` included where it is declared."""
        return (*self.leaf_names, IGNORE) if self.has_ignore else self.leaf_names

    @property
    def full_set(self) -> LabelSet:
        return frozenset(range(self.num_leaves))

    def protocol_of(self, case: str) -> str:
        """The protocol of a case; an unlisted case is an error, never "fully annotated"."""
        try:
            return self.cases[case]
        except KeyError:
            hint = did_you_mean(case, self.cases) if len(self.cases) < 1000 else ""
            raise LabelSetError(
                f"case '{case}' has no protocol: add it to {BLOCK}.cases in dataset.json"
                + (hint if "did you mean" in hint else "")
            ) from None

    def sets_of(self, case: str) -> tuple[LabelSet, ...]:
        """The label-set of every value in this case."""
        return self.protocols[self.protocol_of(case)]

    def annotated_leaves(self, protocol: str) -> LabelSet:
        """Leaves that a protocol annotates: some value stands for exactly this leaf, and the leaf is in no larger
        label-set. A value that may be every leaf says nothing about any of them (nnU-Net's ignore) and does not count.
        """
        sets = self.protocols[protocol]
        single = {leaf for labels in sets if len(labels) == 1 for leaf in labels}
        uncertain = {leaf for labels in sets if 1 < len(labels) < self.num_leaves for leaf in labels}
        return frozenset(single - uncertain)

    def annotated(self, case: str) -> tuple[str, ...]:
        """Names of the leaves that are annotated in this case, in the order of their values."""
        return tuple(self.leaf_names[leaf] for leaf in sorted(self.annotated_leaves(self.protocol_of(case))))

    def is_fully_annotated(self, case: str) -> bool:
        """Every leaf is annotated, except where voxels are ignored altogether."""
        return self.annotated_leaves(self.protocol_of(case)) == self.full_set

    def coverage(self, cases: Iterable[str] | None = None) -> dict[str, int]:
        """In how many of the cases each leaf is annotated."""
        counts = dict.fromkeys(self.leaf_names, 0)
        for case in self.cases if cases is None else cases:
            for name in self.annotated(case):
                counts[name] += 1
        return counts

    def require_cases(self, cases: Iterable[str]) -> None:
        """Fail with one message that names the cases without protocol."""
        missing = sorted(set(cases) - set(self.cases))
        if missing:
            shown = ", ".join(f"'{case}'" for case in missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise LabelSetError(
                f"{len(missing)} case(s) without a protocol: {shown}: add them to {BLOCK}.cases in dataset.json"
            )

    @classmethod
    def from_dataset_json(cls, dataset_json: Mapping[str, Any]) -> Contract:
        """Read and check `labels` and `label_sets` of a `dataset.json`."""
        leaf_names, has_ignore = _read_labels(dataset_json.get("labels"))
        block = dataset_json.get(BLOCK)
        if block is None:
            raise LabelSetError(
                f"dataset.json has no '{BLOCK}' block, so nothing says what is annotated in which case: "
                f"add one, or write the data set with 'nnunet_labelset convert' or 'merge'"
            )
        if not isinstance(block, Mapping):
            raise LabelSetError(f"Expected '{BLOCK}' in dataset.json to be an object, but got {type(block).__name__}")
        if block.get("version") != VERSION or isinstance(block["version"], bool):
            raise LabelSetError(f"Expected {BLOCK}.version to be {VERSION}, but got {block.get('version')!r}")
        for key in ("protocols", "cases"):
            if not isinstance(block.get(key), Mapping):
                raise LabelSetError(
                    f"Expected {BLOCK}.{key} in dataset.json to be an object, but got {block.get(key)!r}"
                )
        unknown = set(block) - {"version", "protocols", "cases"}
        if unknown:
            raise LabelSetError(f"Unknown key(s) in {BLOCK} of dataset.json: {', '.join(sorted(unknown))}")
        protocols = {
            str(name): _read_protocol(str(name), protocol, leaf_names, has_ignore)
            for name, protocol in block["protocols"].items()
        }
        cases = {}
        for case, protocol in block["cases"].items():
            if not isinstance(protocol, str) or protocol not in protocols:
                hint = did_you_mean(str(protocol), protocols)
                raise LabelSetError(f"case '{case}': unknown protocol {protocol!r} in {BLOCK}.cases{hint}")
            cases[str(case)] = protocol
        return cls(leaf_names, protocols, cases, has_ignore)

    def differences(self, other: Contract) -> list[str]:
        """What `other` has changed, in words; empty if nothing."""
        if self.leaf_names != other.leaf_names or self.has_ignore != other.has_ignore:
            return [f"labels {list(self.value_names)} became {list(other.value_names)}"]
        before, after = self.to_block(), other.to_block()
        return [
            f"{what} '{name}': {before[key].get(name, 'absent')} became {after[key].get(name, 'absent')}"
            for key, what in (("protocols", "protocol"), ("cases", "case"))
            for name in sorted({**before[key], **after[key]})
            if before[key].get(name) != after[key].get(name)
        ]

    def to_block(self) -> dict[str, Any]:
        """The `label_sets` block; values that stand for themselves are left out, as in the contract."""
        protocols = {}
        for name, sets in self.protocols.items():
            default = [*(frozenset([leaf]) for leaf in range(self.num_leaves)), self.full_set]
            protocols[name] = {
                value: [self.leaf_names[leaf] for leaf in sorted(labels)]
                for value, labels, plain in zip(self.value_names, sets, default, strict=False)
                if labels != plain
            }
        return {"version": VERSION, "protocols": protocols, "cases": dict(self.cases)}


def _read_labels(labels: Any) -> tuple[tuple[str, ...], bool]:
    if not isinstance(labels, Mapping) or not labels:
        raise LabelSetError("dataset.json has no 'labels': expected an object of label name -> value")
    for name, value in labels.items():
        if isinstance(value, (list, tuple)):
            raise LabelSetError(
                f"label '{name}' is a region {value!r}: label-sets need plain labels, one value for every leaf"
            )
        if isinstance(value, bool) or not isinstance(value, int):
            raise LabelSetError(f"Expected the value of label '{name}' to be an integer, but got {value!r}")
    by_value = sorted(labels, key=lambda name: labels[name])
    values = [labels[name] for name in by_value]
    if values != list(range(len(values))):
        raise LabelSetError(f"Expected the values of 'labels' to be 0, 1, 2, ... without gaps, but got {values}")
    if IGNORE in labels and by_value[-1] != IGNORE:
        raise LabelSetError(f"Expected '{IGNORE}' to have the highest value, but '{by_value[-1]}' has")
    leaves = tuple(str(name) for name in by_value if name != IGNORE)
    if len(leaves) < 2:
        raise LabelSetError(f"Expected at least two leaves (background and one more), but got {len(leaves)}")
    return leaves, IGNORE in labels


def _read_protocol(name: str, protocol: Any, leaf_names: tuple[str, ...], has_ignore: bool) -> tuple[LabelSet, ...]:
    if not isinstance(protocol, Mapping):
        raise LabelSetError(f"Expected protocol '{name}' to be an object of value -> leaves, but got {protocol!r}")
    index = {leaf: i for i, leaf in enumerate(leaf_names)}
    sets = [frozenset([leaf]) for leaf in range(len(leaf_names))]
    if has_ignore:
        sets.append(frozenset(range(len(leaf_names))))
    for value, leaves in protocol.items():
        where = f"protocol '{name}', value '{value}'"
        if value == IGNORE and not has_ignore:
            raise LabelSetError(f"{where}: 'labels' in dataset.json does not declare '{IGNORE}'")
        if value != IGNORE and value not in index:
            raise LabelSetError(f"{where}: no such label{did_you_mean(str(value), leaf_names)}")
        if not isinstance(leaves, (list, tuple, set, frozenset)):
            raise LabelSetError(f"{where}: expected a list of leaves, but got {leaves!r}")
        leaves = list(leaves)
        for leaf in leaves:
            if not isinstance(leaf, str) or leaf not in index:  # a nested list is not even hashable
                raise LabelSetError(f"{where}: unknown leaf {leaf!r}{did_you_mean(str(leaf), leaf_names)}")
        if not leaves:
            raise LabelSetError(f"{where}: empty label-set; name the leaves that such a voxel may be")
        sets[len(leaf_names) if value == IGNORE else index[value]] = frozenset(index[leaf] for leaf in leaves)
    return tuple(sets)
