"""The paper's theory as functions: marginalisation, soft targets, the conversion of any loss, and
the axiom itself.

>>> label_sets = LabelSets.from_superset_map(3, {3: [1, 2]})
>>> probabilities = torch.tensor([[[0.2], [0.5], [0.3]]])  # one voxel of one sample
>>> target = torch.tensor([[[3]]])  # leaf 1 or 2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses.label_sets import LabelSets, as_indices

SoftLoss = Callable[[Tensor, Tensor], Tensor]


def marginalize(probabilities: Tensor, target: Tensor, label_sets: LabelSets) -> Tensor:
    """The paper's `Phi(p; g)`: within the label-set of a voxel, every leaf gets the mean
    probability of the set.

    probabilities `(B, C, *S)`, target `(B, 1, *S)` set indices; returns `(B, C, *S)`.

    >>> marginalize(probabilities, target, label_sets).flatten()
    tensor([0.2000, 0.4000, 0.4000])
    """
    member = _membership(target, label_sets, probabilities)  # (B, C, *S)
    mean = (probabilities * member).sum(1, keepdim=True) / member.sum(1, keepdim=True)
    return torch.where(member, mean, probabilities)


def soft_target(
    target: Tensor, label_sets: LabelSets, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The paper's `Psi_0(g)`: uniform over the label-set of a voxel. Target `(B, 1, *S)`; returns
    `(B, C, *S)`.

    >>> soft_target(target, label_sets).flatten()
    tensor([0.0000, 0.5000, 0.5000])
    """
    member = _membership(target, label_sets).to(dtype)
    return member / member.sum(1, keepdim=True)


def to_label_set_loss(
    loss_fn: SoftLoss, label_sets: LabelSets | None = None
) -> Callable[..., Tensor]:
    """The one and only conversion of a loss into a label-set loss (eq. 7): `L(Phi(p; g),
    Psi_0(g))`.

    `loss_fn(probabilities, soft_targets)` may be any loss of two tensors `(B, C, *S)`. The result
    is called with probabilities, set indices `(B, 1, *S)` and, unless given here, the label-sets.

    >>> to_label_set_loss(torch.nn.functional.mse_loss, label_sets)(probabilities, target)
    tensor(0.0200)
    """

    def label_set_loss(
        probabilities: Tensor, target: Tensor, label_sets: LabelSets | None = label_sets
    ) -> Tensor:
        if label_sets is None:
            raise LabelSetError(
                "Expected `label_sets`: give them to to_label_set_loss or to the loss that it "
                "returns"
            )
        soft = soft_target(target, label_sets, probabilities.dtype)
        return loss_fn(marginalize(probabilities, target, label_sets), soft)

    return label_set_loss


@dataclass(frozen=True)
class AxiomCheck:
    """Truthy if no violation was found; else two predictions that the axiom calls equal and the
    loss does not.

    >>> bool(AxiomCheck(True))
    True
    """

    holds: bool
    target: Tensor | None = None
    probabilities: tuple[Tensor, Tensor] | None = None
    losses: tuple[float, float] | None = None

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        if self.losses is None:
            return "the label-set axiom holds in every trial"
        return (
            "the label-set axiom is broken: two predictions with equal Phi(p; g) have losses "
            f"{self.losses[0]:.6g} and {self.losses[1]:.6g}"
        )


def check_axiom(
    loss: Callable[[Tensor, Tensor], Tensor],
    label_sets: LabelSets,
    *,
    shape: tuple[int, ...] = (4, 4, 4),
    batch_size: int = 2,
    trials: int = 20,
    seed: int = 0,
    tolerance: float = 1e-8,
    from_logits: bool = True,
) -> AxiomCheck:
    """Look for a violation of the axiom (eq. 2): `Phi(p; g) = Phi(q; g)` must imply `loss(p, g) =
    loss(q, g)`.

    `loss(logits, target)` takes set indices; with `from_logits=False` it takes probabilities.
    Targets are drawn from all label-sets, `q` from `p` by sharing out the mass of every label-set
    anew, in float64.

    >>> bool(check_axiom(lambda p, target: p.square().mean(), label_sets, from_logits=False))
    False
    """
    generator = torch.Generator().manual_seed(seed)
    size = (batch_size, label_sets.num_leaves, *shape)
    for _ in range(trials):
        target = torch.randint(label_sets.num_sets, (batch_size, 1, *shape), generator=generator)
        p = _random_probabilities(size, generator)
        member = _membership(target, label_sets)
        shares = _random_probabilities(size, generator) * member
        mass = (p * member).sum(1, keepdim=True)
        q = torch.where(member, mass * shares / shares.sum(1, keepdim=True), p)
        values = [float(loss(x.log() if from_logits else x, target)) for x in (p, q)]
        if not abs(values[0] - values[1]) <= tolerance * max(1.0, abs(values[0])):
            return AxiomCheck(False, target, (p, q), (values[0], values[1]))
    return AxiomCheck(True)


def _random_probabilities(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.softmax(3 * torch.randn(size, generator=generator, dtype=torch.float64), 1)


def _membership(
    target: Tensor, label_sets: LabelSets, probabilities: Tensor | None = None
) -> Tensor:
    """Which leaves each voxel may be: bool `(B, C, *S)`."""
    if target.ndim < 3 or target.shape[1] != 1:
        raise LabelSetError(f"Expected `target` of shape (B, 1, *S), but got {tuple(target.shape)}")
    if probabilities is not None:
        expected = (len(target), label_sets.num_leaves, *target.shape[2:])
        if probabilities.shape != expected:
            raise LabelSetError(
                f"Expected `probabilities` of shape {expected}, but got "
                f"{tuple(probabilities.shape)}"
            )
    indices = as_indices(target, label_sets.num_sets)[:, 0]
    return label_sets.membership.to(target.device)[indices].movedim(-1, 1)
