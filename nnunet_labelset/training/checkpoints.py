"""Files that a training writes and begins with: checkpoints, and the start file of `extend`.

A checkpoint stores our state with nnU-Net's, and only those of the same cases may be loaded. A
start file brings output layers: nnU-Net leaves them out when it loads `-pretrained_weights`, and
does not tell its trainers which file it loaded. We know the file from the command line or, in a
Python script, as the start file of these plans whose weights the network has.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import new_file
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.checkpoint_file import (
    NEW_OUTPUTS,
    OUTPUT_LAYERS,
    OUTPUTS,
    START_FILE,
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

    def set_cases(self, training: Iterable[str], validation: Iterable[str]) -> None:
        """Remember the cases of the fold; nnU-Net's splits may hold NumPy's texts."""
        self.training_cases = sorted(map(str, training))
        self.validation_cases = sorted(map(str, validation))

    @contextmanager
    def stored_in(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """In this block the optimizer has the state as one of its options, which nnU-Net saves."""
        options = optimizer.param_groups[0]
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        options[STATE] = {name: value for name, value in values.items() if value is not None}
        yield
        del options[STATE]


def read_whole_checkpoint(source: Any) -> Mapping[str, Any]:
    """Return a checkpoint, its tensors still on disk; a truncated file is an error.

    It is read as data, before nnU-Net reads it and runs whatever code is in it.
    """
    if isinstance(source, Mapping):
        return source
    path = Path(source)
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
        state.set_cases(self.training, self.validation)
        return state

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


def pretrained_file() -> str | None:
    """Return the file after `-pretrained_weights` on the command line, read as nnU-Net reads it."""
    parser = argparse.ArgumentParser(add_help=False)
    for option in ("-pretrained_weights", "-p"):  # a bare -p would be taken for an abbreviation
        parser.add_argument(option)
    return parser.parse_known_args(sys.argv[1:])[0].pretrained_weights


def plain_network(network: nn.Module) -> nn.Module:
    """Return the network without the wrappers of DDP and torch.compile."""
    network = getattr(network, "module", network)
    return getattr(network, "_orig_mod", network)


@dataclass(frozen=True)
class Start:
    """The content of a start file."""

    file: str
    weights: dict[str, Tensor]
    new_labels: list[str]  # labels that the old model did not know

    def is_loaded(self, network: nn.Module) -> bool:
        """Tell whether the network has these weights, except for its output layers."""
        state = network.state_dict()
        inner = [key for key in state if OUTPUT_LAYERS not in key]
        return all(torch.equal(self.weights[key], state[key].cpu()) for key in inner)

    def restore_outputs(self, network: nn.Module) -> None:
        """Copy the output layers into the network."""
        outputs = {key: value for key, value in self.weights.items() if OUTPUT_LAYERS in key}
        network.load_state_dict({**network.state_dict(), **outputs})


class StartFile:
    """Finds the start file of a new training."""

    def __init__(
        self, preprocessed: str, plans: str, configuration: str, names: Sequence[str]
    ) -> None:
        """
        preprocessed: the folder of the data set, in which `extend` writes start files.
        plans, configuration: of the network, by name.
        names: the labels of its outputs.
        """
        start_name = START_FILE.format(plans=plans, configuration=configuration)
        self.default = Path(preprocessed, start_name)
        self.names = list(names)

    def check(self, network: nn.Module) -> None:
        """Raise if the file on the command line does not fit, before nnU-Net fails to load it."""
        file = pretrained_file()
        if file is not None:
            self._read(Path(file), plain_network(network))

    def restore(self, network: nn.Module, log: Callable[[str], None]) -> list[str] | None:
        """Restore the output layers if the training extends a model; return its new labels, or
        None.
        """
        network = plain_network(network)
        start = self._find(network)
        if start is None:
            if pretrained_file() is None and self.default.is_file():
                log(
                    f"WARNING: {self.default} is not loaded: this network knows nothing of the "
                    f"model to extend. Train with -pretrained_weights {self.default}, without --c"
                )
            return None
        start.restore_outputs(network)
        log(f"Output layers of {len(self.names)} labels restored from {start.file}")
        return start.new_labels

    def _find(self, network: nn.Module) -> Start | None:
        """Return the start file that nnU-Net has loaded into the network; None if it has not."""
        file = pretrained_file()
        if file is not None:
            return self._read(Path(file), network)
        if not self.default.is_file():
            return None
        try:
            start = self._read(self.default, network)
        except LabelSetError:  # it does not fit, so nnU-Net cannot have loaded it
            return None
        return start if start and start.is_loaded(network) else None

    def _read(self, file: Path, network: nn.Module) -> Start | None:
        """Return the content of a start file, which must fit the network; None for any other
        checkpoint: nnU-Net then initialises the output layers.
        """
        if not file.is_file():
            raise LabelSetError(f"-pretrained_weights {file}: no such file")
        try:  # before nnU-Net loads the file, with whatever code is in it
            content = read_checkpoint(file, trusted(), mmap=True, how_to_trust=TRUST_IT)
        except LabelSetError as error:
            raise LabelSetError(f"-pretrained_weights {error}") from None
        if OUTPUTS not in content:
            return None
        if content[OUTPUTS] != self.names:
            raise LabelSetError(
                f"{file} was made for the labels {content[OUTPUTS]}, not {self.names}: "
                "run 'nnunet_labelset extend' again"
            )
        weights = content["network_weights"]
        for key, value in network.state_dict().items():
            if key not in weights or weights[key].shape != value.shape:
                expected = tuple(weights[key].shape) if key in weights else "none"
                raise LabelSetError(
                    f"{file} belongs to another network ({key}: {expected}, here "
                    f"{tuple(value.shape)}): train with the plans and the configuration that "
                    "'extend' printed (-p)"
                )
        return Start(str(file), weights, list(content.get(NEW_OUTPUTS, [])))
