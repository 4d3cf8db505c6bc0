"""A teacher that resolves label-sets: it says which label of its label-set a voxel is.

The teacher is the moving average of the network's weights. In a training that `nnunet_labelset
extend` started it is the old model, which knows the old labels from the first step and never
changes, so that they are not forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER
from nnunet_labelset.training.checkpoints import plain_network
from nnunet_labelset.training.checks import stop
from nnunet_labelset.training.mixin import LabelSetMixin


def resolved(logits: Tensor, target: Tensor, membership: Tensor, threshold: float) -> Tensor:
    """Return set indices in which the likeliest label replaces its label-set, where it has at least
    `threshold` of the label-set's probability.

    logits `(B, C, *S)` of the teacher, target `(B, 1, *S)`, membership bool `(K, C)`. What the
    annotation excludes stays excluded. Annotated voxels and voxels that may be every label stay as
    they are.
    """
    allowed = membership[target[:, 0].long()].movedim(-1, 1)  # (B, C, *S)
    shares = logits.float().masked_fill(~allowed, -torch.inf).softmax(1)
    share, label = shares.max(1, keepdim=True)  # (B, 1, *S)
    size = membership.sum(1)
    is_open = (size > 1) & (size < membership.shape[1])  # (K,)
    is_sure = is_open[target.long()] & (share >= threshold)
    return torch.where(is_sure, label.to(target.dtype), target)


def of_old_model(logits: Tensor, new: Sequence[int]) -> Tensor:
    """Return logits `(B, C, *S)` of a model that did not know the labels `new`: it calls them
    background.
    """
    logits = logits.clone()
    for label in new:
        logits[:, label] = logits[:, 0]
    return logits


class TeacherMixin(LabelSetMixin):
    """Put it before a trainer as `LabelSetMixin`. The teacher's answers break the axiom on
    purpose.
    """

    has_teacher = True
    teacher_start: ClassVar[float] = 0.4  # share of the epochs before the teacher is asked
    teacher_threshold: ClassVar[float] = 0.9
    # What the old model leaves open is held by nothing else; a new label ties with background.
    old_model_threshold: ClassVar[float] = 0.51

    teacher: AveragedModel | None = None

    @property
    def _old_model_teaches(self) -> bool:
        return self.state.new_labels is not None

    def initialize(self) -> None:
        if self.contract.regions is not None:
            stop(
                "a teacher picks one label of a label-set, which regions do not have: "
                f"train with {DEFAULT_TRAINER}"
            )
        super().initialize()
        self._membership = self.label_sets.membership.to(self.device)

    def on_train_start(self) -> None:
        super().on_train_start()
        if self._old_model_teaches:
            self.print_to_log_file(
                "The old model says which of its labels a voxel is, where the annotation does not"
            )

    def save_checkpoint(self, filename: str) -> None:
        if self.teacher is not None:
            self.state.teacher = self.teacher.state_dict()
        super().save_checkpoint(filename)

    def _new_teacher(self) -> AveragedModel:
        """Return a teacher with the weights of the network or, after `--c`, with its own."""
        num_steps = self.num_epochs * self.num_iterations_per_epoch
        window = min(1000, max(50, num_steps // 10))  # steps that the average reaches back
        average = get_ema_multi_avg_fn(1 - 1 / window)
        teacher = AveragedModel(
            plain_network(self.network), multi_avg_fn=average, use_buffers=True
        ).eval()
        if self.state.teacher is not None:
            teacher.load_state_dict(self.state.teacher)
            self.state.teacher = None  # one copy is enough
        if self._do_i_compile():
            teacher.module.compile()  # as nnU-Net compiles the network
        return teacher

    @property
    def _is_asked(self) -> bool:
        is_late = self.current_epoch >= self.teacher_start * self.num_epochs
        is_training = torch.is_grad_enabled()
        return self.teacher is not None and is_training and (is_late or self._old_model_teaches)

    def encode_batch(self, batch: dict) -> dict:
        batch = super().encode_batch(batch)
        if not self._is_asked:
            return batch
        data = batch["data"].to(self.device, non_blocking=True)
        answers = self._answers(data)
        threshold = self.old_model_threshold if self._old_model_teaches else self.teacher_threshold
        target = batch["target"]
        is_list = isinstance(target, list)
        scales = [
            resolved(logits, scale, self._membership, threshold)
            for logits, scale in zip(answers, target if is_list else [target], strict=False)
        ]
        return {**batch, "data": data, "target": scales if is_list else scales[0]}

    @torch.no_grad()
    def _answers(self, data: Tensor) -> list[Tensor]:
        """Return the teacher's logits, one tensor per scale."""
        assert self.teacher is not None
        with torch.autocast("cuda") if self.device.type == "cuda" else nullcontext():
            outputs = self.teacher(data)
        answers = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        if self.state.new_labels is None:
            return answers
        new = [self.label_sets.leaf_names.index(name) for name in self.state.new_labels]
        return [of_old_model(logits, new) for logits in answers]

    def train_step(self, batch: dict) -> dict:
        if self.teacher is None:  # not before a checkpoint or pretrained weights were read
            self.teacher = self._new_teacher()
        result = super().train_step(batch)
        if not self._old_model_teaches:
            self.teacher.update_parameters(plain_network(self.network))
        return result
