"""Training curves from nnU-Net's logs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from nnunet_labelset.nnunet.logs import read_curves
from tests.helpers.report import log


def test_curves_of_interrupted_trainings(tmp_path: Path) -> None:
    fold = tmp_path / "fold_0"
    log(fold, "training_log_2026_9_30_10_00_00.txt", {0: -0.1, 1: -0.2, 2: -0.3, 3: -0.4})
    # went on from a checkpoint after epoch 1
    log(fold, "training_log_2026_10_1_09_00_00.txt", {2: -0.35})
    log(tmp_path / "fold_10", "training_log_2026_10_1_09_00_00.txt", {0: 1e-05})
    log(tmp_path / "fold_2", "training_log_2026_10_1_09_00_00.txt", {0: -1})
    (tmp_path / "fold_3").mkdir()
    log(tmp_path / "fold_11", "training_log_2026_10_1_09_00_00.txt", {0: -1, 1: -2})
    # has just begun
    (tmp_path / "fold_11" / "training_log_2026_10_1_10_00_00.txt").write_text("2026: Epoch 1 \n")
    curves = read_curves(tmp_path)
    assert [fold.fold for fold in curves] == ["0", "2", "10", "11"]
    assert curves[0].train_loss == {0: -0.1, 1: -0.2, 2: -0.35}
    assert curves[0].val_loss == {0: None, 1: None, 2: None}
    assert curves[0].pseudo_dice == {0: 0.375, 1: 0.375, 2: 0.375}
    assert curves[2].train_loss == {0: 1e-05}
    assert curves[3].train_loss == {0: -1}


def test_curves_of_what_nnunet_itself_logs(tmp_path: Path) -> None:
    from nnunetv2.training.logging.nnunet_logger import MetaLogger
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    logger = MetaLogger(str(tmp_path), False)
    logger.plot_progress_png = lambda folder: None
    (tmp_path / "fold_0").mkdir()
    trainer = SimpleNamespace(
        **{
            "local_rank": 0,
            "log_file": str(tmp_path / "fold_0" / "training_log_2026_1_2_03_04_05.txt"),
        },
        **{
            "logger": logger,
            "current_epoch": 0,
            "num_epochs": 2,
            "save_every": 50,
            "_best_ema": None,
        },
        **{
            "output_folder": str(tmp_path),
            "save_checkpoint": lambda file: None,
            "lr_scheduler": None,
        },
    )
    trainer.print_to_log_file = lambda *words: nnUNetTrainer.print_to_log_file(
        trainer, *words, also_print_to_console=False
    )
    for epoch in range(2):
        trainer.print_to_log_file(f"Epoch {epoch}")
        logger.log("epoch_start_timestamps", 1.0, epoch)
        logger.log("train_losses", np.float64(-0.5 - epoch), epoch)
        logger.log("val_losses", np.float32(0.25), epoch)
        logger.log(
            "dice_per_class_or_region", [np.float64(0.5), np.float64("nan"), np.float64(1.0)], epoch
        )
        logger.log("mean_fg_dice", 0.75, epoch)
        nnUNetTrainer.on_epoch_end(trainer)
    (curves,) = read_curves(tmp_path)
    assert curves.train_loss == {0: -0.5, 1: -1.5}
    assert curves.val_loss == {0: 0.25, 1: 0.25}
    assert curves.pseudo_dice == {0: 0.75, 1: 0.75}
