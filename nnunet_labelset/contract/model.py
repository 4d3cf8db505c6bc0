"""The contract: what a value of a label file means in a given case, read from `dataset.json`.

Pure Python on purpose: converters and evaluation workers read the contract without importing torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nnunet_labelset.contract.parser import (
    BLOCK,
    IGNORE,
    REGIONS_VERSION,
    VERSION,
    Parsed,
    parse_contract,
    parse_labels,
)
from nnunet_labelset.contract.protocol import LabelSet, Protocol
from nnunet_labelset.errors import LabelSetError, near_miss

ANYTHING = "anything"


@dataclass(frozen=True)
class Contract:
    """Leaves, protocols and cases of a data set.

    `leaf_names[c]` is the leaf with value `c`, `protocols` are the ways in which cases were
    annotated, by name, and `cases` tells which case has which. `regions` are the leaves of every
    region, in the order of nnU-Net's `labels`, or None.
    """

    leaf_names: tuple[str, ...]
    protocols: Mapping[str, Protocol]
    cases: Mapping[str, str]
    has_ignore: bool
    regions: Mapping[str, LabelSet] | None = None
    regions_class_order: tuple[int, ...] = ()

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

    def words(self, label_set: LabelSet) -> str:
        """Return a label-set in words: `liver or spleen`."""
        if len(label_set) == self.num_leaves:
            return ANYTHING
        return " or ".join(self.leaf_names[leaf] for leaf in sorted(label_set))

    def protocol_name(self, case: str) -> str:
        """Return the name of a case's protocol; an unlisted case is an error, never "complete"."""
        try:
            return self.cases[case]
        except KeyError:
            hint = near_miss(case, self.cases) if len(self.cases) < 1000 else ""
            raise LabelSetError(
                f"case '{case}' has no protocol: add it to {BLOCK}.cases in dataset.json{hint}"
            ) from None

    def protocol(self, case: str) -> Protocol:
        """Return the protocol of a case."""
        return self.protocols[self.protocol_name(case)]

    def annotated(self, case: str) -> tuple[str, ...]:
        """Return the names of the leaves that are annotated in a case, in the order of values."""
        return tuple(self.leaf_names[leaf] for leaf in sorted(self.protocol(case).annotated))

    def is_fully_annotated(self, case: str) -> bool:
        return self.protocol(case).is_complete

    def annotated_regions(self, protocol: str) -> tuple[str, ...]:
        regions = (self.regions or {}).items()
        return tuple(name for name, leaves in regions if self.protocols[protocol].annotates(leaves))

    def coverage(self, cases: Iterable[str] | None = None) -> dict[str, int]:
        """In how many of the cases each leaf is annotated and, after the leaves, each region."""
        protocols = Counter(map(self.protocol_name, self.cases if cases is None else cases))
        counts = dict.fromkeys([*self.leaf_names, *(self.regions or ())], 0)
        for protocol, number in protocols.items():
            for leaf in self.protocols[protocol].annotated:
                counts[self.leaf_names[leaf]] += number
            for region in self.annotated_regions(protocol):
                counts[region] += number if region not in self.leaf_names else 0
        return counts

    def require_cases(self, cases: Iterable[str]) -> None:
        """Fail with one message that names the cases without protocol."""
        missing = sorted(set(cases) - set(self.cases))
        if missing:
            shown = ", ".join(f"'{case}'" for case in missing[:5]) + (
                ", ..." if len(missing) > 5 else ""
            )
            raise LabelSetError(
                f"{len(missing)} case(s) without a protocol: {shown}: add them to {BLOCK}.cases in "
                "dataset.json"
            )

    @classmethod
    def from_dataset_json(
        cls, dataset_json: Mapping[str, Any], folder: Path | None = None
    ) -> Contract:
        """Read and check `labels` and `label_sets` of a `dataset.json`; the first problem is an
        error.

        The error names the folder of the data set, or the file that asks for the contract, where it
        is given.
        """
        try:
            return cls._of(parse_contract(dataset_json))
        except LabelSetError as error:
            raise LabelSetError(f"{folder}: {error}" if folder else str(error)) from None

    @classmethod
    def of_labels(
        cls, dataset_json: Mapping[str, Any], leaves: Mapping[str, int] | None = None
    ) -> Contract:
        """The leaves, without protocols and cases: for data sets that have no block yet, or take it
        from elsewhere.
        """
        return cls._of(parse_labels(dataset_json, leaves))

    @classmethod
    def of_leaves(
        cls,
        leaves: tuple[str, ...],
        where: str,
        regions: Mapping[str, LabelSet] | None,
        order: tuple[int, ...] = (),
    ) -> Contract:
        """Leaves and regions for a data set that is to be written, by the rules for one that is
        read.
        """
        try:
            return cls.of_labels(cls(leaves, {}, {}, False, regions, order).to_dataset_json())
        except LabelSetError as error:
            raise LabelSetError(f"{where}: {error}") from None

    def fully_annotated(self, cases: Iterable[str]) -> Contract:
        """The same leaves, all of them annotated in every one of the cases."""
        complete = Protocol.complete(self.num_leaves, self.has_ignore)
        return replace(self, protocols={"": complete}, cases=dict.fromkeys(cases, ""))

    @classmethod
    def read(cls, dataset_json: Mapping[str, Any]) -> tuple[Contract | None, list[str]]:
        """What is sound in `dataset.json` (None: not even the labels), and all problems."""
        parsed = parse_contract(dataset_json)
        problems, parsed.problems = parsed.problems, []
        return (cls._of(parsed) if parsed.leaf_names else None), problems

    @classmethod
    def _of(cls, parsed: Parsed) -> Contract:
        if parsed.problems:
            raise LabelSetError(parsed.problems[0])
        return cls(**{key: value for key, value in vars(parsed).items() if key != "problems"})

    def to_block(self) -> dict[str, Any]:
        """The `label_sets` block; what stands for itself is left out, unless the protocol vouches
        for it or states it.
        """
        protocols = {name: self._mentioned(protocol) for name, protocol in self.protocols.items()}
        block: dict[str, Any] = {
            "version": VERSION,
            "protocols": protocols,
            "cases": dict(self.cases),
        }
        if self.regions is not None:
            leaves = {name: value for value, name in enumerate(self.leaf_names)}
            block = {**block, "version": REGIONS_VERSION, "leaves": leaves}
        return block

    def _mentioned(self, protocol: Protocol) -> dict[str, list[str]]:
        plain = Protocol.complete(self.num_leaves, self.has_ignore).sets
        return {
            self.value_names[value]: [self.leaf_names[leaf] for leaf in sorted(leaves)]
            for value, leaves in enumerate(protocol.sets)
            if leaves != plain[value]
            or value in protocol.vouched
            or (protocol.states_ignore and value == self.num_leaves)
        }

    def to_dataset_json(self) -> dict[str, Any]:
        """All that `dataset.json` says about labels: `labels`, `label_sets` and, with regions,
        their order.
        """
        labels: dict[str, Any] = {name: value for value, name in enumerate(self.value_names)}
        if self.regions is None:
            return {"labels": labels, BLOCK: self.to_block()}
        labels = {
            self.leaf_names[0]: 0,
            **{name: sorted(members) for name, members in self.regions.items()},
        }
        labels |= {IGNORE: self.num_leaves} if self.has_ignore else {}
        return {
            "labels": labels,
            "regions_class_order": list(self.regions_class_order),
            BLOCK: self.to_block(),
        }
