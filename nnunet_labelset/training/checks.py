"""What a training refuses before it costs time, and what it advises in its log.

A training stops in one line, without a traceback through nnU-Net.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from torch import distributed as dist

from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER, NO_MIRRORING
from nnunet_labelset.nnunet.extend import extension_trainer
from nnunet_labelset.nnunet.raw import label_maps_replaced
from nnunet_labelset.nnunet.recommendation import (
    TEACHER_TRAINER,
    paired_labels,
    reasons,
    recommended_trainer,
)

NNUNET = "nnunetv2."  # what nnU-Net's own modules start with
PATIENCE = 20  # epochs without a correct voxel; a third of a short training
NOTHING = 1e-3  # the counts of earlier epochs decay, but never to 0


def check_order(cls: type, mixin: type) -> None:
    """Refuse a class whose nnU-Net base overrides the mixin: it would train plain nnU-Net."""
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    for ancestor in cls.__mro__[: cls.__mro__.index(mixin)]:
        if issubclass(ancestor, nnUNetTrainer) and not issubclass(ancestor, mixin):
            label_set_bases = [base for base in cls.__bases__ if issubclass(base, mixin)]
            first = (label_set_bases or [mixin])[0]
            raise LabelSetError(
                f"class {cls.__name__}: {ancestor.__name__} comes before {mixin.__name__} and "
                f"would switch it off: write class {cls.__name__}({first.__name__}, "
                f"{ancestor.__name__})"
            )


def class_behind(cls: type, mixin: type, method: str) -> type:
    """Return the class whose method the mixin calls with `super()`."""
    behind = cls.__mro__[cls.__mro__.index(mixin) + 1 :]
    return next(base for base in behind if method in vars(base))


def check_loss(cls: Any, mixin: type, log: Callable[[str], None]) -> None:
    """Refuse a trainer without a loss; log a warning if it replaces the loss of another trainer."""
    if not hasattr(cls, "loss_class"):
        raise LabelSetError(
            f"{cls.__name__} has no loss: give the class a loss_class, for example LeafDiceCELoss"
        )
    base = class_behind(cls, mixin, "_build_loss")
    if base.__name__ != names.DEFAULT_NNUNET_TRAINER:
        log(f"WARNING: {cls.loss_class.__name__} replaces the loss of {base.__name__}")


def check_train_step(cls: Any, mixin: type) -> None:
    """Refuse a `train_step` that would confuse label values and set indices.

    Before the mixin it must hand the batch on; behind the mixin it must know what it receives.
    """
    for base in cls.__mro__[: cls.__mro__.index(mixin)]:
        code = getattr(vars(base).get("train_step"), "__code__", None)
        if code is None or "target" not in code.co_consts:
            continue
        if not {"train_step", "encode_batch"} & set(code.co_names):
            raise LabelSetError(
                f"{base.__name__}.train_step would train on the values of the label maps: call "
                "super().train_step(batch) or self.encode_batch(batch) in it"
            )
    base = class_behind(cls, mixin, "train_step")
    if base.__module__.startswith(NNUNET) or cls.takes_set_indices:
        return
    raise LabelSetError(
        f"{base.__name__}.train_step would receive set indices as 'target', not the values of the "
        "label maps: read 'A train_step of your own' in docs/trainers.md, then set "
        f"takes_set_indices = True in {cls.__name__}"
    )


def check_cases(dataset: Any, contract: Contract) -> None:
    """Refuse training cases with undeclared values, and those from which nothing can be learned."""
    check_values(dataset, contract)
    check_foreground(dataset, contract)


def check_values(dataset: Any, contract: Contract) -> None:
    """Look for undeclared values in one case of every protocol.

    Such a value would stop the first batch that shows it, perhaps after hours.
    """
    first_cases = {contract.protocol_name(case): case for case in reversed(dataset.identifiers)}
    num_values = len(contract.value_names)
    for case in first_cases.values():
        highest = int(np.max(dataset.load_case(case)[1][:]))
        if highest >= num_values:
            raise LabelSetError(
                f"case '{case}' has the value {highest}, but 'labels' in dataset.json declares "
                f"0..{num_values - 1}: declare it ('ignore' takes the highest value), or correct "
                "the label maps and preprocess again"
            )


def check_foreground(dataset: Any, contract: Contract) -> None:
    """Raise unless some voxel certainly is not background; usually the first case has one."""
    for case in dataset.identifiers:
        sets = contract.protocol(case).sets
        foreground = [value for value, labels in enumerate(sets) if 0 not in labels]
        if foreground and np.isin(dataset.load_case(case)[1][:], foreground).any():
            return
    raise LabelSetError(
        "nothing can be learned: every voxel of every training case may be background; "
        "'nnunet_labelset coverage' shows what is annotated: add annotated cases to this fold, or "
        "correct the protocols in dataset.json"
    )


def global_rank() -> int:
    """Return the number of this process among all processes of the training, on all nodes."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def stop(reason: object) -> NoReturn:
    """End the program with one line.

    Every process of a distributed training prints its own: nnU-Net ends the others as soon as one
    has ended.
    """
    rank = f" (rank {global_rank()})" if global_rank() else ""
    sys.exit(f"nnunet_labelset: error{rank}: {reason}")


