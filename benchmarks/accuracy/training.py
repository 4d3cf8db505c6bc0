"""One training with nnU-Net's trainer: seeded, resumable, and scored on its way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from nnunetv2.preprocessing.preprocessors.default_preprocessor import DefaultPreprocessor
from nnunetv2.training.dataloading.nnunet_dataset import nnUNetDatasetBlosc2
from nnunetv2.training.lr_scheduler.polylr import PolyLRScheduler

from benchmarks.accuracy.methods import Method
from benchmarks.accuracy.studies import Study
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.training.short import seed_everything

CHECKPOINT = "checkpoint.pth"
CURVE = "curve.json"


@dataclass(frozen=True)
class Regime:
    """An optimiser with its number of epochs, over which the learning rate falls."""

    epochs: int
    adamw: bool
    points: tuple[float, ...]  # of the learning curve, as shares of the epochs


REGIMES = {
    "sgd": Regime(100, False, (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)),
    "full": Regime(1000, False, tuple(0.05 * n for n in range(1, 21))),
    "adamw": Regime(10, True, (1.0,)),
}


class InMemoryDataset(nnUNetDatasetBlosc2):
    """nnU-Net's data set without its files: small trainings would wait for them most of the time.

    `replaced` holds label maps of cases that are not those of the files.
    """

    replaced: ClassVar[Mapping[str, np.ndarray]] = {}
    labels: ClassVar[tuple[int | tuple[int, ...], ...]] = ()  # as nnU-Net's preprocessing

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cache: dict[str, tuple[Any, ...]] = {}

    def load_case(self, identifier: str) -> tuple[Any, Any, Any, dict]:
        if identifier not in self.cache:
            data, labels, previous, properties = super().load_case(identifier)
            labels = labels[:]
            if identifier in self.replaced:
                labels = self.replaced[identifier]
                locations = DefaultPreprocessor._sample_foreground_locations(
                    labels, list(self.labels)
                )
                properties["class_locations"] = locations
            self.cache[identifier] = (data[:], labels, previous, properties)
        data, labels, previous, properties = self.cache[identifier]
        # the data sets of label-sets change the locations
        copy = {**properties, "class_locations": dict(properties["class_locations"])}
        return data, labels, previous, copy


@dataclass
class Training:
    """What makes a training; `folder` keeps its checkpoint and its learning curve."""

    study: Study
    preprocessed: Path
    method: Method
    folder: Path
    seed: int
    steps: int
    regime: Regime
    cases: list[str] | None = None  # None: all
    fold: int | str = "all"
    labels: dict[str, int] | None = None  # others than those of dataset.json, without label-sets
    replaced: Mapping[str, np.ndarray] = field(default_factory=dict)
    gaps: Mapping[str, np.ndarray] = field(default_factory=dict)  # masks of what was replaced
    score: Callable[[Any], dict[str, Any]] | None = None  # of a trainer, on the way

    @property
    def points(self) -> set[int]:
        """Epochs after which the training is scored and saved."""
        return {round(share * self.regime.epochs) for share in self.regime.points}

    def trainer(self) -> Any:
        plans = {**read_json(self.preprocessed / "nnUNetPlans.json"), "continue_training": False}
        dataset = read_json(self.preprocessed / "dataset.json")
        if self.labels is not None:
            dataset = {**dataset, "labels": self.labels}
            dataset.pop("label_sets", None)
        seed_everything(self.seed)  # the network too
        cls = trainer_class(self)
        trainer = cls(plans, self.study.configuration, self.fold, dataset, torch.device("cpu"))
        torch.set_num_threads(1)
        return trainer

    def run(self) -> Any:
        """Return the trained trainer; a training that was ended goes on where it was saved."""
        self.folder.mkdir(parents=True, exist_ok=True)
        trainer = self.trainer()
        trainer.on_train_start()
        curve: list[dict[str, Any]] = []
        seconds = 0.0
        if (self.folder / CURVE).is_file() and (self.folder / CHECKPOINT).is_file():
            saved = read_json(self.folder / CURVE)
            trainer.load_checkpoint(str(self.folder / CHECKPOINT))
            # written after the checkpoint: an older curve lacks a point, which is scored again
            curve = [point for point in saved["points"] if point["epoch"] <= trainer.current_epoch]
            seconds = saved["cpu_seconds"]
            if trainer.current_epoch in self.points and len(curve) < self._passed(trainer):
                curve.append(self._point(trainer, trainer.current_epoch))
        begin = time.process_time() - seconds
        for epoch in range(trainer.current_epoch, trainer.num_epochs):
            one_epoch(trainer, epoch, self.seed)
            if epoch + 1 in self.points:
                seconds = time.process_time() - begin
                trainer.save_checkpoint(str(self.folder / CHECKPOINT))
                curve.append(self._point(trainer, epoch + 1))
                begin = time.process_time() - seconds  # scoring is not counted
                content = {"cpu_seconds": round(seconds, 1), "points": curve}
                write_json(self.folder / CURVE, content)
        return trainer

    def _passed(self, trainer: Any) -> int:
        return sum(point <= trainer.current_epoch for point in self.points)

    def _point(self, trainer: Any, epoch: int) -> dict[str, Any]:
        is_last = epoch == self.regime.epochs  # scored case by case afterwards
        scores = self.score(trainer) if self.score and not is_last else {}
        return {"epoch": epoch, "steps": epoch * trainer.num_iterations_per_epoch, **scores}


def one_epoch(trainer: Any, epoch: int, seed: int) -> None:
    """nnU-Net's loop without its validation: the last weights count, whatever the method."""
    trainer.current_epoch = epoch
    trainer.on_epoch_start()
    seed_everything(seed, epoch)  # a continued training sees the patches that it would have seen
    trainer.on_train_epoch_start()
    steps = range(trainer.num_iterations_per_epoch)
    trainer.on_train_epoch_end([trainer.train_step(next(trainer.dataloader_train)) for _ in steps])


