"""Label maps of several raters: what they agree on, and who said what elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnunet_labelset.io.volume import HIGHEST_VALUE

FIRST_DISPUTED = HIGHEST_VALUE + 1  # no value of a label map


def combine_raters(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, dict[int, tuple[int, ...]]]:
    """Return one array of the shape of all, and the values that each disputed number stands for."""
    combined = arrays[0].astype(np.int32)
    differ = np.zeros(combined.shape, dtype=bool)
    for array in arrays[1:]:
        differ |= array != arrays[0]
    if not differ.any():
        return combined, {}
    values = np.sort(np.stack([array[differ].astype(np.int64) for array in arrays]), axis=0)
    columns, inverse = np.unique(values, axis=1, return_inverse=True)
    said = [tuple(sorted(set(column))) for column in columns.T.tolist()]
    number_of = {values: number for number, values in enumerate(sorted(set(said)), FIRST_DISPUTED)}
    numbers = np.array([number_of[values] for values in said], dtype=np.int32)
    combined[differ] = numbers[inverse.ravel()]
    return combined, {number: values for values, number in number_of.items()}


def count_said(counts: Mapping[int, int], disputed: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return how many voxels have each value by at least one rater."""
    said: dict[int, int] = {}
    for value, count in counts.items():
        for rater_value in disputed.get(value, (value,)):
            said[rater_value] = said.get(rater_value, 0) + count
    return said
