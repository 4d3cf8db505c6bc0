"""The contract: what a value of a label file means in a given case, read from `dataset.json`.

One mistake does not hide the others: what is wrong is told and left out, the rest is read.

Pure Python on purpose: converters and evaluation workers read the contract without importing torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nnunet_labelset.contract.protocol import LabelSet, Protocol
from nnunet_labelset.contract.region_rules import (
    BLOCK,
    IGNORE,
    REGIONS_VERSION,
    VERSION,
    hidden_regions,
    order_problems,
    plain_labels,
    region_problems,
    shortened,
    unused_leaves,
)
from nnunet_labelset.errors import LabelSetError, did_you_mean, near_miss
from nnunet_labelset.io.text import some

MOST_HINTS = 20  # a search for similar names among thousands takes a while
ANYTHING = "anything"


def without_protocol(case: str, hint: str = "") -> LabelSetError:
    """Return the error for a case that the contract does not list."""
    return LabelSetError(
        f"case '{case}' has no protocol: add it to {BLOCK}.cases in dataset.json{hint}"
    )


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
            raise without_protocol(case, hint) from None

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

    def require_cases(self, cases: Iterable[str], remedy: str = "") -> None:
        """Fail with one message that names the cases without protocol.

        remedy: what else helps, as the end of the message.
        """
        missing = sorted(set(cases) - set(self.cases))
        if missing:
            names = some(f"'{case}'" for case in missing)
            raise LabelSetError(
                f"{len(missing)} case(s) without a protocol: {names}: add them to {BLOCK}.cases in "
                f"dataset.json{remedy}"
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


@dataclass
class Parsed:
    """The parts of a contract, named as in `Contract`; `leaf_names` is empty if `labels` cannot be
    read.
    """

    problems: list[str] = field(default_factory=list)
    leaf_names: tuple[str, ...] = ()
    has_ignore: bool = False
    regions: dict[str, LabelSet] | None = None
    regions_class_order: tuple[int, ...] = ()
    protocols: dict[str, Protocol] = field(default_factory=dict)
    cases: dict[str, str] = field(default_factory=dict)

    @property
    def value_names(self) -> tuple[str, ...]:
        return (*self.leaf_names, IGNORE) if self.has_ignore else self.leaf_names

    def wrong(self, text: str) -> None:
        self.problems.append(text)

    def hint(self, word: object, known: Iterable[str]) -> str:
        return did_you_mean(str(word), known) if len(self.problems) < MOST_HINTS else ""


def parse_labels(
    dataset_json: Mapping[str, Any], leaves: Mapping[str, int] | None = None
) -> Parsed:
    """Leaves, `ignore` and regions; protocols and cases are not looked at.

    `leaves` names the values of a data set with regions that does not do so itself.
    """
    parsed = Parsed()
    labels, block = dataset_json.get("labels"), dataset_json.get(BLOCK)
    if not isinstance(labels, Mapping) or not labels:
        parsed.wrong("dataset.json has no 'labels': expected an object of label name -> value")
        return parsed
    declared = (
        block
        if isinstance(block, Mapping) and _same(block.get("version"), REGIONS_VERSION)
        else None
    )
    if leaves is not None or declared is not None:
        named = leaves if leaves is not None else (declared or {}).get("leaves")
        _parse_regions(parsed, labels, named, dataset_json.get("regions_class_order"))
        return parsed
    for name, value in labels.items():
        if isinstance(value, (list, tuple)):
            parsed.wrong(
                f"label '{name}' is a region {value!r}: say which label each value is, in "
                f"{BLOCK}.leaves with {BLOCK}.version {REGIONS_VERSION}"
            )
            return parsed
    _parse_values(parsed, labels, "'labels'")
    return parsed


def _parse_values(parsed: Parsed, values: Mapping[str, Any], where: str) -> None:
    """Read the names of 0, 1, 2, ..., the last of which may be `ignore`."""
    problem = next(_value_problems(values, where), None)
    if problem is not None:
        parsed.wrong(problem)
        return
    by_value = sorted(values, key=lambda name: values[name])
    parsed.leaf_names = tuple(str(name) for name in by_value if name != IGNORE)
    parsed.has_ignore = IGNORE in values


def _value_problems(values: Mapping[str, Any], where: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            yield f"Expected the value of label '{name}' to be an integer, but got {value!r}"
    yield from _name_problems(values)
    by_value = sorted(values, key=lambda name: values[name])
    numbers = [values[name] for name in by_value]
    if numbers != list(range(len(numbers))):
        yield (
            f"Expected the values of {where} to be 0, 1, 2, ... without gaps, but got "
            f"{shortened(numbers)}: nnU-Net needs it; 'nnunet_labelset convert' renumbers label "
            "maps"
        )
    if IGNORE in values and by_value[-1] != IGNORE:
        yield f"Expected '{IGNORE}' to have the highest value, but '{by_value[-1]}' has"
    if len(by_value) - (IGNORE in values) < 2:
        yield f"Expected at least two labels (background and one more), but got {len(by_value)}"


def _name_problems(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        text = str(name)
        if not text.strip():
            yield f"label {value} has an empty name: give it one"
        if text.lower() == "all":
            yield f"label '{text}': this word means every label in tables: rename it"
        if any(0xD800 <= ord(character) < 0xE000 for character in text):
            yield f"label {text!r} holds half of a character (a lone surrogate): rename it"


def _parse_regions(parsed: Parsed, labels: Mapping[str, Any], leaves: Any, order: Any) -> None:
    """Read `labels` with background, regions and `ignore`; `leaves` names the values that regions
    are made of.
    """
    if not isinstance(leaves, Mapping) or IGNORE in leaves:
        parsed.wrong(
            f"Expected {BLOCK}.leaves to be an object of label name -> value without '{IGNORE}', "
            f"as {{...}}"
        )
        return
    named = Parsed()
    _parse_values(named, leaves, f"{BLOCK}.leaves")
    parsed.problems += named.problems
    if named.problems:
        return
    if not _same(labels.get("background"), 0):  # nnU-Net stops at it, deep inside
        parsed.wrong(
            f"Expected 'labels' to declare 'background' as 0, but got {labels.get('background')!r}"
        )
    names = named.leaf_names
    regions = _sound_regions(parsed, labels, names)
    if not parsed.problems:
        parsed.problems += unused_leaves(names, regions)
    parsed.problems += hidden_regions(regions)
    if not parsed.problems:
        parsed.problems += plain_labels(labels, regions)
    parsed.problems += order_problems(labels, regions, order)
    if not parsed.problems:
        parsed.leaf_names = names
        parsed.has_ignore = IGNORE in labels
        parsed.regions = regions
        parsed.regions_class_order = tuple(order)


def _sound_regions(
    parsed: Parsed, labels: Mapping[str, Any], names: tuple[str, ...]
) -> dict[str, LabelSet]:
    """Return the regions of `labels`, after noting what is wrong with others."""
    regions = {}
    for name, value in labels.items():
        members = list(value) if isinstance(value, (list, tuple)) else [value]
        problem = next(region_problems(str(name), value, members, names), None)
        if problem is not None:
            parsed.wrong(problem)
        elif name != IGNORE and members != [0]:
            regions[str(name)] = frozenset(members)
    return regions


def parse_contract(dataset_json: Mapping[str, Any]) -> Parsed:
    """All of the contract; without sound labels nothing else can be said about values."""
    parsed = parse_labels(dataset_json)
    if not parsed.leaf_names:
        return parsed
    block = dataset_json.get(BLOCK)
    if not isinstance(block, Mapping):
        parsed.wrong(_no_block(block))
        return parsed
    parsed.problems += _key_problems(block, has_regions=bool(parsed.regions))
    for key in ("protocols", "cases"):
        if not isinstance(block.get(key), Mapping):
            parsed.wrong(
                f"Expected {BLOCK}.{key} in dataset.json to be an object, but got "
                f"{shortened(block.get(key))}"
            )
            return parsed
    for name, protocol in block["protocols"].items():
        _parse_protocol(parsed, str(name), protocol)
    for case, name in block["cases"].items():
        if isinstance(name, str) and name in parsed.protocols:
            parsed.cases[str(case)] = name
        else:
            hint = parsed.hint(name, parsed.protocols)
            parsed.wrong(f"case '{case}': unknown protocol {name!r} in {BLOCK}.cases{hint}")
    return parsed


def _no_block(block: Any) -> str:
    if block is not None:
        return f"Expected '{BLOCK}' in dataset.json to be an object, but got {type(block).__name__}"
    return (
        f"dataset.json has no '{BLOCK}' block, so nothing says what is annotated in which case: "
        f"write one with 'nnunet_labelset annotate', or the whole data set with 'convert' or "
        f"'merge'"
    )


def _key_problems(block: Mapping[str, Any], has_regions: bool) -> Iterator[str]:
    version = block.get("version")
    if not _same(version, VERSION) and not _same(version, REGIONS_VERSION):
        yield (
            f"Expected {BLOCK}.version to be {VERSION}, or {REGIONS_VERSION} for regions, but got "
            f"{version!r}"
        )
    known = {"version", "protocols", "cases"}
    if has_regions:
        known.add("leaves")
    if unknown := set(map(str, block)) - known:
        yield f"Unknown key(s) in {BLOCK} of dataset.json: {', '.join(sorted(unknown))}"


def _parse_protocol(parsed: Parsed, name: str, protocol: Any) -> None:
    if not isinstance(protocol, Mapping):
        parsed.wrong(
            f"Expected protocol '{name}' to be an object of value -> labels, but got {protocol!r}"
        )
        return
    index = {leaf: number for number, leaf in enumerate(parsed.value_names)}
    sets = list(Protocol.complete(len(parsed.leaf_names), parsed.has_ignore).sets)
    itself = set()
    for value, leaves in protocol.items():
        problem = next(_set_problems(parsed, value, leaves), None)
        if problem is not None:
            parsed.wrong(f"protocol '{name}', value '{value}': {problem}")
            continue
        number = index[value]
        sets[number] = frozenset(index[leaf] for leaf in leaves)
        if sets[number] == {number}:
            itself.add(number)
    states_ignore = IGNORE in protocol and len(sets[-1]) == len(parsed.leaf_names)
    read = Protocol(tuple(sets), len(parsed.leaf_names), states_ignore=states_ignore)
    parsed.protocols[name] = replace(read, vouched=frozenset(itself) & read.uncertain)


def _set_problems(parsed: Parsed, value: str, leaves: Any) -> Iterator[str]:
    """Yield what is wrong with one entry of a protocol; only the first problem counts."""
    names = parsed.leaf_names
    if value == IGNORE and not parsed.has_ignore:
        yield f"'labels' in dataset.json does not declare '{IGNORE}'"
    if value not in parsed.value_names:
        yield f"no such label{_region_hint(parsed, value) or parsed.hint(value, names)}"
    if not isinstance(leaves, (list, tuple, set, frozenset)):
        yield f"expected a list of labels, but got {leaves!r}"
        return
    if not leaves:
        yield "empty label-set; name the labels that such a voxel may be"
    for leaf in leaves:
        if leaf not in names:
            yield f"unknown label {leaf!r}{_region_hint(parsed, leaf) or parsed.hint(leaf, names)}"


def _region_hint(parsed: Parsed, name: object) -> str:
    if not isinstance(name, str) or name not in (parsed.regions or {}):
        return ""
    leaves = ", ".join(parsed.leaf_names[leaf] for leaf in sorted((parsed.regions or {})[name]))
    return f"; '{name}' is a region: protocols name its labels ({leaves})"


def _same(value: Any, number: int) -> bool:
    return type(value) is int and value == number
