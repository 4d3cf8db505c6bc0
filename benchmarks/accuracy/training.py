"""One run: train with nnU-Net's trainer, predict with its predictor, write the predictions."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nnunetv2.experiment_planning.plan_and_preprocess_api import preprocess
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

from benchmarks.accuracy.methods import ALL, Method
from benchmarks.accuracy.prepare import CONFIGURATION, DATASETS
from benchmarks.accuracy.studies import Study
from nnunet_labelset.contract import Contract
from nnunet_labelset.dataset_conversion.complete import write_completed
from nnunet_labelset.datasets.folds import k_folds, subjects_of
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.training.sampling import VARIABLE
from nnunet_labelset.training.short import ShortMixin

EPOCHS = 10
FOLDS = 3  # of a method that completes its cases before it trains again


def trainer_class(method: Method, mirror: tuple[int, ...] | None) -> type:
    """AdamW and a seed from `ShortMixin`; the axes of mirroring are those of the study, whatever
    the method.
    """

    class Short(ShortMixin):
        def configure_rotation_dummyDA_mirroring_and_inital_patch_size(self) -> tuple[Any, ...]:  # noqa: N802
            *rest, _ = super(
                ShortMixin, self
            ).configure_rotation_dummyDA_mirroring_and_inital_patch_size()
            self.inference_allowed_mirroring_axes = mirror
            return *rest, mirror

    attributes = {
        name: getattr(method, name) for name in ("loss_class", "sampling") if getattr(method, name)
    }
    return type("Benchmark", (Short, *method.bases), attributes)


def run(study: Study, folder: Path, name: str, seed: int, steps: int, target: Path) -> None:
    """Train, predict the test cases into `target`, and write `run.json` last: it marks a finished
    run.
    """
    method = ALL[name]
    os.environ.pop(VARIABLE, None)  # how cases are sampled is a part of the method
    target.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "nnunet_labelset_seed": str(seed),
        "nnunet_labelset_epochs": str(EPOCHS),
        "nnunet_labelset_iterations": str(steps // EPOCHS),
        "nnUNet_n_proc_DA": "0",
        "nnUNet_results": str(target / "results"),
        "OMP_NUM_THREADS": "1",
    }
    torch.set_num_threads(1)
    with (
        (target / "log.txt").open("w") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        begin = time.process_time()
        preprocessed = folder / "nnUNet_preprocessed" / DATASETS[method.dataset]
        if method.completed:
            preprocessed = completed(study, folder, preprocessed, method, target)
        trainer = trained(study, preprocessed, method)
        seconds = time.process_time() - begin
        images = folder / "nnUNet_raw" / DATASETS["label-sets"] / "imagesTs"
        predict(trainer, images.glob("*_0000.nii.gz"), target)
    write_json(
        target / "run.json",
        {"method": name, "seed": seed, "steps": steps, "cpu_seconds": round(seconds)},
    )


def trained(study: Study, preprocessed: Path, method: Method, fold: int | str = "all") -> Any:
    """nnU-Net's loop without its validation: the last weights count, whatever the method."""
    plans = {**read_json(preprocessed / "nnUNetPlans.json"), "continue_training": False}
    dataset = read_json(preprocessed / "dataset.json")
    cls = trainer_class(method, study.mirror)
    trainer = cls(plans, CONFIGURATION, fold, dataset, torch.device("cpu"))
    trainer.disable_checkpointing = True
    trainer.on_train_start()
    for epoch in range(trainer.num_epochs):
        trainer.current_epoch = epoch
        trainer.on_epoch_start()
        trainer.on_train_epoch_start()
        steps = range(trainer.num_iterations_per_epoch)
        trainer.on_train_epoch_end(
            [trainer.train_step(next(trainer.dataloader_train)) for _ in steps]
        )
    return trainer


def completed(study: Study, folder: Path, preprocessed: Path, method: Method, target: Path) -> Path:
    """A preprocessed data set in which folds of the method have completed the cases that they did
    not train on.
    """
    raw = folder / "nnUNet_raw" / preprocessed.name
    contract = Contract.from_dataset_json(read_json(preprocessed / "dataset.json"))
    splits = k_folds(
        subjects_of(contract, [path.name[:-7] for path in (raw / "labelsTr").glob("*.nii.gz")]),
        FOLDS,
    )
    write_json(preprocessed / "splits_final.json", splits)  # the same in every run
    model = target / "results" / "folds"
    for fold, split in enumerate(splits):
        trainer, validation = (
            trained(study, preprocessed, method, fold),
            model / f"fold_{fold}" / "validation",
        )
        validation.mkdir(parents=True, exist_ok=True)
        predict(
            trainer,
            [raw / "imagesTr" / f"{case}_0000.nii.gz" for case in split["val"]],
            validation,
            True,
        )
    shutil.copy(preprocessed / "nnUNetPlans.json", model / "plans.json")
    shutil.copy(preprocessed / "dataset.json", model)
    os.environ |= {name: str(target / name) for name in ("nnUNet_raw", "nnUNet_preprocessed")}
    new = target / "nnUNet_raw" / "Dataset803_Completed"
    shutil.rmtree(new, ignore_errors=True)  # of a run that was ended
    again = target / "nnUNet_preprocessed" / new.name
    shutil.rmtree(again, ignore_errors=True)
    print("\n".join(write_completed(raw, new, again, model, splits, 0.9, 1)))
    shutil.copy(preprocessed / "dataset_fingerprint.json", again)
    preprocess([803], configurations=[CONFIGURATION], num_processes=[1])
    return again


def predict(
    trainer: Any, images: Iterable[Path], target: Path, probabilities: bool = False
) -> None:
    """nnU-Net's prediction, without mirroring, from the image to a segmentation on its grid, or to
    probabilities.
    """
    trainer.set_deep_supervision_enabled(False)
    predictor = nnUNetPredictor(0.75, True, False, device=torch.device("cpu"), allow_tqdm=False)
    weights, managers = (
        [trainer.network.state_dict()],
        (trainer.plans_manager, trainer.configuration_manager),
    )
    predictor.manual_initialization(
        trainer.network, *managers, weights, trainer.dataset_json, "", None
    )
    reader = trainer.plans_manager.image_reader_writer_class()
    for path in sorted(images):
        image, properties = reader.read_images([str(path)])
        case = path.name.removesuffix("_0000.nii.gz")
        if probabilities:
            _, found = predictor.predict_single_npy_array(
                image, properties, save_or_return_probabilities=True
            )
            np.savez_compressed(target / f"{case}.npz", probabilities=found)
        else:
            segmentation = predictor.predict_single_npy_array(image, properties)
            reader.write_seg(segmentation, str(target / f"{case}.nii.gz"), properties)
