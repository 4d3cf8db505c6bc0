"""Data sets are merged by the names of their labels and channels: renamed, united, and told to the
user.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from itertools import combinations

from nnunet_labelset.contract import IGNORE, Contract, LabelSet
from nnunet_labelset.dataset_conversion.merge import InputDataset, ways_to_write
from nnunet_labelset.dataset_conversion.sources.manifest import check_label
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.text import some

NEARLY = 0.9  # names as alike as 'liver_tumor' and 'liver_tumour'


def rename_labels(datasets: Sequence[InputDataset], options: Sequence[str]) -> None:
    """Apply `DATASET:LABEL=LEAF[+LEAF]`; a folder may have a colon in its name."""
    for option in options:
        given = ", ".join(dataset.given for dataset in datasets)
        ways = [
            (len(way), number)
            for number, dataset in enumerate(datasets)
            for way in ways_to_write(dataset.given, dataset.folder)
            if option.startswith(f"{way}:")
        ]
        length, number = max(ways, default=(option.find(":"), -1))
        label, _, leaves = option[length + 1 :].partition("=")
        names = tuple(name.strip() for name in leaves.split("+"))
        if length < 1 or not label or not all(names) or IGNORE in names:
            raise LabelSetError(
                f"--label {option}: expected DATASET:LABEL=LEAF or DATASET:LABEL=LEAF+LEAF"
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
    leaves = tuple(
        dict.fromkeys(
            [
                "background",
                *(leaf for dataset in datasets for n in dataset.names.values() for leaf in n),
            ]
        )
    )
    known = {
        names[0] for dataset in datasets for names in dataset.names.values() if len(names) == 1
    }
    known.update(*(dataset.contract.leaf_names for dataset in datasets))
    for leaf in leaves:
        if leaf not in known:
            hint = did_you_mean(leaf, sorted(known - {"background"}))
            raise LabelSetError(f"--label ...+{leaf}: no data set has a label '{leaf}'{hint}")
    return leaves


def common_labels(datasets: Sequence[InputDataset]) -> Contract:
    """All leaves, and all regions by name; a leaf that no region holds is a region of its own, if
    there are any.

    Larger ones come first: nnU-Net writes the later ones over them.
    """
    leaves = _common_leaves(datasets)
    for name in leaves:
        check_label(name, "the data sets together")
    members: dict[str, LabelSet] = {}
    order: dict[str, int] = {}
    for dataset in datasets:
        own = dataset.contract.regions or {}
        for (region, values), value in zip(
            own.items(), dataset.contract.regions_class_order, strict=True
        ):
            names = {
                name for leaf in values for name in dataset.names[dataset.contract.leaf_names[leaf]]
            }
            found = frozenset(map(leaves.index, names))
            if members.setdefault(region, found) != found:
                listed = [
                    ", ".join(leaves[leaf] for leaf in sorted(sets))
                    for sets in (members[region], found)
                ]
                raise LabelSetError(
                    f"region '{region}' is {listed[0]} in one data set, and {listed[1]} in "
                    f"{dataset.given}: rename it "
                    "in one dataset.json, or unite the labels with --label"
                )
            order.setdefault(
                region, leaves.index(dataset.names[dataset.contract.leaf_names[value]][0])
            )
    for leaf in range(1, len(leaves) if members else 0):
        if not any(leaf in region for region in members.values()):
            members[leaves[leaf]], order[leaves[leaf]] = frozenset([leaf]), leaf
    members = {
        name: members[name] for name in sorted(members, key=lambda name: -len(members[name]))
    }
    ordered = tuple(order[name] for name in members)
    return Contract.of_leaves(leaves, "the data sets together", members or None, ordered)


def remarks(datasets: Sequence[InputDataset], leaves: Sequence[str], linked: bool) -> list[str]:
    """What was done by names alone, and is for the user to confirm."""
    having = {
        leaf: [
            dataset
            for dataset in datasets
            if any(leaf in names for names in dataset.names.values())
        ]
        for leaf in leaves
    }
    united = []
    for leaf in leaves[1:]:
        having_it = [
            dataset for dataset in datasets if leaf in dataset.names and leaf not in dataset.renamed
        ]
        by_name = [
            dataset.given if dataset.given.isdigit() else dataset.name for dataset in having_it
        ]
        if len(by_name) > 1:
            united.append(f"{leaf} ({', '.join(by_name)})")
    lines = (
        [f"united because their names are equal; the same structure? {some(united, 10)}"]
        if united
        else []
    )
    is_shared = any(len(having[leaf]) > 1 for leaf in leaves[1:])
    if not is_shared and len(datasets) > 1:
        lines.append(
            "the data sets share no label by name: if two names mean one structure, unite them "
            "with "
            f"--label '{datasets[-1].given}:{datasets[-1].contract.leaf_names[1]}="
            f"{datasets[0].contract.leaf_names[1]}'"
        )
    for a, b in combinations(leaves[1:], 2):
        if any(dataset in having[b] for dataset in having[a]):
            continue
        if _nearly_equal(a, b):
            first, second = having[a][0].given, having[b][0].given
            lines.append(
                f"kept apart, though their names are nearly equal: '{a}' ({first}) and '{b}' "
                f"({second}); to unite them: --label '{second}:{b}={a}'"
            )
        elif whole := _containing(a, b):
            part = b if whole == a else a
            dataset = having[whole][0].given
            lines.append(
                f"'{whole}' ({dataset}) and '{part}' ({having[part][0].given}) are different "
                f"labels: if '{whole}' includes '{part}', say so: "
                f"--label '{dataset}:{whole}={whole}+{part}'"
            )
    return lines + (
        ["images are links into the data sets that were merged: --copy copies them"]
        if linked
        else []
    )


def _containing(a: str, b: str) -> str:
    """Return the name all words of which the other one has too, as `kidney` and `left_kidney`."""
    words = {name: set(re.split(r"[\W_]+", name.casefold())) for name in (a, b)}
    if words[a] < words[b]:
        return a
    return b if words[b] < words[a] else ""


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
    found = {dataset.channels: dataset for dataset in datasets}
    # 'CT' and 'ct' are one name
    names = {tuple(channel.casefold() for channel in channels) for channels in found}
    if len({len(channels) for channels in found}) > 1 or (chosen is None and len(names) > 1):
        listed = "; ".join(
            f"{dataset.folder.name}: {', '.join(channels)}" for channels, dataset in found.items()
        )
        raise LabelSetError(
            f"the data sets have different channels ({listed}): if they mean the same, use "
            "--channels"
        )
    channels = datasets[0].channels
    if chosen is not None and len(chosen) != len(channels):
        raise LabelSetError(f"--channels: expected {len(channels)} names, but got {len(chosen)}")
    return tuple(chosen or channels)
