"""The values of label maps as arrays: those of several raters combined, old ones made new ones."""

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


def remap(labels: np.ndarray, table: Mapping[int, int], highest: int) -> np.ndarray:
    """Return `table[value]` for every voxel; every value that occurs must be in `table`.

    The result has the smallest unsigned type that holds `highest`.
    """
    dtype = np.min_scalar_type(highest)
    changed = {value: target for value, target in table.items() if value != target}
    if len(changed) <= 3:  # faster than a table, as most files hold the target values already
        result = labels.astype(dtype)
        for value, target in changed.items():
            np.copyto(result, dtype.type(target), where=labels == value)
        return result
    lookup = np.zeros(max(table) + 1, dtype)
    lookup[list(table)] = list(table.values())
    return lookup.take(labels, mode="clip")  # the mode that needs no second look at the values
