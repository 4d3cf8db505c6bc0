"""Predictions of trained models for the cases of another data set, made by nnU-Net itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_bytes
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import read_voxels
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.checkpoint_file import read_checkpoint
from nnunet_labelset.nnunet.discovery import external_trainers
from nnunet_labelset.nnunet.extend import check_channels
from nnunet_labelset.nnunet.model_file import OldModel, opened_model
from nnunet_labelset.nnunet.raw import RawCase, channel_names, file_ending


@dataclass(frozen=True)
class TeacherModel:
    """What a model predicted: a folder of label maps, and the label of each value."""

    folder: Path
    labels: Mapping[str, int]  # name -> value
    ending: str


def check_teacher(
    model: Path,
    fold: str | None,
    dataset_json: Mapping[str, Any],
    leaf_names: Sequence[str],
    trust: bool,
) -> list[str]:
    """Fail if a model cannot teach these labels; return the labels that it alone knows."""
    with opened_model(model, fold) as (model_folder, _):
        old_model = OldModel.read(model_folder, trust)
    _check(model, old_model)
    channel_order(channel_names(old_model.dataset_json), channel_names(dataset_json), str(model))
    own = [label for label in old_model.outputs if label not in leaf_names]
    if not set(old_model.outputs) & set(leaf_names[1:]):
        raise LabelSetError(
            f"{model}: no label in common: the model knows {some(own, 20)}, "
            f"the data set has {some(leaf_names[1:], 20)}"
        )
    return own


def predict_cases(
    model: Path,
    fold: str | None,
    cases: Sequence[RawCase],
    dataset_json: Mapping[str, Any],
    folder: Path,
    trust: bool,
) -> TeacherModel:
    """Predict cases with all trained folds of a model, or with one; return the folder.

    Predictions that exist already are kept, so that a stopped run can go on. folder: where to make
    a folder for them.
    """
    with opened_model(model, fold) as (model_folder, checkpoints):
        old_model = OldModel.read(model_folder, trust)
        order = channel_order(
            channel_names(old_model.dataset_json), channel_names(dataset_json), str(model)
        )
        for file in checkpoints.values():
            read_checkpoint(file, trust)  # nnU-Net would run what is in it
        output = folder / _fingerprint(model_folder, checkpoints.values())
        ending = file_ending(old_model.dataset_json)
        missing = [case for case in cases if not _is_readable(output / f"{case.name}{ending}")]
        if missing:
            print(f"{model}: predicting {len(missing)} case(s)", flush=True)
            with _explained(model):
                _predict(model_folder, list(checkpoints), missing, order, output)
    labels = {
        name: value for name, value in old_model.dataset_json["labels"].items() if name != "ignore"
    }
    return TeacherModel(output, labels, ending)


def _check(model: Path, old_model: OldModel) -> None:
    if old_model.needs_first_stage:
        raise LabelSetError(
            f"{model}: {old_model.configuration} needs the predictions of its first stage: "
            "give a model without cascade"
        )
    if "background" not in old_model.outputs:
        raise LabelSetError(f"{model}: has regions: only models of labels can teach")


def channel_order(model: Sequence[str], dataset: Sequence[str], where: str) -> list[int]:
    """Return which channels of the data set the model sees, by name."""
    if model != dataset and set(model) <= set(dataset):
        return [dataset.index(name) for name in model]
    if len(model) > len(dataset):
        raise LabelSetError(
            f"{where}: needs the channels {some(model)}, the data set has {some(dataset)}"
        )
    check_channels(model, dataset)
    return list(range(len(model)))


def _fingerprint(folder: Path, checkpoints: Any) -> str:
    """Return a name that changes with the model."""
    digest = hashlib.sha256(read_bytes(folder / names.PLANS))
    for file in sorted(checkpoints):
        digest.update(read_bytes(file))
    return digest.hexdigest()[:16]


def _is_readable(path: Path) -> bool:
    """Tell whether a prediction is there, and remove what a killed run has left of one."""
    if not path.is_file():
        return False
    try:
        read_voxels(path)
    except LabelSetError:
        path.unlink()
        return False
    return True


@contextmanager
def _explained(model: Path) -> Iterator[None]:
    """Name the model that nnU-Net cannot load, or with which it cannot read an image."""
    try:
        yield
    except LabelSetError:
        raise
    except Exception as error:  # nnU-Net and torch raise whatever they stumble over
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the model
        reason = (str(error).splitlines() or [""])[0]
        raise LabelSetError(
            f"{model}: nnU-Net cannot predict with it: {type(error).__name__}: {reason}"
        ) from error


def _predict(
    model: Path, folds: list[str], cases: Sequence[RawCase], order: Sequence[int], output: Path
) -> None:
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    os.environ[names.EXTERNAL_TRAINERS] = external_trainers()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    predictor = nnUNetPredictor(device=device, allow_tqdm=False)
    predictor.initialize_from_trained_model_folder(
        str(model), [fold if fold == "all" else int(fold) for fold in folds]
    )
    output.mkdir(parents=True, exist_ok=True)
    images = [[str(case.images[channel]) for channel in order] for case in cases]
    for case, files in zip(cases, images, strict=True):
        if not all(map(os.path.isfile, files)):
            raise LabelSetError(f"case '{case.name}': an image is missing: {some(files)}")
    predictor.predict_from_files_sequential(
        images, [str(output / case.name) for case in cases], overwrite=True
    )
