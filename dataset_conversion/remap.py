"""Change the values of a label map. Pure arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


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
