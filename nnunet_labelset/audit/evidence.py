"""What the prediction of a case says about its drawing: counts, nothing is judged here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import ndimage

from nnunet_labelset.contract import Protocol
from nnunet_labelset.evaluation.counts import Counts, hard_confusion, label_set_counts, look_up

SURE = 0.8  # probability from which a voxel of the prediction counts


@dataclass(frozen=True)
class Evidence:
    """The drawing of a case against a prediction by a network that has not seen it.

    voxels: `(V, C)`, voxels with a drawn value and a predicted label, where the network is sure.
    probability: `(V, C)`, the sum of their probabilities; None for predictions without any.
    drawn: `(C,)`, voxels that are certainly of each label, sure or not.
    separate: `(C,)`, voxels of the largest predicted component that touches nothing of its label.
    millilitres: of one voxel.
    """

    protocol: Protocol
    voxels: np.ndarray
    probability: np.ndarray | None
    drawn: np.ndarray
    separate: np.ndarray
    millilitres: float

    @cached_property
    def counts(self) -> Counts:
        return label_set_counts(self.voxels, self.protocol.membership)

    @cached_property
    def overlap(self) -> np.ndarray:
        """Voxels that are certainly one label, by predicted label: `(C, C)`."""
        return _singles(self.protocol).T @ self.voxels

    @cached_property
    def in_gaps(self) -> np.ndarray:
        """Voxels predicted as a label that they may be, among others: `(C,)`."""
        return (self.voxels * self._may_be).sum(0)

    @cached_property
    def gap_confidence(self) -> np.ndarray | None:
        """Mean probability of each label where it is predicted in a gap `(C,)`."""
        if self.probability is None:
            return None
        return (self.probability * self._may_be).sum(0) / np.maximum(1, self.in_gaps)

    @cached_property
    def confidence(self) -> np.ndarray | None:
        """Mean probability of what is predicted where it contradicts a label `(C,)`."""
        if self.probability is None:
            return None
        sums = label_set_counts(self.probability, self.protocol.membership)
        return (sums.fp + sums.fn) / np.maximum(1, self.counts.fp + self.counts.fn)

    @cached_property
    def _may_be(self) -> np.ndarray:
        membership = self.protocol.membership
        return membership & (membership.sum(1, keepdims=True) > 1)


def gather(
    values: np.ndarray,
    predicted: np.ndarray,
    probability: np.ndarray | None,
    protocol: Protocol,
    millilitres: float,
) -> Evidence:
    """Return the evidence of a case.

    values, predicted `(*S)`: label map and prediction; probability `(*S)`: of the predicted label.
    """
    shape = (len(protocol.sets), protocol.num_leaves)
    sure = np.ones(values.shape, bool) if probability is None else probability >= SURE
    voxels = hard_confusion(values[sure], predicted[sure], *shape)
    sums = None
    if probability is not None:
        joint = values[sure].astype(np.int64) * protocol.num_leaves + predicted[sure]
        weights = probability[sure].astype(np.float64)
        sums = np.bincount(joint, weights=weights, minlength=voxels.size).reshape(shape)
    return Evidence(
        protocol=protocol,
        voxels=voxels,
        probability=sums,
        drawn=np.bincount(values.ravel(), minlength=shape[0]) @ _singles(protocol),
        separate=_separate(values, np.where(sure, predicted, 0), protocol),
        millilitres=millilitres,
    )


def _singles(protocol: Protocol) -> np.ndarray:
    """Return which value certainly is which label, as 0 and 1 `(V, C)`."""
    membership = protocol.membership
    return (membership & (membership.sum(1, keepdims=True) == 1)).astype(np.int64)


def _separate(values: np.ndarray, predicted: np.ndarray, protocol: Protocol) -> np.ndarray:
    """Return the voxels of the largest component of each predicted label that lies where the label
    is excluded, touching nothing that may be it: `(C,)`.
    """
    sizes = np.zeros(protocol.num_leaves, np.int64)
    neighbours = np.ones((3,) * values.ndim, bool)
    for label in range(1, protocol.num_leaves):
        mask = predicted == label
        if not mask.any():
            continue
        numbers, count = ndimage.label(mask, neighbours)
        possible = look_up(protocol.membership[:, label], values)
        touching = np.unique(numbers[ndimage.binary_dilation(possible, neighbours)])
        components = np.bincount(numbers.ravel(), minlength=count + 1)
        components[0] = 0
        components[touching] = 0
        sizes[label] = components.max()
    return sizes
