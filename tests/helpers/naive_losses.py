"""The losses once more, slowly: straight from the definitions, with Python sets and loops over
leaves and samples.

Nothing is shared with the package. Probabilities `(B, C, *S)`, a label-set (frozenset of leaves)
for every voxel.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-5


def sets_of(values: Tensor, meaning: dict[int, frozenset[int]]) -> list[list[frozenset[int]]]:
    """For every sample, the label-set of every voxel."""
    return [[meaning[int(value)] for value in sample.flatten()] for sample in values]


def phi(p: Tensor, sets: list[frozenset[int]]) -> Tensor:
    """The paper's Phi of one sample (C, n)."""
    columns = []
    for i, labels in enumerate(sets):
        mean = sum(p[c, i] for c in labels) / len(labels)
        columns.append(torch.stack([mean if c in labels else p[c, i] for c in range(len(p))]))
    return torch.stack(columns, 1)


def psi(sets: list[frozenset[int]], leaves: int) -> Tensor:
    """The paper's Psi_0 of one sample (C, n)."""
    rows = [[1 / len(labels) if c in labels else 0.0 for labels in sets] for c in range(leaves)]
    return torch.tensor(rows, dtype=torch.float64)


def dice_terms(
    kind: str, p: Tensor, sets: list[frozenset[int]], alpha: int
) -> list[tuple[Tensor, Tensor]]:
    """Per leaf of one sample: intersection and denominator (without epsilon)."""
    leaves = len(p)
    if kind == "leaf":
        terms = []
        for c in range(leaves):
            annotated = torch.tensor([labels == {c} for labels in sets])
            counted = torch.tensor([labels == {c} or c not in labels for labels in sets])
            terms.append((p[c][annotated].sum(), annotated.sum() + (p[c][counted] ** alpha).sum()))
        return terms
    if kind == "mean":
        kept = [i for i, labels in enumerate(sets) if len(labels) == 1]
        p, sets = p[:, kept], [sets[i] for i in kept]
    prediction = phi(p, sets) if kind == "marginal" and sets else p
    reference = psi(sets, leaves)
    return [
        (
            (prediction[c] * reference[c]).sum(),
            (reference[c] ** alpha).sum() + (prediction[c] ** alpha).sum(),
        )
        for c in range(leaves)
    ]


def dice_loss(
    kind: str,
    probabilities: Tensor,
    sets: list[list[frozenset[int]]],
    alpha: int = 2,
    batch_dice: bool = False,
    include_background: bool = True,
    ignore_full_set: bool = False,
) -> Tensor:
    leaves = probabilities.shape[1]
    samples = []
    for p, labels in zip(probabilities.flatten(2), sets, strict=True):
        kept = [i for i, one in enumerate(labels) if not (ignore_full_set and len(one) == leaves)]
        samples.append(dice_terms(kind, p[:, kept], [labels[i] for i in kept], alpha))
    if batch_dice:
        samples = [
            [
                (sum(t[0] for t in leaf), sum(t[1] for t in leaf))
                for leaf in zip(*samples, strict=True)
            ]
        ]
    scores = [
        2 * intersection / (denominator + EPSILON)
        for terms in samples
        for c, (intersection, denominator) in enumerate(terms)
        if include_background or c > 0
    ]
    return 1 - sum(scores) / len(scores)


def cross_entropy(probabilities: Tensor, sets: list[list[frozenset[int]]]) -> Tensor:
    """Marginal cross entropy, over the voxels that may not be any leaf."""
    total, voxels = probabilities.sum() * 0, 0
    for p, labels in zip(probabilities.flatten(2), sets, strict=True):
        for i, one in enumerate(labels):
            if len(one) < len(p):
                total = total - sum(p[c, i] for c in one).log()
                voxels += 1
    return total / max(voxels, 1)


def focal_loss(
    probabilities: Tensor,
    sets: list[list[frozenset[int]]],
    gamma: float = 2.0,
    ignore_full_set: bool = False,
) -> Tensor:
    """The paper's conversion of the focal loss of soft targets, `sum_c q_c (1 - p_c)**gamma * -log
    p_c`.
    """
    leaves = probabilities.shape[1]
    total, voxels = probabilities.sum() * 0, 0
    for p, labels in zip(probabilities.flatten(2), sets, strict=True):
        kept = [i for i, one in enumerate(labels) if not (ignore_full_set and len(one) == leaves)]
        if kept:
            marginal = phi(p[:, kept], [labels[i] for i in kept])
            soft = psi([labels[i] for i in kept], leaves)
            total = total - (soft * (1 - marginal) ** gamma * marginal.log()).sum()
            voxels += len(kept)
    return total / max(voxels, 1)
