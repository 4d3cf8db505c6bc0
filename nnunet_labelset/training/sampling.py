"""Sampling: which case a patch comes from, and which voxels it may be centred on.

nnU-Net's loader draws from the data set's list of cases and centres patches on the locations that a
case offers. `SampledDataset` wraps nnU-Net's data set and changes both; the loader stays nnU-Net's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError

BY_LEAF, UNIFORM = "leaf", "uniform"
VARIABLE = "nnunet_labelset_sampling"
FEWEST_ENTRIES = 20_000  # of the list of cases from which the loader draws
MOST_ENTRIES = 1_000_000


def read_sampling_mode(default: str) -> str:
    """Return `leaf` or `uniform` from the environment: nnU-Net's trainers have no options."""
    mode = os.environ.get(VARIABLE, default)
    if mode not in (BY_LEAF, UNIFORM):
        raise LabelSetError(
            f"Expected {VARIABLE} to be '{BY_LEAF}' or '{UNIFORM}', but got '{mode}'"
        )
    return mode


def probabilities(contract: Contract, cases: Sequence[str]) -> np.ndarray:
    """Return the probability of each case: draw a label, then one of the cases that annotate it.

    `P(case) = 1/C * sum over the labels c that it annotates of 1/n_c`, where `n_c` cases annotate
    c. Labels that no case annotates are not drawn. A case that annotates nothing gets the smallest
    weight of the others.
    """
    annotated = np.zeros((len(cases), contract.num_leaves))
    for row, case in zip(annotated, cases, strict=True):
        row[list(contract.protocol(case).annotated)] = 1
    number = annotated.sum(0)
    weights = annotated[:, number > 0] @ (1 / number[number > 0])
    has_weight = weights > 0
    weights[~has_weight] = weights[has_weight].min() if has_weight.any() else 1
    return weights / weights.sum()


def repeat_cases(cases: Sequence[str], chance: np.ndarray) -> Sequence[str] | np.ndarray:
    """Return a list from which a uniform draw takes every case with its probability.

    With equal probabilities it is `cases` itself.
    """
    if np.allclose(chance, 1 / len(cases)):
        return cases
    length = min(MOST_ENTRIES, math.ceil(1 / chance.min()))
    exact = chance * max(FEWEST_ENTRIES, 20 * len(cases), length)
    times = np.maximum(np.floor(exact).astype(int), 1)
    missing = max(0, round(exact.sum()) - times.sum())
    largest_remainders = np.argsort(times - exact, kind="stable")[:missing]
    times[largest_remainders] += 1
    # an array: nnU-Net's loader would copy a list for every batch
    return np.repeat(np.array(cases), times)


