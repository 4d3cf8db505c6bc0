"""Pseudo-Dice: by label over the recent epochs, steady whatever an epoch happens to show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nnunet_labelset.trainers.leaf_dice import nnUNetTrainerLeafDice
from nnunet_labelset.training.outputs import PseudoDice, StepCounts
from tests.helpers import tiny

LABELS = ("shell", "core", "dot")


def counts(tp: list[int], fp: list[int], fn: list[int], loss: float = 0.5) -> dict[str, Any]:
    """The output of a validation step."""
    step = StepCounts(counts=np.array([tp, fp, fn]), wrong=sum(fp), known=1000)
    return step.to_output(torch.tensor(loss))


def started(nnunet: tiny.NNUNet, coverage: tuple[int, ...] = (1, 1, 1)) -> Any:
    """A trainer whose validation cases annotate the labels so often."""
    trainer = tiny.make(nnunet, nnUNetTrainerLeafDice)
    trainer.initialize()
    trainer.pseudo_dice = PseudoDice(dict(zip(LABELS, coverage, strict=True)))
    trainer.logger.plot_progress_png = lambda folder: None  # slow
    return trainer


def epoch(trainer: Any, *outputs: dict[str, Any]) -> tuple[list[float], float]:
    """One epoch that validates to these outputs; returns the scores and their mean."""
    trainer.on_epoch_start()
    trainer.logger.log("lrs", 0.1, trainer.current_epoch)
    trainer.logger.log("train_losses", 0.1, trainer.current_epoch)
    trainer.on_validation_epoch_end(list(outputs))
    trainer.on_epoch_end()
    return tuple(
        trainer.logger.get_value(key, step=-1)
        for key in ("dice_per_class_or_region", "mean_fg_dice")
    )


def test_a_hallucination_is_scored(in_process: tiny.NNUNet) -> None:
    """Two perfect labels, and one that no epoch has shown yet but is predicted where it
    cannot be.
    """
    scores, mean = epoch(started(in_process), counts([9, 9, 0], [0, 0, 5000], [0, 0, 0]))
    assert scores == [1, 1, 0]
    assert mean == pytest.approx(2 / 3)


def test_false_positives_alone_do_not_make_a_leaf_annotated(
    in_process: tiny.NNUNet, capsys: pytest.CaptureFixture
) -> None:
    trainer = started(in_process)
    trainer.num_epochs = 9
    for _ in range(3):
        epoch(trainer, counts([9, 0, 0], [0, 0, 7], [0, 9, 0]))
    printed = capsys.readouterr().out
    assert "WARNING: 'core'" in printed
    assert "WARNING: 'dot'" not in printed


def test_no_count_is_no_score(in_process: tiny.NNUNet) -> None:
    trainer = tiny.make(in_process, nnUNetTrainerLeafDice)
    trainer.initialize()
    trainer.pseudo_dice = PseudoDice(dict.fromkeys(LABELS, 1))
    outputs = (
        counts([4, 0, 0], [2, 0, 0], [0, 0, 0], 0.2),
        counts([4, 0, 0], [0, 0, 0], [2, 0, 2], 0.4),
    )
    scores, mean = epoch(trainer, *outputs)
    assert scores[0] == pytest.approx(16 / 20)
    assert np.isnan(scores[1])
    assert scores[2] == 0  # annotated and missed
    assert mean == pytest.approx(0.4)
    assert trainer.logger.get_value("val_losses", step=0) == pytest.approx(0.3)
    assert (Path(trainer.output_folder) / "progress.png").is_file()


def test_the_mean_does_not_jump_because_other_leaves_were_seen(in_process: tiny.NNUNet) -> None:
    trainer = started(in_process)
    easy, hard = (
        counts([90, 0, 0], [10, 0, 0], [10, 0, 0]),
        counts([0, 30, 0], [0, 70, 0], [0, 70, 0]),
    )
    epoch(trainer, easy, hard)
    means = [epoch(trainer, outputs)[1] for outputs in (easy, hard, easy, easy, easy, hard)]
    assert means == pytest.approx([0.6] * 6)  # 0.9 and 0.3, whichever was seen
    # one wrong voxel is one wrong voxel
    _, mean = epoch(trainer, counts([0, 0, 0], [1, 1, 0], [0, 0, 0]))
    assert mean == pytest.approx(0.6, abs=0.01)
    for _ in range(30):
        _, mean = epoch(trainer, counts([0, 0, 0], [100, 100, 0], [0, 0, 0]))
    assert mean < 0.1


def test_a_first_epoch_cannot_keep_the_best_checkpoint(in_process: tiny.NNUNet) -> None:
    """The first epochs show nothing, then the easy leaf alone; the mean over more leaves is lower,
    and comes later.
    """
    trainer = started(in_process)
    trainer.disable_checkpointing = True
    epoch(trainer, counts([0, 0, 0], [0, 0, 0], [0, 0, 0]))
    epoch(trainer, counts([99, 0, 0], [0, 0, 0], [1, 0, 0]))
    assert trainer._best_ema == pytest.approx(198 / 199)
    epoch(trainer, counts([0, 10, 0], [0, 80, 0], [0, 10, 0]))
    first = trainer._best_ema
    assert first == pytest.approx((198 / 199 + 20 / 110) / 2)
    epoch(trainer, counts([99, 90, 0], [0, 10, 0], [1, 10, 0]))
    assert trainer._best_ema > first
    assert np.isfinite(trainer.logger.get_value("ema_fg_dice", step=None)).all()


def test_a_voxel_that_was_invented_once_is_forgotten(in_process: tiny.NNUNet) -> None:
    """No epoch has shown the last label: it has no score, one false voxel counts for a while, and
    nothing starts anew.
    """
    trainer = started(in_process)
    trainer.disable_checkpointing = True
    nothing, good = [0, 0, 0], [99, 0, 0]
    epoch(trainer, counts(good, nothing, nothing))
    best = trainer._best_ema
    _, mean = epoch(trainer, counts(good, [0, 0, 1], nothing))
    assert mean == pytest.approx(0.5)
    assert trainer._best_ema == best
    for _ in range(3):
        scores, mean = epoch(trainer, counts(good, nothing, nothing))
    assert mean == pytest.approx(1)
    assert np.isnan(scores[2])


def test_the_score_goes_on_where_the_training_was_stopped(
    in_process: tiny.NNUNet, tmp_path: Path
) -> None:
    first, outputs = started(in_process), counts([5, 0, 3], [1, 2, 0], [4, 0, 9])
    epoch(first, counts([1, 1, 1], [8, 8, 8], [8, 8, 8]))
    first.current_epoch -= 1
    first.save_checkpoint(str(tmp_path / "checkpoint.pth"))
    first.current_epoch += 1
    second = started(in_process)
    second.load_checkpoint(str(tmp_path / "checkpoint.pth"))
    assert epoch(second, outputs) == epoch(first, outputs)
    assert second._best_ema == first._best_ema


def test_a_label_that_no_validation_case_annotates_has_no_score(
    in_process: tiny.NNUNet, capsys: pytest.CaptureFixture
) -> None:
    """One annotated case of 60, in training: a Dice of 0 in all epochs, 75 % on the test."""
    trainer = started(in_process, (1, 1, 0))
    trainer.pseudo_dice.describe(print)
    assert "'dot'" in capsys.readouterr().out
    scores, mean = epoch(trainer, counts([9, 6, 0], [0, 6, 5000], [0, 6, 0]))
    assert scores[:2] == [1, 0.5]
    assert np.isnan(scores[2])
    assert mean == pytest.approx(0.75)
    printed = capsys.readouterr().out
    assert "'dot' 5000" in printed  # voxels known to be wrong stand beside it


def test_the_fold_decides_which_labels_have_a_score(in_process: tiny.NNUNet) -> None:
    dataset = tiny.dataset_json(in_process)
    trainer = tiny.make(in_process, nnUNetTrainerLeafDice, dataset)
    _, validation = trainer.do_split()
    dataset["label_sets"]["cases"] |= dict.fromkeys(validation, "no_core")
    trainer = tiny.make(in_process, nnUNetTrainerLeafDice, dataset)
    trainer.initialize()
    assert trainer.pseudo_dice.names == LABELS
    assert trainer.pseudo_dice.is_scored.tolist() == [True, False, False]


def test_without_any_score_the_best_checkpoint_is_the_last_one(in_process: tiny.NNUNet) -> None:
    trainer = started(in_process, (0, 0, 0))
    saved = []
    trainer.save_checkpoint = saved.append
    for _ in range(3):
        _, mean = epoch(trainer, counts([0, 0, 0], [5, 0, 0], [0, 0, 0]))
        assert mean == 0
    assert len(saved) == 3


class OtherLogger:
    """Stands for nnU-Net's Weights & Biases logger: the last value of a step counts."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, int], Any] = {}

    def log(self, key: str, value: Any, step: int) -> None:
        self.values[key, step] = value


