"""Which voxels a training patch may be centred on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np


class AllVoxels:
    """The coordinates of every voxel, `(0, *voxel)` as in nnU-Net's class locations, without storing them."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = tuple(int(size) for size in shape)

    def __len__(self) -> int:
        return int(np.prod(self.shape))

    def __getitem__(self, index: int) -> tuple[int, ...]:
        return 0, *(int(i) for i in np.unravel_index(index, self.shape))


class SampledDataset:
    """An nnU-Net data set whose unannotated but informative voxels are sampled like any other.

    In a data set with an ignore label, nnU-Net centres its random patches on voxels that have another value. That is
    right where `ignore` may be every leaf. Where its label-set excludes a leaf, every voxel of the case says something.
    """

    def __init__(self, dataset: Any, informative_cases: Collection[str], annotated_key: tuple[int, ...]) -> None:
        self.dataset = dataset
        self.identifiers = dataset.identifiers
        self.informative_cases = frozenset(informative_cases)
        self.annotated_key = annotated_key

    def load_case(self, identifier: str) -> tuple[Any, Any, Any, dict]:
        data, seg, seg_prev, properties = self.dataset.load_case(identifier)
        if identifier in self.informative_cases:
            properties["class_locations"][self.annotated_key] = AllVoxels(data.shape[1:])
        return data, seg, seg_prev, properties
