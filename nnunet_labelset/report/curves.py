"""Training curves of the folds of a model, from the logs that nnU-Net writes (`training_log_*.txt`).

The same numbers are in the checkpoints, but the logs are there while a network still trains, and need no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

NUMBER = r"(nan|[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)"
EPOCH = re.compile(r": +Epoch (\d+) *$")
LOSS = re.compile(rf": +(train_loss|val_loss) +{NUMBER} *$")
PSEUDO_DICE = re.compile(r": +Pseudo dice +\[(.*)\] *$")


@dataclass
class Curves:
    """What was logged in each finished epoch of one fold; a value that is not a number is None."""

    fold: str
    train_loss: dict[int, float | None] = field(default_factory=dict)
    val_loss: dict[int, float | None] = field(default_factory=dict)
    pseudo_dice: dict[int, float | None] = field(default_factory=dict)


def read_curves(model_folder: str | Path) -> list[Curves]:
    """The curves of all folds in a folder `TRAINER__PLANS__CONFIGURATION`, in the order of the folds."""
    folders = [path for path in Path(model_folder).glob("fold_*") if path.is_dir()]
    folders.sort(key=lambda path: (not path.name[5:].isdigit(), int(path.name[5:]) if path.name[5:].isdigit() else 0))
    curves = [read_fold(folder) for folder in folders]
    return [fold for fold in curves if fold.train_loss]


def read_fold(folder: Path) -> Curves:
    """The logs of one fold in the order of their times; where a training went on, its later log counts."""
    curves = Curves(folder.name.removeprefix("fold_"))
    # The numbers in nnU-Net's log names are not padded, so they are compared as numbers.
    for log in sorted(
        folder.glob("training_log_*.txt"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)]
    ):
        _read_log(log.read_text(encoding="utf-8", errors="replace"), curves)
    return curves


def _read_log(text: str, curves: Curves) -> None:
    epoch = None
    first = True
    for line in text.splitlines():
        if found := EPOCH.search(line):
            epoch = int(found[1])
            if first:
                for values in (curves.train_loss, curves.val_loss, curves.pseudo_dice):
                    for later in [number for number in values if number >= epoch]:
                        del values[later]
            first = False
        elif epoch is not None and (found := LOSS.search(line)):
            (curves.train_loss if found[1] == "train_loss" else curves.val_loss)[epoch] = _number(found[2])
        elif epoch is not None and (found := PSEUDO_DICE.search(line)):
            text_values = re.sub(r"np\.float\d+\(|\)", "", found[1])
            values_of_leaves = [_number(value) for value in re.findall(NUMBER, text_values)]
            known = [value for value in values_of_leaves if value is not None]
            curves.pseudo_dice[epoch] = sum(known) / len(known) if known else None


def _number(text: str) -> float | None:
    value = float(text)
    return value if abs(value) < float("inf") else None  # also false for NaN