class LogFileHandler(logging.Handler):
    """Writes warnings of the package into the log file of the training."""

    def __init__(self, log: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        self.log(f"WARNING: {record.getMessage()}")


def log_warnings(log: Callable[[str], None]) -> None:
    """Send warnings, such as that the kernels were switched off, to the training log."""
    logger = logging.getLogger("nnunet_labelset")
    for handler in list(logger.handlers):  # of an earlier trainer in this process
        if isinstance(handler, LogFileHandler):
            logger.removeHandler(handler)
    logger.addHandler(LogFileHandler(log))


@contextmanager
def stopping(hint: str = "") -> Iterator[None]:
    """End the program with one line, and a hint, if the block raises a `LabelSetError`."""
    try:
        yield
    except LabelSetError as error:
        stop(f"{error}{hint}")


@contextmanager
def stopping_at_contract(dataset_name: str, dataset_json: Mapping[str, Any]) -> Iterator[None]:
    """Do the same for errors in the contract: name the file, and how to renew it.

    nnU-Net trains with the copy of dataset.json in nnUNet_preprocessed, where few people look.
    """
    try:
        yield
    except LabelSetError as error:
        copy = _dataset_file(names.PREPROCESSED, dataset_name)
        if copy is None:
            stop(error)
        stop(f"{copy}: {error}{_how_to_renew(copy, dataset_name, dataset_json)}")


def _dataset_file(variable: str, dataset_name: str) -> Path | None:
    folder = os.environ.get(variable)
    return Path(folder) / dataset_name / names.DATASET if folder else None


def _how_to_renew(copy: Path, dataset_name: str, dataset_json: Mapping[str, Any]) -> str:
    """Return a sentence if the raw data set has a block that differs from that of the copy."""
    raw = _dataset_file(names.RAW, dataset_name)
    if raw is None or not raw.is_file():
        return ""
    try:
        content = read_json(raw)
    except LabelSetError:
        return ""
    has_other_labels = content.get("labels") != dataset_json.get("labels")
    has_other_block = content.get(BLOCK) != dataset_json.get(BLOCK)
    if BLOCK not in content or not (has_other_labels or has_other_block):
        return ""
    # Label maps that changed with the block were not preprocessed: its new meaning would not fit
    # the old values.
    has_other_maps = has_other_labels or label_maps_replaced(raw.parent)
    renew = f"run {names.PLAN_AND_PREPROCESS} again" if has_other_maps else f"cp {raw} {copy}"
    difference = "differs" if BLOCK in dataset_json else "has the block"
    return f". The training reads this copy; {raw} {difference}: {renew}"


class Advice:
    """Writes advice into the training log."""

    def __init__(
        self,
        contract: Contract,
        trainer_name: str,
        log: Callable[[str], None],
        dataset_json: Mapping[str, Any],
    ) -> None:
        """
        contract: of the data set.
        trainer_name: the class of this training.
        log: writes a line into the training log.
        dataset_json: may list the labels that differ by side.
        """
        self.contract = contract
        self.trainer_name = trainer_name
        self.log = log
        self.pairs = paired_labels(contract.leaf_names, dataset_json)
        self.family = DEFAULT_TRAINER  # the trainers that advice may name
        self.taught: list[str] = []  # labels that an old model knows

    def show_coverage(
        self,
        coverage: Callable[[Sequence[str]], Mapping[str, int]],
        training: Sequence[str],
        validation: Sequence[str],
    ) -> None:
        """Log in how many cases each label or region is annotated.

        coverage: counts these cases for every label.
        """
        training_coverage = coverage(training)
        validation_coverage = coverage(validation)
        width = max(map(len, training_coverage))
        lines = ["Cases in which each label is annotated (training, validation):"]
        for label, number in training_coverage.items():
            lines.append(
                f"  {label:{width}}  {number:5d} of {len(training)}  "
                f"{validation_coverage[label]:5d} of {len(validation)}"
            )
        self.log("\n".join(lines))

    def recommend(self, coverage: Mapping[str, int], num_cases: int, plan: Any) -> None:
        """Name the trainer for these cases, and why.

        coverage: in how many of the `num_cases` training cases each label is annotated.
        plan: nnU-Net's configuration, with the sizes of patches and images.
        """
        if all(map(self.contract.is_fully_annotated, self.contract.cases)):
            self._recommend("nnUNetTrainer", ["every case is fully annotated"])
            return
        has_regions = self.contract.regions is not None  # their loss has no running Dice
        patch_size = () if has_regions else plan.patch_size
        why = reasons(coverage, num_cases, patch_size, plan.median_image_size_in_voxels)
        self._recommend(recommended_trainer(self.pairs), why)

    def recommend_extended(
        self, coverage: Mapping[str, int], new_labels: Sequence[str], has_teacher: bool
    ) -> None:
        """Do the same for a training that `extend` started: old labels must not be forgotten."""
        old_labels = [label for label in coverage if label not in new_labels]
        trainer = extension_trainer(self.contract, old_labels, list(coverage))
        if trainer.startswith(TEACHER_TRAINER):
            self.family = TEACHER_TRAINER
        self.taught = old_labels if has_teacher else []
        self._recommend(trainer, ["the training extends a model"])
        unannotated = [f"'{label}'" for label in old_labels if coverage[label] == 0]
        if unannotated and not has_teacher:
            self.log(
                f"WARNING: no training case annotates {some(unannotated)}, and the network will "
                f"forget what it knew: train with {trainer}, or add cases that annotate them"
            )

    def _recommend(self, trainer: str, why: Sequence[str]) -> None:
        facts = "; ".join([f"{trainer} (this is {self.trainer_name})", *why])
        self.log(f"Recommended for these cases: {facts}")

    def warn_of_missing_labels(self, coverage: Mapping[str, int]) -> None:
        """Name labels that no training case annotates and no old model teaches; background is
        known from what excludes it.
        """
        for label, number in coverage.items():
            if number == 0 and label not in ("background", *self.taught):
                self.log(
                    f"WARNING: no training case annotates '{label}': it cannot be learned well"
                )

    def warn_of_mirroring(self, mirrored_axes: Sequence[int] | None) -> None:
        """Warn if mirroring mixes up labels that differ by side."""
        if not self.pairs or not mirrored_axes:
            return
        named = ", ".join(f"'{left}' and '{right}'" for left, right in self.pairs[:3])
        self.log(
            f"WARNING: {named} differ by side, and mirroring makes left and right the same: "
            f"use {self.family}{NO_MIRRORING}, or put LabelSetMixin before "
            "nnUNetTrainerNoMirroring"
        )

    def warn_of_dead_labels(
        self,
        names: Sequence[str],
        history: Sequence[Sequence[float]],
        counts: np.ndarray,
        num_epochs: int,
    ) -> None:
        """Name labels whose Dice stays at 0, every few epochs.

        history: the scores of all epochs.
        counts: `(3, labels)` true positives, false positives and false negatives in the recent
            epochs.
        num_epochs: the length of the whole training.
        """
        patience = min(PATIENCE, max(3, num_epochs // 3))
        if len(history) % patience:
            return
        for label in dead_labels(history, patience):
            if counts[2, label] > 0:  # else there are false positives only: it was not seen
                self.log(
                    f"WARNING: '{names[label]}' is annotated, but its Dice has been 0 in its last "
                    f"{patience} scores. {self._remedy()}"
                )

    def _remedy(self) -> str:
        if self.trainer_name.startswith(self.family):
            return "Look at its annotations ('nnunet_labelset verify'), or train longer"
        return f"This loss may never find it: use {self.family}"


def dead_labels(history: Sequence[Sequence[float]], patience: int) -> list[int]:
    """Return the labels, counted without background, whose last `patience` scores were all 0.

    NaN is not a score.
    """
    dead = []
    for label, column in enumerate(np.array(history, float).T):
        scores = column[~np.isnan(column)][-patience:]
        if len(scores) == patience and (scores < NOTHING).all():
            dead.append(label)
    return dead
