"""Checkpoints: what they store for us, how they are written, and which ones may be loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import new_file
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.checkpoint_file import (
    STATE,
    TRUST_IT,
    UnreadableCheckpointError,
    read_checkpoint,
    trusted,
)
from nnunet_labelset.nnunet.names import (
    BEST_CHECKPOINT,
    FINAL_CHECKPOINT,
    LATEST_CHECKPOINT,
    SPLITS,
)

CHECKPOINTS = (FINAL_CHECKPOINT, LATEST_CHECKPOINT, BEST_CHECKPOINT)
NEW_TRAINING = "start a new training without --c"


@dataclass
class TrainingState:
    """What a label-set training remembers; part of every checkpoint."""

    training_cases: list[str] | None = None  # None: a checkpoint from before this was stored
    validation_cases: list[str] | None = None
    pseudo_dice_counts: np.ndarray | None = None  # (3, labels): tp, fp, fn of recent epochs
    running_dice: dict[Any, torch.Tensor] = field(default_factory=dict)
    new_labels: list[str] | None = None  # in a training that `extend` started
    teacher: dict[str, Any] | None = None  # weights
    mirror: dict[str, Any] | None = None  # how predictions are mirrored: axis, swapped outputs

    @classmethod
    def of_checkpoint(cls, checkpoint: Mapping[str, Any]) -> TrainingState:
        """Return the state stored in a checkpoint; an empty one if there is none."""
        stored = checkpoint["optimizer_state"]["param_groups"][0].get(STATE, {})
        names = [item.name for item in fields(cls)]
        return cls(**{name: stored[name] for name in names if name in stored})

    def to_dict(self) -> dict[str, Any]:
        """Return what is known, as plain containers."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def read_whole_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint, its tensors still on disk; a truncated file is an error.

    It is read as data, before nnU-Net reads it and runs whatever code is in it.
    """
    try:
        return read_checkpoint(path, trusted(), mmap=True, how_to_trust=TRUST_IT)
    except UnreadableCheckpointError as error:
        others = [path.with_name(name) for name in CHECKPOINTS if name != path.name]
        usable = [other.name for other in others if other.is_file()]
        fix = f"remove it, and --c continues from {usable[0]}" if usable else NEW_TRAINING
        raise LabelSetError(f"{error}: {fix}") from None


def whole_checkpoint(path: str) -> AbstractContextManager[Path]:
    """Return a path to write to; the checkpoint gets its name when it is complete.

    The temporary name is always the same: killed trainings must not leave more and more files.
    """
    return new_file(path, temporary_name=f".unfinished_{Path(path).name}")


@contextmanager
def as_file(source: Any) -> Iterator[str]:
    """Return the file of a checkpoint that may be given as a dict: nnU-Net 2.8 fails for those."""
    if not isinstance(source, Mapping):
        yield str(source)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FINAL_CHECKPOINT)
        torch.save(dict(source), path)
        yield str(path)


class CheckpointGuard:
    """Refuses checkpoints that were trained with another contract or other cases."""

    def __init__(self, contract: Contract, training: list[str], validation: list[str]) -> None:
        """
        contract: of this training.
        training, validation: the cases of its fold.
        """
        self.contract = contract
        self.training = training
        self.validation = validation

    def admit(
        self, checkpoint: Mapping[str, Any], is_resuming: bool, log: Callable[[str], None]
    ) -> TrainingState:
        """Return the state of a checkpoint; raise if it does not fit.

        For a validation alone the protocols may have changed: predictions do not depend on them.
        The cases may not, or a network would be scored on the cases that it was trained with.
        """
        state = TrainingState.of_checkpoint(checkpoint)
        self._check_cases(state)
        try:
            before = Contract.from_dataset_json(checkpoint["init_args"]["dataset_json"])
        except LabelSetError as error:
            raise LabelSetError(f"the checkpoint was trained without a contract: {error}") from None
        changes = self._contract_changes(before)
        if changes and (is_resuming or _outputs(before) != _outputs(self.contract)):
            raise LabelSetError(
                "the contract in dataset.json has changed since this training began: "
                f"{some(changes)}. Restore it, or {NEW_TRAINING}"
            )
        if changes:
            log(f"WARNING: validating with a changed contract: {some(changes)}")
        return replace(
            state,
            training_cases=sorted(map(str, self.training)),
            validation_cases=sorted(map(str, self.validation)),
        )

    def _check_cases(self, state: TrainingState) -> None:
        parts = (
            ("training", state.training_cases, self.training),
            ("validation", state.validation_cases, self.validation),
        )
        changes = []
        for part, before, now in parts:
            if before is not None:
                changes += [f"'{case}' is a new {part} case" for case in sorted({*now} - {*before})]
                changes += [f"'{case}' was a {part} case" for case in sorted({*before} - {*now})]
        if changes:
            raise LabelSetError(
                "the cases of this fold have changed since the training began: "
                f"{some(changes)}. Restore {SPLITS}, or {NEW_TRAINING}"
            )

    def _contract_changes(self, before: Contract) -> list[str]:
        """Return what differs for the cases of the fold. The name of a protocol does not count."""
        after = self.contract
        if before.value_names != after.value_names:
            return [f"labels {list(before.value_names)} became {list(after.value_names)}"]
        if _outputs(before) != _outputs(after):
            return [
                f"regions {list(before.regions or [])} became {list(after.regions or [])}, "
                "or have other labels"
            ]
        cases = sorted({*self.training, *self.validation})
        return [
            _case_change(before, after, case)
            for case in cases
            if case not in before.cases or before.protocol(case) != after.protocol(case)
        ]


def _case_change(before: Contract, after: Contract, case: str) -> str:
    name_before = before.cases.get(case, "absent")
    name = after.protocol_name(case)
    if name_before != name:
        return f"case '{case}': {name_before} became {name}"
    return f"case '{case}': its protocol '{name}' has changed its meaning"


def _outputs(contract: Contract) -> tuple[Any, ...]:
    return contract.leaf_names, tuple((contract.regions or {}).items())
