"""Which case a training sample comes from, and which voxels its patch may be centred on.

nnU-Net's loader draws from the list of cases and centres a patch on one of the locations that a
case offers. Both are handed out by the data set, so that a data set of our own decides what is
seen, and the loader stays nnU-Net's.
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
ENTRIES = 20_000, 1_000_000  # of the list that stands for the probabilities, at least and at most


def chosen_sampling(default: str) -> str:
    """`leaf` or `uniform`, from the environment: nnU-Net gives its trainers no other options."""
    chosen = os.environ.get(VARIABLE, default)
    if chosen not in (BY_LEAF, UNIFORM):
        raise LabelSetError(
            f"Expected {VARIABLE} to be '{BY_LEAF}' or '{UNIFORM}', but got '{chosen}'"
        )
    return chosen


def probabilities(contract: Contract, cases: Sequence[str]) -> np.ndarray:
    """How likely each case is when every leaf is: draw a leaf, then one of the cases that annotate
    it.

    `P(case) = 1/C * sum over the leaves c that it annotates of 1/n_c`, `n_c` cases annotate c.
    Leaves that no case annotates are not drawn. A case that annotates nothing gets the smallest
    weight of the others.
    """
    annotated = np.zeros((len(cases), contract.num_leaves))
    for row, case in zip(annotated, cases, strict=True):
        row[list(contract.protocol(case).annotated)] = 1
    number = annotated.sum(0)
    weights = annotated[:, number > 0] @ (1 / number[number > 0])
    some = weights > 0
    weights[~some] = weights[some].min() if some.any() else 1
    return weights / weights.sum()


def repeated(cases: Sequence[str], chance: np.ndarray) -> Sequence[str] | np.ndarray:
    """A list from which a uniform draw takes every case with its probability; equal probabilities
    change nothing.
    """
    if np.allclose(chance, 1 / len(cases)):
        return cases
    least, most = ENTRIES
    exact = chance * max(least, 20 * len(cases), min(most, math.ceil(1 / chance.min())))
    times = np.maximum(np.floor(exact).astype(int), 1)
    short = max(0, round(exact.sum()) - times.sum())
    times[np.argsort(times - exact, kind="stable")[:short]] += (
        1  # the largest remainders are rounded up
    )
    return np.repeat(
        np.array(cases), times
    )  # an array: nnU-Net's loader would copy a list for every batch


def shares(contract: Contract, cases: Sequence[str], chance: np.ndarray) -> dict[str, float]:
    """For every leaf the probability that it is annotated in a sample."""
    share = dict.fromkeys(contract.leaf_names, 0.0)
    for case, probability in zip(cases, chance, strict=True):
        for leaf in contract.annotated(case):
            share[leaf] += float(probability)
    return share


class Centres:
    """Locations `(0, *voxel)` of a class, moved where the patch around them would leave the image.

    nnU-Net itself moves them away from the lower border only, and fills the rest of the patch with
    padding.
    """

    def __init__(self, voxels: Any, shape: Sequence[int], patch: Sequence[int]) -> None:
        self.voxels = voxels
        middle = [
            size - (min(size, width) + 1) // 2 for size, width in zip(shape, patch, strict=True)
        ]
        self.highest = np.array([0, *middle])

    def __len__(self) -> int:
        return len(self.voxels)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.minimum(self.voxels[index], self.highest)


class AllCentres:
    """Centres of all patches that fit into the image, those at its borders more than once.

    A patch is moved along every axis evenly, a quarter of its width beyond each border, and then
    back into the image. Else a patch that is not much smaller than the image would hardly ever show
    a corner, and structures are invented there. Half of its width, as if it were centred on any
    voxel, was measured to be no better (docs/accuracy.md).
    """

    def __init__(self, shape: Sequence[int], patch: Sequence[int]) -> None:
        width = np.minimum(shape, patch)
        self.lowest = width // 2
        self.free = np.array(shape) - width
        self.beyond = np.where(self.free > 0, width // 4, 0)
        self.places = tuple(map(int, self.free + 2 * self.beyond + 1))

    def __len__(self) -> int:
        return math.prod(self.places)

    def __getitem__(self, index: int) -> np.ndarray:
        place = np.array(np.unravel_index(index, self.places)) - self.beyond
        return np.array([0, *(self.lowest + np.clip(place, 0, self.free))])


class SampledDataset:
    """An nnU-Net data set that is sampled for what its cases annotate.

    - In a data set with an ignore label, nnU-Net centres its random patches on voxels that have
      another value. That is right where `ignore` may be every leaf. Where its label-set excludes a
      leaf, every voxel says something.
    - By leaf: cases are drawn so that leaves are equally likely, oversampled patches are centred on
      leaves that the case annotates, and no patch is placed across the upper border of the image.
    """

    def __init__(
        self,
        dataset: Any,
        contract: Contract,
        ignore_key: tuple[int, ...] | None,
        patch: Sequence[int],
        by_leaf: bool,
    ) -> None:
        """
        dataset: nnU-Net's.
        ignore_key: nnU-Net's key of the voxels that are not ignored; None without an ignore label.
        patch: what the network sees, `(z, y, x)` or `(y, x)`.
        """
        self.dataset = dataset
        self.contract = contract
        self.ignore_key = ignore_key
        self.by_leaf = by_leaf
        self.patch = (1,) * (3 - len(patch)) + tuple(patch) if by_leaf else (1, 1, 1)
        self.cases = list(dataset.identifiers)
        self.identifiers: Sequence[str] | np.ndarray = self.cases
        if by_leaf:
            self.identifiers = repeated(self.cases, probabilities(contract, self.cases))

    def load_case(self, identifier: str) -> tuple[Any, Any, Any, dict]:
        data, seg, seg_prev, properties = self.dataset.load_case(identifier)
        shape, sets = data.shape[1:], self.contract.protocol(str(identifier)).sets
        locations = properties["class_locations"]
        if self.by_leaf:
            locations = _known_foreground(locations, sets)
            locations = {
                key: Centres(voxels, shape, self.patch) for key, voxels in locations.items()
            }
        if self.ignore_key is not None and sets[-1] != self.contract.full_set:
            locations[self.ignore_key] = AllCentres(shape, self.patch)
        properties["class_locations"] = locations
        return data, seg, seg_prev, properties


def _known_foreground(
    locations: Mapping[Any, Any], sets: Sequence[frozenset[int]]
) -> dict[Any, Any]:
    """Without the values that do not stand for one leaf; where none is left, those that are no
    background for certain.

    The key of the voxels that are not ignored, a tuple, stays.
    """
    present = {
        key: voxels for key, voxels in locations.items() if isinstance(key, tuple) or len(voxels)
    }
    single = {
        key
        for key in present
        if isinstance(key, tuple) or (len(sets[key]) == 1 and 0 not in sets[key])
    }
    if all(isinstance(key, tuple) for key in single):
        single |= {key for key in present if not isinstance(key, tuple) and 0 not in sets[key]}
    return {key: voxels for key, voxels in present.items() if key in single}