def test_other_loggers_get_the_same_moving_average(in_process: tiny.NNUNet) -> None:
    trainer = started(in_process)
    trainer.disable_checkpointing = True
    other = OtherLogger()
    trainer.logger.loggers.append(other)
    nothing = [0, 0, 0]
    epoch(trainer, counts([99, 0, 0], nothing, [1, 0, 0]))
    epoch(trainer, counts([0, 10, 0], [0, 80, 0], [0, 10, 0]))  # a second label: a new mean
    epoch(trainer, counts([99, 90, 0], [0, 10, 0], [1, 10, 0]))
    averages = trainer.logger.get_value("ema_fg_dice", step=None)
    assert [other.values["ema_fg_dice", step] for step in range(3)] == averages


def test_voxels_known_to_be_wrong() -> None:
    """Of labels: a voxel is wrong if its label-set excludes the predicted label."""
    membership = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=bool)
    predicted = torch.tensor([[0, 1, 2, 1, 0, 0]])
    target = torch.tensor([[0, 0, 2, 3, 3, 4]])
    logits = torch.nn.functional.one_hot(predicted, 3).movedim(-1, 1).float()
    step = StepCounts.of_labels(logits, target, membership)
    assert step.wrong == 2  # label 1 on {0}, label 0 on {1, 2}
    assert step.known == 5  # the last voxel may be anything
    assert step.counts.tolist() == [[0, 1], [1, 0], [0, 0]]
