"""Counts and Dice that know what was annotated, from the hard confusion matrix of a segmentation.

For leaf c: tp = predicted c on {c}; fn = predicted something else on {c}; fp = predicted c where
the label-set excludes c. Voxels whose larger label-set contains c count nowhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nnunet_labelset.contract.protocol import relation

PIECE = 1 << 20  # voxels that are counted at once: indices of a whole CT would take a gigabyte


class Counts(NamedTuple):
    """Voxels per leaf, each an array `(C,)`."""

    tp: np.ndarray
    fp: np.ndarray
    fn: np.ndarray
    tn: np.ndarray


def hard_confusion(
    reference: np.ndarray, prediction: np.ndarray, num_values: int, num_leaves: int
) -> np.ndarray:
    """Number of voxels with a given reference value (or set index) and predicted leaf: int64 `(K,
    C)`.
    """
    counts = np.zeros(num_values * num_leaves, dtype=np.int64)
    values, leaves = reference.reshape(-1), prediction.reshape(-1)
    for start in range(0, len(values), PIECE):
        piece = slice(start, start + PIECE)
        joint = values[piece].astype(np.int64) * num_leaves + leaves[piece]
        counts += np.bincount(joint, minlength=len(counts))
    return counts.reshape(num_values, num_leaves)  # (K, C)


def look_up(table: np.ndarray, *indices: np.ndarray) -> np.ndarray:
    """`table[indices]`, row by row, because NumPy makes 8 bytes of every small index first."""
    if indices[0].ndim < 2:
        return table[indices]
    found = np.empty(indices[0].shape, dtype=table.dtype)
    for row, *pieces in zip(found, *indices, strict=True):
        row[...] = table[tuple(pieces)]
    return found


def label_set_counts(
    confusion: np.ndarray, membership: np.ndarray, regions: np.ndarray | None = None
) -> Counts:
    """tp, fp, fn and tn of every leaf from the confusion matrix `(K, C)` of label-sets against
    predicted leaves.

    With `regions`, bool `(R, C)`, the same of unions of leaves: a voxel is in the union if its
    label-set lies inside, not in it if its label-set has no leaf of it, and counts nowhere
    otherwise. The default, one region per leaf, is the rule for leaves.
    """
    if regions is None:
        regions = np.eye(membership.shape[1], dtype=bool)
    inside, outside = relation(membership, regions)  # (K, R)
    predicted = confusion @ regions.T  # (K, R)
    other = confusion.sum(1, keepdims=True) - predicted  # (K, R)
    return Counts(
        tp=(inside * predicted).sum(0),
        fp=(outside * predicted).sum(0),
        fn=(inside * other).sum(0),
        tn=(outside * other).sum(0),
    )


def dice(counts: Counts) -> np.ndarray:
    """Dice per leaf; NaN where the leaf is neither annotated nor wrongly predicted."""
    size = 2 * counts.tp + counts.fp + counts.fn
    return np.divide(2 * counts.tp, size, out=np.full(size.shape, np.nan), where=size > 0)
