"""Checkpoints that are whole or not there, and that go on only with the contract they were trained
with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import new_file
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import BEST_CHECKPOINT, FINAL_CHECKPOINT, LATEST_CHECKPOINT
from nnunet_labelset.training.base import Trainer
from nnunet_labelset.training.stopping import stop


class CheckpointMixin(Trainer):
    """nnU-Net's checkpoints, with what a label-set training has to remember and to check."""

    _resuming: bool
    contract: Contract

    @property
    def training_state(self) -> dict[str, Any]:
        """What of ours a checkpoint carries: nnU-Net saves and restores the options of the
        optimiser as they are.
        """
        return self.optimizer.param_groups[0].setdefault("label_sets", {})

    def save_checkpoint(self, filename: str) -> None:
        """Under another name first: a training that is killed while it writes keeps its last
        checkpoint.
        """
        if self.local_rank != 0 or self.disable_checkpointing:
            super().save_checkpoint(filename)  # writes nothing
            return
        with new_file(filename) as temporary:
            super().save_checkpoint(str(temporary))

    def load_checkpoint(self, filename_or_checkpoint: Any) -> None:
        """Go on only if the cases of the fold mean what they meant."""
        checkpoint = _load(Path(filename_or_checkpoint))
        try:
            before = Contract.from_dataset_json(checkpoint["init_args"]["dataset_json"])
        except LabelSetError as error:
            stop(f"{filename_or_checkpoint} was trained without a contract: {error}")
        changes = _changes(
            before, self.contract, sorted({case for part in self.do_split() for case in part})
        )
        if changes and (self._resuming or _outputs(before) != _outputs(self.contract)):
            stop(
                "the contract in dataset.json has changed since this training began: "
                + some(changes)
                + ". Restore it, or start a new training without --c"
            )
        if changes:
            self.print_to_log_file("WARNING: validating with a changed contract:", some(changes))
        super().load_checkpoint(filename_or_checkpoint)


def _load(path: Path) -> dict[str, Any]:
    """A checkpoint without its tensors in memory; one that was cut off is named, with the one to
    take instead.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=False, mmap=True)
    except Exception as error:  # torch raises many kinds for a file that is not whole
        others = [
            path.with_name(name) for name in (FINAL_CHECKPOINT, LATEST_CHECKPOINT, BEST_CHECKPOINT)
        ]
        older = next((other.name for other in others if other != path and other.is_file()), None)
        way = (
            f"remove it, and --c goes on from {older}"
            if older
            else "start a new training without --c"
        )
        stop(
            f"{path}: not a whole checkpoint ({str(error).splitlines()[0] if str(error) else error!r}): {way}"
        )


def _outputs(contract: Contract) -> tuple[Any, ...]:
    return contract.leaf_names, tuple((contract.regions or {}).items())


def _changes(before: Contract, after: Contract, cases: list[str]) -> list[str]:
    """What differs for these cases, in words. What a case means counts, not the name of its
    protocol.
    """
    if before.value_names != after.value_names:
        return [f"labels {list(before.value_names)} became {list(after.value_names)}"]
    if list((before.regions or {}).items()) != list((after.regions or {}).items()):
        return [
            f"regions {list(before.regions or [])} became {list(after.regions or [])}, or have other leaves"
        ]
    return [
        f"case '{case}': {before.cases.get(case, 'absent')} became {after.protocol_name(case)}"
        if before.cases.get(case) != after.protocol_name(case)
        else f"case '{case}': its protocol '{after.protocol_name(case)}' has another meaning"
        for case in cases
        if case not in before.cases or before.protocol(case) != after.protocol(case)
    ]
