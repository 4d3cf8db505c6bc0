"""One run: train with nnU-Net's trainer, predict with its predictor, write the predictions."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import torch
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

from benchmarks.accuracy.methods import ALL, Method
from benchmarks.accuracy.prepare import CONFIGURATION, DATASETS
from benchmarks.accuracy.studies import Study
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.training.sampling import VARIABLE
from nnunet_labelset.training.short import ShortMixin

EPOCHS = 10


def trainer_class(method: Method, mirror: tuple[int, ...] | None) -> type:
    """AdamW and a seed from `ShortMixin`; the axes of mirroring are those of the study, whatever the method."""

    class Short(ShortMixin):
        def configure_rotation_dummyDA_mirroring_and_inital_patch_size(self) -> tuple[Any, ...]:  # noqa: N802
            *rest, _ = super(ShortMixin, self).configure_rotation_dummyDA_mirroring_and_inital_patch_size()
            self.inference_allowed_mirroring_axes = mirror
            return *rest, mirror

    attributes = {name: getattr(method, name) for name in ("loss_class", "sampling") if getattr(method, name)}
    return type("Benchmark", (Short, *method.bases), attributes)


def run(study: Study, folder: Path, name: str, seed: int, steps: int, target: Path) -> None:
    """Train, predict the test cases into `target`, and write `run.json` last: it marks a finished run."""
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
    with (target / "log.txt").open("w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        begin = time.process_time()
        trainer = trained(study, folder, method)
        seconds = time.process_time() - begin
        predict(trainer, folder / "nnUNet_raw" / DATASETS["label-sets"] / "imagesTs", target)
    write_json(target / "run.json", {"method": name, "seed": seed, "steps": steps, "cpu_seconds": round(seconds)})


def trained(study: Study, folder: Path, method: Method) -> Any:
    """nnU-Net's loop without its validation: the last weights count, whatever the method."""
    preprocessed = folder / "nnUNet_preprocessed" / DATASETS[method.dataset]
    plans = {**read_json(preprocessed / "nnUNetPlans.json"), "continue_training": False}
    dataset = read_json(preprocessed / "dataset.json")
    cls = trainer_class(method, study.mirror)
    trainer = cls(plans, CONFIGURATION, "all", dataset, torch.device("cpu"))
    trainer.disable_checkpointing = True
    trainer.on_train_start()
    for epoch in range(trainer.num_epochs):
        trainer.current_epoch = epoch
        trainer.on_epoch_start()
        trainer.on_train_epoch_start()
        steps = range(trainer.num_iterations_per_epoch)
        trainer.on_train_epoch_end([trainer.train_step(next(trainer.dataloader_train)) for _ in steps])
    return trainer


def predict(trainer: Any, images: Path, target: Path) -> None:
    """nnU-Net's prediction, without mirroring, from the image to a segmentation on its grid."""
    trainer.set_deep_supervision_enabled(False)
    predictor = nnUNetPredictor(0.75, True, False, device=torch.device("cpu"), allow_tqdm=False)
    weights, managers = [trainer.network.state_dict()], (trainer.plans_manager, trainer.configuration_manager)
    predictor.manual_initialization(trainer.network, *managers, weights, trainer.dataset_json, "", None)
    reader = trainer.plans_manager.image_reader_writer_class()
    for path in sorted(images.glob("*_0000.nii.gz")):
        image, properties = reader.read_images([str(path)])
        case = path.name.removesuffix("_0000.nii.gz")
        segmentation = predictor.predict_single_npy_array(image, properties)
        reader.write_seg(segmentation, str(target / f"{case}.nii.gz"), properties)
