"""What nnU-Net prints and logs: lines that show progress, and the training curves of a model.

The numbers of the curves are in the checkpoints too, but logs are there during a training, and need
no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from nnunet_labelset.evaluation.statistics import describe
from nnunet_labelset.nnunet.names import fold_name

LOGS = "training_log_*.txt"  # of a fold; nnU-Net begins a new one whenever a training goes on
# nnU-Net prints much; these lines show that it goes on.
TELLING = re.compile(
    r": (Epoch \d+|Pseudo dice .*|Mean Validation Dice.*|predicting .*)$|^\s+\w+\s+Dice (?:\d|nan)"
    r"|^(?:Fingerprint extraction|Experiment planning|Configuration: \w+)\.\.\."
    r"|^There are \d+ cases that I would"
)
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
    """The curves of all folds in a folder `TRAINER__PLANS__CONFIGURATION`, in the order of the
    folds.
    """
    curves = [read_fold(path) for path in Path(model_folder).glob(fold_name("*")) if path.is_dir()]
    curves.sort(
        key=lambda fold: (not fold.fold.isdigit(), int(fold.fold) if fold.fold.isdigit() else 0)
    )
    return [fold for fold in curves if fold.train_loss]


def read_fold(folder: Path) -> Curves:
    """The logs of one fold in the order of their times; where a training went on, its later log
    counts.
    """
    curves = Curves(folder.name.removeprefix(fold_name("")))
    # The numbers in nnU-Net's log names are not padded, so they are compared as numbers.
    for log in sorted(
        folder.glob(LOGS), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)]
    ):
        _read_log(log.read_text(encoding="utf-8", errors="replace"), curves)
    return curves


def _read_log(text: str, curves: Curves) -> None:
    epoch = None
    for line in text.splitlines():
        if found := EPOCH.search(line):
            if epoch is None:
                _forget_from(int(found[1]), curves)
            epoch = int(found[1])
        elif epoch is not None:
            _read_line(line, epoch, curves)


def _forget_from(epoch: int, curves: Curves) -> None:
    """A log that starts at this epoch replaces what earlier logs said about it and later ones."""
    for values in (curves.train_loss, curves.val_loss, curves.pseudo_dice):
        for later in [number for number in values if number >= epoch]:
            del values[later]


def _read_line(line: str, epoch: int, curves: Curves) -> None:
    if found := LOSS.search(line):
        losses = curves.train_loss if found[1] == "train_loss" else curves.val_loss
        losses[epoch] = _number(found[2])
    elif found := PSEUDO_DICE.search(line):
        by_label = map(_number, re.findall(NUMBER, without_numpy(found[1])))
        curves.pseudo_dice[epoch] = describe(by_label).mean


def telling(line: str) -> str | None:
    """The part of a line of nnU-Net's output that is worth showing, numbers as people write them;
    None for the rest.
    """
    found = TELLING.search(line.rstrip())
    return without_numpy(found.group(1) or line).strip() if found else None


def without_numpy(text: str) -> str:
    """`np.float32(0.5)` as `0.5`."""
    return re.sub(r"np\.float\d+\((.*?)\)", r"\1", text)


def _number(text: str) -> float | None:
    value = float(text)
    return value if abs(value) < float("inf") else None  # also false for NaN
