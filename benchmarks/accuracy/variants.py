"""Variants of the teacher that were tried; none of them is part of the product."""

from __future__ import annotations

import torch
from torch import Tensor

from nnunet_labelset.losses import RunningLeafDiceCELoss
from nnunet_labelset.training.mixin import LabelSetMixin
from nnunet_labelset.training.teacher import TeacherMixin, resolved


class SoftTargetLoss(RunningLeafDiceCELoss):
    """Adds a cross entropy to the teacher's shares inside of the label-sets."""

    shares: list[Tensor] | None = None  # (B, C, *S) per scale, 0 where nothing is asked

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        value = super().forward(logits, target)
        if self.shares is None or not torch.is_grad_enabled():
            return value
        shares = self.shares[self.scale or 0]
        allowed = self.membership[target[:, 0].long()].movedim(-1, 1)  # (B, C, *S)
        inside = logits.masked_fill(~allowed, -torch.inf).log_softmax(1)
        entropy = -(shares * inside.masked_fill(~allowed, 0)).sum()
        informative = (~self.membership.all(1))[target.long()].sum().clamp(min=1)
        return value + self.ce_share * self.scale_weight * entropy / informative


class SoftTeacherMixin(TeacherMixin):
    """The teacher's probabilities instead of its decisions, for every voxel of a label-set."""

    loss_class = SoftTargetLoss

    def encode_batch(self, batch: dict) -> dict:
        batch = LabelSetMixin.encode_batch(self, batch)
        self.inner_loss.shares = None
        if not self._is_asked:
            return batch
        answers = self._answers(batch["data"])
        size = self._membership.sum(1)
        is_open = (size > 1) & (size < self._membership.shape[1])  # (K,)
        shares = []
        for logits, target in zip(answers, batch["target"], strict=False):
            allowed = self._membership[target[:, 0].long()].movedim(-1, 1)
            share = logits.masked_fill(~allowed, -torch.inf).softmax(1)
            shares.append(share * is_open[target.long()])
        self.inner_loss.shares = shares
        return batch


class ReadyTeacherMixin(TeacherMixin):
    """A label is taught as soon as its running Dice is high, instead of all from one epoch on."""

    teacher_start = 0.05
    ready_dice = 0.8

    def encode_batch(self, batch: dict) -> dict:
        before = LabelSetMixin.encode_batch(self, batch)
        if not self._is_asked:
            return before
        state = self.inner_loss.running.get(0)
        if state is None:
            return before
        intersection, reference, prediction = state[:3]
        dice = 2 * intersection / (reference + prediction).clamp(min=1e-8)
        ready = torch.zeros(len(self._membership), dtype=torch.bool)
        ready[: len(dice)] = dice.cpu() > self.ready_dice
        targets = []
        answers = self._answers(batch["data"])
        for logits, target in zip(answers, before["target"], strict=False):
            new = resolved(logits, target, self._membership, self.teacher_threshold)
            targets.append(torch.where(ready[new.long()], new, target))
        return {**before, "target": targets}


class CutMixTeacherMixin(TeacherMixin):
    """Every second batch gets a box of its neighbour in the batch, with the teacher's targets."""

    def encode_batch(self, batch: dict) -> dict:
        batch = super().encode_batch(batch)
        if not self._is_asked or torch.rand(()) < 0.5:
            return batch
        share = torch.rand(2) * 0.4 + 0.3  # of every axis: where the box begins and its size
        data = pasted(batch["data"], share)
        return {**batch, "data": data, "target": [pasted(t, share) for t in batch["target"]]}


def pasted(images: Tensor, share: Tensor) -> Tensor:
    """Return the batch `(B, 1, *S)` with a box of the next sample in each sample."""
    box = [slice(None), slice(None)]
    for length in images.shape[2:]:
        size = round(float(share[1]) * length)
        begin = round(float(share[0]) * (length - size))
        box.append(slice(begin, begin + size))
    result = images.clone()
    result[tuple(box)] = images.roll(1, 0)[tuple(box)]
    return result
