"""Data sets are merged by the names of their labels and channels: renamed, united, and told to the
user.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations

from nnunet_labelset.contract import IGNORE, Contract, LabelSet
from nnunet_labelset.dataset_conversion.merge import InputDataset, ways_to_write
from nnunet_labelset.dataset_conversion.merge_channels import (
    channel_order,
    plain_channels,
    same_channels,
)
from nnunet_labelset.dataset_conversion.sources.manifest import check_label
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.text import some

NEARLY = 0.9  # names as alike as 'liver_tumor' and 'liver_tumour'


def rename_labels(datasets: Sequence[InputDataset], options: Sequence[str]) -> None:
    """Apply `DATASET:LABEL=LEAF[+LEAF]`; a folder may have a colon in its name."""
    given = ", ".join(dataset.given for dataset in datasets)
    for option in options:
        length, number = _addressed(option, datasets)
        label, _, leaves = option[length + 1 :].partition("=")
        names = tuple(name.strip() for name in leaves.split("+"))
        if length < 1 or not all([label, *names]) or IGNORE in names:
            raise LabelSetError(
                f"--label {option}: expected DATASET:LABEL=NAME or DATASET:LABEL=NAME+NAME"
            )
        if number < 0:
            raise LabelSetError(f"--label {option}: no such data set among {given}")
        dataset = datasets[number]
        known = dataset.contract.leaf_names[1:]
        if label not in known:
            raise LabelSetError(
                f"--label {option}: {dataset.given} has no such label{did_you_mean(label, known)}"
            )
        for name in names:
            check_label(name, f"--label {option}")
        dataset.names[label] = names
        dataset.renamed.add(label)


def _common_leaves(datasets: Sequence[InputDataset]) -> tuple[str, ...]:
    """Background and all leaves, in the order of the data sets and of their values.

    A leaf that no data set has, but only a `--label` as one of several, is a slip: nothing could
    teach it.
    """
    names = [names for dataset in datasets for names in dataset.names.values()]
    leaves = tuple(dict.fromkeys(["background", *chain.from_iterable(names)]))
    known = {each[0] for each in names if len(each) == 1}
    known.update(*(dataset.contract.leaf_names for dataset in datasets))
    for leaf in leaves:
        if leaf not in known:
            hint = did_you_mean(leaf, sorted(known - {"background"}))
            raise LabelSetError(f"--label ...+{leaf}: no data set has a label '{leaf}'{hint}")
    return leaves


def _addressed(option: str, datasets: Sequence[InputDataset]) -> tuple[int, int]:
    """Return how long the name of a data set before the colon is, and its number (-1: none)."""
    matches = []
    for number, dataset in enumerate(datasets):
        ways = ways_to_write(dataset.given, dataset.folder)
        matches += [(len(way), number) for way in ways if option.startswith(f"{way}:")]
    return max(matches, default=(option.find(":"), -1))


def common_labels(datasets: Sequence[InputDataset]) -> Contract:
    """All leaves, and all regions by name; a leaf that no region holds is a region of its own, if
    there are any.

    Larger ones come first: nnU-Net writes the later ones over them.
    """
    leaves = _common_leaves(datasets)
    for name in leaves:
        check_label(name, "the data sets together")
    regions: dict[str, LabelSet] = {}
    order: dict[str, int] = {}
    for dataset in datasets:
        for region, members, value in _common_regions(dataset, leaves):
            if regions.setdefault(region, members) != members:
                raise LabelSetError(
                    _two_meanings(region, regions[region], members, leaves, dataset)
                )
            order.setdefault(region, value)
    for leaf in _leaves_without_region(leaves, regions):
        regions[leaves[leaf]] = frozenset([leaf])
        order[leaves[leaf]] = leaf
    names = sorted(regions, key=lambda name: -len(regions[name]))
    return Contract.of_leaves(
        leaves,
        "the data sets together",
        {name: regions[name] for name in names} or None,
        tuple(order[name] for name in names),
    )


def _leaves_without_region(leaves: Sequence[str], regions: Mapping[str, LabelSet]) -> list[int]:
    """Return the leaves that no region holds, if there are regions at all."""
    united = frozenset[int]().union(*regions.values())
    return sorted(set(range(1, len(leaves))) - united) if regions else []


def _common_regions(
    dataset: InputDataset, leaves: Sequence[str]
) -> Iterator[tuple[str, LabelSet, int]]:
    """Yield each region of a data set with its common leaves, and the leaf that it writes."""
    contract = dataset.contract
    regions = (contract.regions or {}).items()
    for (region, members), value in zip(regions, contract.regions_class_order, strict=True):
        names = [dataset.names[contract.leaf_names[leaf]] for leaf in members]
        common = frozenset(leaves.index(name) for name in chain.from_iterable(names))
        yield region, common, leaves.index(dataset.names[contract.leaf_names[value]][0])


def _two_meanings(
    region: str, first: LabelSet, second: LabelSet, leaves: Sequence[str], dataset: InputDataset
) -> str:
    words = [", ".join(leaves[leaf] for leaf in sorted(labels)) for labels in (first, second)]
    return (
        f"region '{region}' is {words[0]} in one data set, and {words[1]} in {dataset.given}: "
        f"rename it in one dataset.json, or unite the labels with --label"
    )


def remarks(
    datasets: Sequence[InputDataset], labels: Contract, channels: Sequence[str], linked: bool
) -> list[str]:
    """What was done by names alone, and is for the user to confirm."""
    leaves = labels.leaf_names
    lines = [*_united_names(datasets, leaves), *_similar_names(datasets, leaves)]
    for dataset in datasets:
        if channel_order(dataset.channels, channels) != list(range(len(channels))):
            lines.append(
                f"channels put in order by name: {dataset.folder.name} had "
                f"{', '.join(dataset.channels)}, the new data set has {', '.join(channels)}"
            )
    if linked:
        lines.append("images are links into the data sets that were merged: --copy copies them")
    return lines


def _united_names(datasets: Sequence[InputDataset], leaves: Sequence[str]) -> Iterator[str]:
    """Yield which labels are one because of their names, or that none is."""
    holders = {leaf: _holders(datasets, leaf) for leaf in leaves[1:]}
    united = [f"{leaf} ({', '.join(names)})" for leaf, names in holders.items() if len(names) > 1]
    if united:
        yield f"united because their names are equal; the same structure? {some(united, 10)}"
    for dataset in _without_common_label(datasets, leaves):
        other = datasets[-1] if dataset is datasets[0] else datasets[0]
        yield (
            f"{dataset.folder.name} shares no label by name with the others: if two names mean one "
            f"structure, unite them with --label '{dataset.given}:{dataset.contract.leaf_names[1]}="
            f"{other.contract.leaf_names[1]}'"
        )


def _without_common_label(
    datasets: Sequence[InputDataset], leaves: Sequence[str]
) -> list[InputDataset]:
    """Return the data sets without a label that another one has; of two only the last one."""
    names = Counter(name for dataset in datasets for name in set(dataset.common_names))
    common = {leaf for leaf in leaves[1:] if names[leaf] > 1}
    alone = [dataset for dataset in datasets if common.isdisjoint(dataset.common_names)]
    return alone if len(alone) < len(datasets) else alone[1:]


def _holders(datasets: Sequence[InputDataset], leaf: str) -> list[str]:
    """Return the data sets that have a label of their own accord."""
    own = (dataset for dataset in datasets if leaf not in dataset.renamed)
    return [dataset.short_name for dataset in own if leaf in dataset.names]


def _similar_names(datasets: Sequence[InputDataset], leaves: Sequence[str]) -> Iterator[str]:
    """Yield pairs of labels that may mean one structure, or one a part of the other."""
    holders = {
        leaf: [dataset.given for dataset in datasets if leaf in dataset.common_names]
        for leaf in leaves
    }
    parts_of = defaultdict(list)
    for a, b in combinations(leaves[1:], 2):
        if not set(holders[a]).isdisjoint(holders[b]):
            continue
        whole = _containing(a, b)
        if _nearly_equal(a, b):
            first, second = holders[a][0], holders[b][0]
            yield (
                f"kept apart, though their names are nearly equal: '{a}' ({first}) and '{b}' "
                f"({second}); to unite them: --label '{second}:{b}={a}'"
            )
        elif whole:
            parts_of[whole].append(b if whole == a else a)
    for whole, parts in parts_of.items():
        dataset = holders[whole][0]
        others = ", ".join(f"'{part}' ({holders[part][0]})" for part in parts)
        union = "+".join([whole, *parts])
        yield (
            f"'{whole}' ({dataset}) is a label of its own beside {others}: if '{whole}' includes "
            f"them, say so: --label '{dataset}:{whole}={union}'"
        )


def _containing(a: str, b: str) -> str:
    """Return the name all words of which the other one has too, as `kidney` and `left_kidney`."""
    words = {name: set(_words(name)) for name in (a, b)}
    if words[a] < words[b]:
        return a
    return b if words[b] < words[a] else ""


def _words(name: str) -> list[str]:
    """Return the words of a name, without the s of a plural (`kidneys`)."""
    return [word.removesuffix("s") for word in re.split(r"[\W_]+", name.casefold())]


def _nearly_equal(a: str, b: str) -> bool:
    """Whether two names differ only in spelling; what differs in its numbers differs."""
    plain = [re.sub(r"[\W_]", "", name.casefold()) for name in (a, b)]
    if re.findall(r"\d+", a) != re.findall(r"\d+", b):
        return False
    matcher = difflib.SequenceMatcher(None, plain[0], plain[1])
    return plain[0] == plain[1] or (matcher.quick_ratio() >= NEARLY and matcher.ratio() >= NEARLY)


def common_channels(
    datasets: Sequence[InputDataset], chosen: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the channels of the merged data set; `channel_order` says how the others get there."""
    numbers = {len(dataset.channels) for dataset in datasets}
    channels = tuple(chosen or datasets[0].channels)
    others = [dataset for dataset in datasets if not same_channels(dataset.channels, channels)]
    if len(numbers) > 1 or (chosen is None and others):
        listed = "; ".join(f"{each.folder.name}: {', '.join(each.channels)}" for each in datasets)
        raise LabelSetError(
            f"the data sets have different channels ({listed}): if they mean the same, in this "
            "order, use --channels"
        )
    if len(channels) not in numbers:
        raise LabelSetError(f"--channels: expected {max(numbers)} names, but got {len(channels)}")
    for dataset in others:
        new_names = plain_channels(channels)
        for name, new_name in zip(plain_channels(dataset.channels), new_names, strict=True):
            if name != new_name and name in new_names:
                raise LabelSetError(
                    f"--channels {' '.join(channels)}: {dataset.folder.name} has "
                    f"{', '.join(dataset.channels)}, where '{name}' comes at another place: rename "
                    f"the channels in its dataset.json"
                )
    return channels