def trainer_class(training: Training) -> type:
    """The trainer of the method with the length, the cases and the mirroring of the study."""
    mirror = training.method.mirror or training.study.mirror
    regime = training.regime

    class Benchmark(*training.method.bases):  # type: ignore[misc]
        def __init__(
            self,
            plans: dict,
            configuration: str,
            fold: int,
            dataset_json: dict,
            device: torch.device = torch.device("cpu"),  # noqa: B008  (nnU-Net's signature)
        ) -> None:
            super().__init__(plans, configuration, fold, dataset_json, device)
            self.num_epochs = regime.epochs
            self.num_iterations_per_epoch = training.steps // regime.epochs
            if regime.adamw:
                self.initial_lr = 1e-3

        def configure_optimizers(self) -> tuple[Any, Any]:
            if not regime.adamw:
                return super().configure_optimizers()
            optimizer = torch.optim.AdamW(
                self.network.parameters(), self.initial_lr, weight_decay=self.weight_decay
            )
            return optimizer, PolyLRScheduler(optimizer, self.initial_lr, self.num_epochs)

        def configure_rotation_dummyDA_mirroring_and_inital_patch_size(self) -> tuple[Any, ...]:  # noqa: N802
            """The axes of mirroring are those of the study, whatever the method."""
            *others, _ = super().configure_rotation_dummyDA_mirroring_and_inital_patch_size()
            self.inference_allowed_mirroring_axes = mirror
            return *others, mirror

        def do_split(self) -> tuple[list[str], list[str]]:
            train, validation = super().do_split()
            if training.cases is not None:
                train = [case for case in train if case in training.cases]
                validation = [case for case in validation if case in training.cases]
            return train, validation

        def get_tr_and_val_datasets(self) -> tuple[Any, Any]:
            labels = tuple(self.label_manager.foreground_labels)
            if self.label_manager.has_ignore_label:  # where a patch may lie
                labels = (*labels, (-1, *self.label_manager.all_labels))
            attributes = {"replaced": training.replaced, "labels": labels}
            self.dataset_class = type("InMemory", (InMemoryDataset,), attributes)
            return super().get_tr_and_val_datasets()

        def plot_network_architecture(self) -> None:
            pass

    for name in ("loss_class", "sampling"):
        if getattr(training.method, name):
            setattr(Benchmark, name, getattr(training.method, name))
    return Benchmark