class Centres:
    """Locations `(0, *voxel)` of a class, moved inwards where a patch would leave the image.

    nnU-Net does this at the lower border only, and pads the patch at the upper one.
    """

    def __init__(self, voxels: Any, shape: Sequence[int], patch: Sequence[int]) -> None:
        self.voxels = voxels
        width = np.minimum(shape, patch)
        self.highest = np.array([0, *(np.array(shape) - (width + 1) // 2)])

    def __len__(self) -> int:
        return len(self.voxels)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.minimum(self.voxels[index], self.highest)


class AllCentres:
    """Centres of all patches that fit into the image, with more weight on its borders.

    Positions are evenly spaced along every axis, up to a quarter of the patch beyond each border,
    and then moved back into the image. Otherwise patches not much smaller than the image would
    hardly ever show a corner, and the network would invent structures there. Half a patch was no
    better (docs/accuracy.md).
    """

    def __init__(self, shape: Sequence[int], patch: Sequence[int]) -> None:
        width = np.minimum(shape, patch)
        self.lowest = width // 2
        self.free = np.array(shape) - width
        self.margin = np.where(self.free > 0, width // 4, 0)
        self.positions = tuple(map(int, self.free + 2 * self.margin + 1))

    def __len__(self) -> int:
        return math.prod(self.positions)

    def __getitem__(self, index: int) -> np.ndarray:
        position = np.array(np.unravel_index(index, self.positions)) - self.margin
        return np.array([0, *(self.lowest + np.clip(position, 0, self.free))])


class Sampling:
    """How a training draws its cases and places its patches."""

    def __init__(
        self,
        contract: Contract,
        patch_size: Sequence[int],
        ignore_key: tuple[int, ...] | None,
        mode: str = BY_LEAF,
    ) -> None:
        """
        contract: what the cases annotate.
        patch_size: `(z, y, x)` or `(y, x)`.
        ignore_key: nnU-Net's key for the voxels that are not ignored; None without ignore label.
        mode: by label, or uniformly as nnU-Net does.
        """
        self.contract = contract
        self.ignore_key = ignore_key
        self.mode = mode
        padded_patch = (1,) * (3 - len(patch_size)) + tuple(patch_size)
        self.patch = padded_patch if self.is_by_leaf else (1, 1, 1)

    @property
    def is_by_leaf(self) -> bool:
        return self.mode == BY_LEAF

    def probabilities(self, cases: Sequence[str]) -> np.ndarray:
        """Return how likely each case is."""
        if self.is_by_leaf:
            return probabilities(self.contract, cases)
        return np.full(len(cases), 1 / len(cases))

    def shares(self, cases: Sequence[str]) -> dict[str, float]:
        """Return for every label the probability that it is annotated in a sample."""
        share = dict.fromkeys(self.contract.leaf_names, 0.0)
        for case, probability in zip(cases, self.probabilities(cases), strict=True):
            for label in self.contract.annotated(case):
                share[label] += float(probability)
        return share

    def describe(self, cases: Sequence[str]) -> str:
        """Return a table for the training log."""
        width = max(map(len, self.contract.leaf_names))
        title = f"Sampling '{self.mode}' ({VARIABLE}): share of samples that annotate each label:"
        rows = [f"  {label:{width}}  {share:6.1%}" for label, share in self.shares(cases).items()]
        return "\n".join([title, *rows])


class SampledDataset:
    """An nnU-Net data set that is sampled for what its cases annotate.

    - In a data set with an ignore label, nnU-Net centres its random patches on voxels with another
      value. That is right where `ignore` may be every label. Where its label-set excludes a label,
      every voxel is informative.
    - By label: cases are drawn so that labels are equally likely, oversampled patches are centred
      on labels that the case annotates, and no patch crosses the upper border of the image.
    """

    def __init__(self, dataset: Any, sampling: Sampling) -> None:
        """dataset: nnU-Net's."""
        self.dataset = dataset
        self.sampling = sampling
        self.cases = list(dataset.identifiers)
        self.identifiers = repeat_cases(self.cases, sampling.probabilities(self.cases))

    def load_case(self, identifier: str) -> tuple[Any, Any, Any, dict]:
        data, seg, seg_prev, properties = self.dataset.load_case(identifier)
        protocol = self.sampling.contract.protocol(str(identifier))
        shape = data.shape[1:]
        patch = self.sampling.patch
        locations = properties["class_locations"]
        if self.sampling.is_by_leaf:
            kept = _known_foreground(locations, protocol.sets)
            locations = {key: Centres(locations[key], shape, patch) for key in kept}
        ignore_key = self.sampling.ignore_key
        if ignore_key is not None and protocol.sets[-1] != protocol.full_set:
            locations[ignore_key] = AllCentres(shape, patch)
        properties["class_locations"] = locations
        return data, seg, seg_prev, properties


def _known_foreground(locations: Mapping[Any, Any], sets: Sequence[frozenset[int]]) -> list[Any]:
    """Return the keys of the values that stand for one label other than background; if there are
    none, of those that certainly are not background.

    Keys that are tuples belong to the voxels that are not ignored; they stay. So does the order,
    which nnU-Net draws from.
    """
    foreground = [key for key in locations if _is_foreground(key, sets) and len(locations[key])]
    single = [value for value in foreground if len(sets[value]) == 1]
    kept_values = single or foreground
    return [key for key in locations if isinstance(key, tuple) or key in kept_values]


def _is_foreground(key: Any, sets: Sequence[frozenset[int]]) -> bool:
    """Tell whether a key is a value that certainly is not background."""
    return not isinstance(key, tuple) and 0 not in sets[key]
