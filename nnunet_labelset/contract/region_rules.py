"""Words of the contract in `dataset.json`, and what may be wrong with its regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from nnunet_labelset.contract.protocol import LabelSet

IGNORE = "ignore"
BLOCK = "label_sets"
VERSION = 1
REGIONS_VERSION = 2


def region_problems(
    name: str, value: Any, members: list[Any], names: tuple[str, ...]
) -> Iterator[str]:
    """Yield what is wrong with one entry of `labels`; only the first problem counts."""
    if name == IGNORE:
        if type(value) is not int or value != len(names):
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
            f"region '{name}': {shortened(unknown)} is no value of {BLOCK}.leaves "
            f"(0..{len(names) - 1})"
        )
    if 0 in members and len(members) > 1:
        yield (
            f"region '{name}' holds {names[0]} (0), which a segmentation would not show then: take "
            f"0 out"
        )
    if len(set(members)) < len(members) and not _one_label(value):
        yield f"region '{name}' lists a value twice: {shortened(members)}"
    if name in names and set(members) != {names.index(name)}:
        yield f"'{name}' is the name of a label and of another region: rename one of them"


def _is_member(value: Any, region: LabelSet) -> bool:
    return type(value) is int and value in region


def _is_value(member: Any, number: int) -> bool:
    return type(member) is int and 0 <= member < number


def unused_leaves(names: tuple[str, ...], regions: Mapping[str, LabelSet]) -> Iterator[str]:
    used = frozenset().union(*regions.values())
    for leaf in range(1, len(names)):
        if leaf not in used:
            yield (
                f"label '{names[leaf]}' is in no region, so no network could predict it: add "
                f"it to one"
            )


def hidden_regions(regions: Mapping[str, LabelSet]) -> Iterator[str]:
    for first, later in combinations(regions, 2):
        if regions[first] <= regions[later]:  # nnU-Net writes the regions in this order
            yield (
                f"region '{later}' holds all of '{first}' and is written over it, so that no "
                f"segmentation shows '{first}': list '{later}' before it in 'labels' and "
                f"regions_class_order, or remove one of them"
            )


def plain_labels(labels: Mapping[str, Any], regions: Mapping[str, LabelSet]) -> Iterator[str]:
    has_regions = any(len(members) > 1 for members in regions.values())
    if not has_regions and not any(map(_one_label, labels.values())):
        yield (f"no region has several labels: use plain labels and {BLOCK}.version {VERSION}")


def order_problems(
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
                f"({shortened(regions[name])})"
            )


def _one_label(value: Any) -> bool:
    """Whether it is a label with an output of its own, `[3, 3]`: a list of one value would be a
    plain label for nnU-Net.
    """
    return isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == value[1]


def shortened(value: Any) -> str:
    text = ", ".join(map(str, sorted(value))) if isinstance(value, frozenset) else repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
