"""A trained model: its folder, nnU-Net's reader of its data set, and the folds that it was trained
with.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.folders import find_dataset


def find_model(dataset: str, trainer: str, plans: str, configuration: str) -> Path:
    """The folder of a model in `nnUNet_results`; if it is not there, the message names those that
    are.
    """
    results = find_dataset(dataset, names.RESULTS)
    folder = results / names.model_name(trainer, plans, configuration)
    if not folder.is_dir():
        known = sorted(path.name for path in results.glob(names.model_name("*", "*", "*")))
        raise LabelSetError(f"{results}: no model {folder.name}{did_you_mean(folder.name, known)}")
    return folder


def trained_folds(checkpoints: Iterable[Path]) -> dict[str, Path]:
    """The last checkpoints of a model by fold."""
    found = sorted(path for path in checkpoints if path.name == names.FINAL_CHECKPOINT)
    return {path.parent.name.removeprefix(names.fold_name("")): path for path in found}


def trained_networks(dataset_name: str) -> list[str]:
    """Return the networks of a data set that have a checkpoint, as `MODEL fold N`."""
    root = os.environ.get(names.RESULTS)
    if not root:
        return []
    pattern = f"{names.model_name('*', '*', '*')}/{names.fold_name('*')}/checkpoint_*.pth"
    folds = {path.parent for path in Path(root, dataset_name).glob(pattern)}
    return sorted(f"{fold.parent.name} {fold.name.replace('_', ' ')}" for fold in folds)


def reader_of(model: Path) -> Any:
    """nnU-Net's reader and writer of the data set that the model was trained on."""
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    plans = read_json(model / names.PLANS)
    try:
        return PlansManager(plans).image_reader_writer_class()
    except (KeyError, TypeError, RuntimeError):
        name = plans.get("image_reader_writer")
        raise LabelSetError(
            f"{model / names.PLANS}: 'image_reader_writer' names no reader of nnU-Net: {name!r}"
        ) from None


def held_out(splits: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the fold that validates each case and does not train on it."""
    folds: dict[str, int] = {}
    for fold, split in enumerate(splits):
        trained = set(split[names.TRAINED])
        folds |= {case: fold for case in split[names.VALIDATED] if case not in trained}
    return folds


def read_splits(dataset: str) -> list[dict[str, list[str]]]:
    """The folds of a preprocessed data set."""
    file = find_dataset(dataset, names.PREPROCESSED) / names.SPLITS
    if not file.is_file():
        raise LabelSetError(
            f"{file}: no such file: train a fold first, or run 'nnunet_labelset splits'"
        )
    splits = read_json(file, list)
    if not splits or not all(map(_is_fold, splits)):
        raise LabelSetError(
            f"{file}: expected a list of folds, each with the cases of '{names.TRAINED}' and "
            f"'{names.VALIDATED}'"
        )
    return splits


def _is_fold(split: Any) -> bool:
    if not isinstance(split, dict):
        return False
    parts = [split.get(names.TRAINED), split.get(names.VALIDATED)]
    return all(isinstance(part, list) and all(map(_is_text, part)) for part in parts)


def _is_text(value: object) -> bool:
    return isinstance(value, str)
