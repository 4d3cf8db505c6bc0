"""A teacher that resolves label-sets: it says which leaf of its label-set a voxel is.

It is the moving average of the weights. In a training that `nnunet_labelset extend` has started it
is the old model, which knows the old leaves from the first step and stays as it is, so that they
are not forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nnunet_labelset.training.mixin import LabelSetMixin
from nnunet_labelset.training.start import plain_network
from nnunet_labelset.training.stopping import stop


def resolved(logits: Tensor, target: Tensor, membership: Tensor, threshold: float) -> Tensor:
    """Set indices in which a larger label-set gives way to its likeliest leaf where that one has
    enough of its mass.

    logits `(B, C, *S)` of the teacher, target `(B, 1, *S)`, membership bool `(K, C)`. What the
    annotation excludes stays excluded; annotated voxels and those that may be every leaf stay as
    they are.
    """
    allowed = membership[target[:, 0].long()].movedim(-1, 1)  # (B, C, *S)
    probability, leaf = (
        logits.float().masked_fill(~allowed, -torch.inf).softmax(1).max(1, keepdim=True)
    )
    size = membership.sum(1)
    open_sets = (size > 1) & (size < membership.shape[1])  # (K,)
    sure = open_sets[target.long()] & (probability >= threshold)
    return torch.where(sure, leaf.to(target.dtype), target)


def of_old_model(logits: Tensor, new: Sequence[int]) -> Tensor:
    """Logits `(B, C, *S)` of a model that did not know the leaves `new`: they hide in what it calls
    background.
    """
    logits = logits.clone()
    for leaf in new:
        logits[:, leaf] = logits[:, 0]
    return logits


class TeacherMixin(LabelSetMixin):
    """Put it before a trainer as `LabelSetMixin`. It leaves the axiom on purpose once the teacher
    speaks.
    """

    teacher_start: ClassVar[float] = 0.4  # share of the epochs before the teacher is asked
    teacher_threshold: ClassVar[float] = 0.9
    old_model_threshold: ClassVar[float] = (
        0.51  # nothing holds what it leaves open; a new leaf ties with background
    )

    teacher: AveragedModel | None = None

    @property
    def _old_model_teaches(self) -> bool:
        return "new_labels" in self.training_state

    def initialize(self) -> None:
        if self.regions:
            stop(
                "a teacher picks one leaf of a label-set, which regions do not have: train with nnUNetTrainerLabelSet"
            )
        super().initialize()

    def _warn_of_forgetting(self) -> None:
        self.print_to_log_file(
            "The old model says which of its labels a voxel is, where the annotation does not"
        )

    def save_checkpoint(self, filename: str) -> None:
        if self.teacher is not None:
            self.training_state["teacher"] = self.teacher.state_dict()
        super().save_checkpoint(filename)

    def _new_teacher(self) -> AveragedModel:
        """It starts from the weights of the network, whether new, pretrained or of a checkpoint."""
        window = min(
            1000, max(50, self.num_epochs * self.num_iterations_per_epoch // 10)
        )  # steps that it reaches back
        average = get_ema_multi_avg_fn(1 - 1 / window)
        teacher = AveragedModel(
            plain_network(self.network), multi_avg_fn=average, use_buffers=True
        ).eval()
        if "teacher" in self.training_state:
            teacher.load_state_dict(self.training_state["teacher"])
        return teacher

    def _encoded(self, batch: dict) -> dict:
        batch = super()._encoded(batch)
        asked = (
            self._old_model_teaches or self.current_epoch >= self.teacher_start * self.num_epochs
        )
        if self.teacher is None or not asked or not torch.is_grad_enabled():  # never in validation
            return batch
        data = batch["data"].to(self.device, non_blocking=True)
        with (
            torch.no_grad(),
            torch.autocast("cuda") if self.device.type == "cuda" else nullcontext(),
        ):
            outputs = self.teacher(data)
            outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        threshold = self.teacher_threshold
        if self._old_model_teaches:
            new = [
                self.label_sets.leaf_names.index(name) for name in self.training_state["new_labels"]
            ]
            outputs, threshold = (
                [of_old_model(logits, new) for logits in outputs],
                self.old_model_threshold,
            )
        membership = self.label_sets.membership.to(self.device)
        if isinstance(batch["target"], list):
            pairs = zip(outputs, batch["target"], strict=False)
            target: Any = [resolved(*pair, membership, threshold) for pair in pairs]
        else:
            target = resolved(outputs[0], batch["target"], membership, threshold)
        return {**batch, "data": data, "target": target}

    def train_step(self, batch: dict) -> dict:
        if self.teacher is None:  # not before a checkpoint or pretrained weights were read
            self.teacher = self._new_teacher()
        result = super().train_step(batch)
        if not self._old_model_teaches:
            self.teacher.update_parameters(plain_network(self.network))
        return result
