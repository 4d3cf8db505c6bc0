"""The outputs of the network and their targets: labels or regions, at every scale."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from torch import Tensor, nn

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.counts import Counts
from nnunet_labelset.losses import LabelSetLoss, RunningDice
from nnunet_labelset.losses.label_sets import LabelSets, as_integers
from nnunet_labelset.losses.regions import RegionLoss, Sides, sides
from nnunet_labelset.training.validation import StepCounts


def encode_target(
    target: Tensor | list[Tensor],
    cases: Sequence[str] | None,
    label_sets: LabelSets,
    device: torch.device,
) -> Tensor | list[Tensor]:
    """Return set indices for a target `(B, 1, *S)`, or for a list of scales of deep supervision.

    cases: the case of every sample of the batch, which decides what a value means.
    """
    if cases is None:
        raise LabelSetError(
            "a batch does not name its cases: this loader of nnU-Net cannot be combined with "
            "label-sets"
        )
    scales = target if isinstance(target, list) else [target]
    for scale in scales:
        # Where the loader left it, on the host: a device can only assert, with a traceback.
        label_sets.check_values(scale, cases)
    rows = label_sets.rows_of(cases, scales[0], device)
    # as small as nnU-Net's own target: it stays in memory for the whole step
    dtype = torch.int16 if label_sets.num_sets <= 2**15 else torch.int32
    encoded = []
    for scale in scales:
        values = as_integers(scale, "target").to(device, non_blocking=True)
        encoded.append(label_sets.look_up(values, rows, dtype))
    return encoded if isinstance(target, list) else encoded[0]


class LabelOutputs:
    """An output for every label, background included; one softmax over all of them."""

    def __init__(self, label_sets: LabelSets, contract: Contract) -> None:
        self.contract = contract
        self.names = contract.leaf_names
        self._membership = label_sets.membership.numpy()

    def coverage(self, cases: Iterable[str]) -> dict[str, int]:
        """Return in how many cases each label is annotated."""
        return self.contract.coverage(cases)

    def scored_coverage(self, cases: Iterable[str]) -> dict[str, int]:
        """Return the same for the labels that have a score: all but background."""
        coverage = self.coverage(cases)
        return {name: coverage[name] for name in self.names[1:]}

    def loss(self, loss: LabelSetLoss, has_ignore: bool) -> nn.Module:
        return loss

    def counts(self, output: Tensor, target: Tensor) -> StepCounts:
        """Count voxels by label: logits `(B, C, *S)`, set indices `(B, *S)`."""
        return StepCounts.of_labels(output, target, self._membership)


class RegionOutputs:
    """An output for every region, in nnU-Net's order; one sigmoid each.

    nnU-Net turns a label map into one mask per region before the loss sees it. Here the values stay
    and become label-sets as in any other data set. A voxel is then in a region, out of it, or says
    nothing about it.
    """

    def __init__(self, label_sets: LabelSets, contract: Contract) -> None:
        assert contract.regions is not None
        self.contract = contract
        self.names = tuple(contract.regions)
        self.members = torch.zeros(len(self.names), contract.num_leaves, dtype=torch.bool)  # (R, C)
        for row, leaves in zip(self.members, contract.regions.values(), strict=True):
            row[list(leaves)] = True
        self.sides = sides(label_sets.membership, self.members)

    def coverage(self, cases: Iterable[str]) -> dict[str, int]:
        """Return in how many cases each region is annotated."""
        counts = self.contract.coverage(cases)
        return {name: counts[name] for name in self.names}

    def scored_coverage(self, cases: Iterable[str]) -> dict[str, int]:
        """Return the same: every region has a score."""
        return self.coverage(cases)

    def loss(self, loss: LabelSetLoss, has_ignore: bool) -> nn.Module:
        """Return the loss for regions with the terms of a loss for labels."""
        return RegionLoss(loss, self.members, sum_entropy=has_ignore)

    def counts(self, output: Tensor, target: Tensor) -> StepCounts:
        """Count voxels by region: logits `(B, R, *S)`, set indices `(B, *S)`."""
        if self.sides.inside.device != target.device:  # copied once, not at every step
            self.sides = Sides(*(side.to(target.device) for side in self.sides))
        inside, known = (side[target].movedim(-1, 1) for side in self.sides)  # (B, R, *S)
        predicted = output > 0  # a sigmoid above 1/2
        axes = (0, *range(2, output.ndim))
        masks = (
            predicted & inside,
            predicted & known & ~inside,
            ~predicted & inside,
            ~predicted & known & ~inside,
        )
        return StepCounts.of_regions(Counts(*(mask.sum(axes).cpu().numpy() for mask in masks)))


def outputs_of(label_sets: LabelSets, contract: Contract) -> LabelOutputs | RegionOutputs:
    """Return what the outputs of a network for this data set are."""
    kind = LabelOutputs if contract.regions is None else RegionOutputs
    return kind(label_sets, contract)


class DeepSupervision(DeepSupervisionWrapper):
    """The weighted sum over scales, as nnU-Net's; tells the loss which scale comes next.

    Running Dice has a state for every scale, and two scales may have the same shape: where plans
    do not pool along any axis.
    """

    def forward(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        values = []
        triples = zip(self.weight_factors, outputs, targets, strict=False)
        for scale, (weight, output, target) in enumerate(triples):
            if weight == 0:
                continue
            self.loss.scale = scale
            values.append(self._weighted(float(weight), output, target))
        return torch.stack(values).sum()

    def _weighted(self, weight: float, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a scale times its weight; a loss of ours multiplies for nothing."""
        if not isinstance(self.loss, LabelSetLoss):
            return weight * self.loss(output, target)
        self.loss.scale_weight = weight
        value = self.loss(output, target)
        self.loss.scale_weight = 1.0
        return value


def supervised_like(nnunet_loss: Any, loss: nn.Module) -> nn.Module:
    """Return the loss within deep supervision of nnU-Net's weights, if nnU-Net's loss is within."""
    if not isinstance(nnunet_loss, DeepSupervisionWrapper):
        return loss
    return DeepSupervision(loss, nnunet_loss.weight_factors)


def inner_loss(loss: Any) -> Any:
    """Return the loss inside of deep supervision."""
    return getattr(loss, "loss", loss)


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which nnU-Net calls its network."""
    return torch.autocast("cuda") if device.type == "cuda" else nullcontext()


def running_dice(loss: nn.Module) -> dict[Hashable, Tensor]:
    """Return the state of running Dice for a checkpoint; empty for other losses."""
    inner = inner_loss(loss)
    return dict(inner.running) if isinstance(inner, RunningDice) else {}


def restore_running_dice(loss: nn.Module, states: Mapping[Hashable, Tensor]) -> None:
    """Give the state of a checkpoint back; older checkpoints name scales by their shape."""
    inner = inner_loss(loss)
    if isinstance(inner, RunningDice):
        has_scales = isinstance(loss, DeepSupervision)
        inner.running = dict(enumerate(states.values())) if has_scales else dict(states)
