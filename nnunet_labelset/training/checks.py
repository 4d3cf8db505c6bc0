"""Checks before a training costs time: the combination of classes, and the cases of the fold."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError

NNUNET = "nnunetv2."  # what nnU-Net's own modules start with


def check_order(cls: type, mixin: type, nnunet_trainer: type) -> None:
    """Refuse a class in which nnU-Net's methods would win: it would train plain nnU-Net."""
    for ancestor in cls.__mro__[: cls.__mro__.index(mixin)]:
        if issubclass(ancestor, nnunet_trainer) and not issubclass(ancestor, mixin):
            label_set_bases = [base for base in cls.__bases__ if issubclass(base, mixin)]
            first = (label_set_bases or [mixin])[0]
            raise LabelSetError(
                f"class {cls.__name__}: {ancestor.__name__} comes before {mixin.__name__} and "
                "would switch it off: "
                f"write class {cls.__name__}({first.__name__}, {ancestor.__name__})"
            )


def class_behind(cls: type, mixin: type, method: str) -> type:
    """Return the class whose method the mixin calls with `super()`."""
    behind = cls.__mro__[cls.__mro__.index(mixin) + 1 :]
    return next(base for base in behind if method in vars(base))


def check_loss(cls: Any, mixin: type) -> str:
    """Return a warning if the loss of another trainer is replaced, or ''; refuse to go without."""
    if not hasattr(cls, "loss_class"):
        raise LabelSetError(
            f"{cls.__name__} has no loss: give the class a loss_class, for example LeafDiceCELoss"
        )
    base = class_behind(cls, mixin, "_build_loss")
    if base.__name__ == "nnUNetTrainer":
        return ""
    return f"{cls.loss_class.__name__} replaces the loss of {base.__name__}"


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
    """Make sure that some voxel is known not to be background; usually the first case has one."""
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
