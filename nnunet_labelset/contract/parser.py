"""Reads `labels` and `label_sets` of a `dataset.json`: everything that is sound, and every problem
there is.

One mistake does not hide the others: what is wrong is told and left out, the rest is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from nnunet_labelset.contract.protocol import LabelSet, Protocol
from nnunet_labelset.errors import did_you_mean

IGNORE = "ignore"
BLOCK = "label_sets"
VERSION = 1
REGIONS_VERSION = 2
MOST_HINTS = 20  # a search for similar names among thousands takes a while


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
            f"{_short(numbers)}: nnU-Net needs it; 'nnunet_labelset convert' renumbers label maps"
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
        parsed.problems += _unused_leaves(names, regions)
    parsed.problems += _hidden_regions(regions)
    if not parsed.problems:
        parsed.problems += _plain_labels(labels, regions)
    parsed.problems += _order_problems(labels, regions, order)
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
        problem = next(_region_problems(str(name), value, members, names), None)
        if problem is not None:
            parsed.wrong(problem)
        elif name != IGNORE and members != [0]:
            regions[str(name)] = frozenset(members)
    return regions


def _region_problems(
    name: str, value: Any, members: list[Any], names: tuple[str, ...]
) -> Iterator[str]:
    """Yield what is wrong with one entry of `labels`; only the first problem counts."""
    if name == IGNORE:
        if not _same(value, len(names)):
            yield (
                f"Expected '{IGNORE}' to be {len(names)}, one more than the last label, but got "
                f"{value!r}"
            )
        return
    if not members:
        yield f"region '{name}' has no labels: list their values, or remove it"
    unknown = [member for member in members if not _is_value(member, len(names))]
    if unknown:
        yield (
            f"region '{name}': {_short(unknown)} is no value of {BLOCK}.leaves "
            f"(0..{len(names) - 1})"
        )
    if 0 in members and len(members) > 1:
        yield (
            f"region '{name}' holds {names[0]} (0), which a segmentation would not show then: take "
            f"0 out"
        )
    if len(set(members)) < len(members) and not _one_label(value):
        yield f"region '{name}' lists a value twice: {_short(members)}"
    if name in names and set(members) != {names.index(name)}:
        yield f"'{name}' is the name of a label and of another region: rename one of them"


def _is_member(value: Any, region: LabelSet) -> bool:
    return type(value) is int and value in region


def _is_value(member: Any, number: int) -> bool:
    return type(member) is int and 0 <= member < number


def _unused_leaves(names: tuple[str, ...], regions: Mapping[str, LabelSet]) -> Iterator[str]:
    used = frozenset().union(*regions.values())
    for leaf in range(1, len(names)):
        if leaf not in used:
            yield (
                f"label '{names[leaf]}' is in no region, so no network could predict it: add "
                f"it to one"
            )


def _hidden_regions(regions: Mapping[str, LabelSet]) -> Iterator[str]:
    for first, later in combinations(regions, 2):
        if regions[first] <= regions[later]:  # nnU-Net writes the regions in this order
            yield (
                f"region '{later}' holds all of '{first}' and is written over it, so that no "
                f"segmentation shows '{first}': list '{later}' before it in 'labels' and "
                f"regions_class_order, or remove one of them"
            )


def _plain_labels(labels: Mapping[str, Any], regions: Mapping[str, LabelSet]) -> Iterator[str]:
    has_regions = any(len(members) > 1 for members in regions.values())
    if not has_regions and not any(map(_one_label, labels.values())):
        yield (f"no region has several labels: use plain labels and {BLOCK}.version {VERSION}")


def _order_problems(
    labels: Mapping[str, Any], regions: Mapping[str, LabelSet], order: Any
) -> Iterator[str]:
    foreground = {name: value for name, value in labels.items() if value not in (0, [0])}
    declared = [str(name) for name in foreground if name != IGNORE]
    if not isinstance(order, (list, tuple)) or len(order) != len(declared):
        yield (
            f"Expected 'regions_class_order' in dataset.json to list {len(declared)} values, one "
            f"for every region ({', '.join(declared)}), but got {order!r}"
        )
        return
    for value, name in zip(order, declared, strict=True):
        if name in regions and not _is_member(value, regions[name]):
            yield (
                f"regions_class_order: {value!r} is no value of region '{name}' "
                f"({_short(regions[name])})"
            )


def _one_label(value: Any) -> bool:
    """Whether it is a label with an output of its own, `[3, 3]`: a list of one value would be a
    plain label for nnU-Net.
    """
    return isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == value[1]


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
                f"{_short(block.get(key))}"
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


def _short(value: Any) -> str:
    text = ", ".join(map(str, sorted(value))) if isinstance(value, frozenset) else repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
