"""A trained model as it was handed over: a folder TRAINER__PLANS__CONFIGURATION, or its zip."""

from __future__ import annotations

import pydoc
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.models import trained_folds
from nnunet_labelset.nnunet.names import DATASET, PLANS, fold_name, model_words

NO_MODEL = "no model: expected a folder TRAINER__PLANS__CONFIGURATION, or its zip"
# Weights hardly compress. A zip that grows far beyond its size would only fill the disk.
LARGEST_GROWTH = 100
# nnU-Net imports and calls whatever a plans file names, with arguments of the plans file.
NETWORK_LIBRARIES = ("torch.nn.", "dynamic_network_architectures.")
Checkpoints = dict[str, Path]  # by fold


@dataclass(frozen=True)
class OldModel:
    """What a model folder says about the network."""

    configuration: str
    plans: dict[str, Any]
    dataset_json: dict[str, Any]
    outputs: tuple[str, ...]

    @property
    def needs_first_stage(self) -> bool:
        """Tell whether the network sees the labels of a first stage, as in a cascade."""
        planned = self.plans["configurations"].get(self.configuration, {})
        return bool(planned.get("previous_stage"))

    @classmethod
    def read(cls, folder: Path, trust: bool = False) -> OldModel:
        """Read and check a model folder.

        trust: let plans name networks that are not nnU-Net's.
        """
        plans = read_json(folder / PLANS)
        expected = {"plans_name", "dataset_name", "configurations"}
        if folder.name.count("__") != 2 or not expected <= set(plans):
            raise LabelSetError(f"{folder}: {NO_MODEL}")
        _, _, configuration = model_words(folder)
        configurations = plans["configurations"]
        if not isinstance(configurations, dict) or configuration not in configurations:
            raise LabelSetError(f"{folder / PLANS}: no configuration '{configuration}'")
        if not trust:
            check_architectures(folder / PLANS, configurations)
        dataset_json = read_json(folder / DATASET)
        try:
            outputs = output_names(dataset_json)
        except LabelSetError as error:
            raise LabelSetError(f"{folder / DATASET}: {error}") from None
        return cls(configuration, plans, dataset_json, outputs)


def check_architectures(plans: Path, configurations: Mapping[str, Any]) -> None:
    """Fail if building a network of the plans would import or call anything but a network."""
    for configuration in configurations.values():
        for name in filter(None, _imported_names(configuration.get("architecture") or {})):
            if not _is_network(name):
                raise LabelSetError(
                    f"{plans}: the network would be built with {name!r}, which is no network of "
                    "nnU-Net: do not use it, or give --trust if you know who made it"
                )


def _imported_names(architecture: Mapping[str, Any]) -> Iterator[Any]:
    yield architecture.get("network_class_name")
    arguments = architecture.get("arch_kwargs") or {}
    for name in architecture.get("_kw_requires_import") or ():
        yield arguments.get(name)


def _is_network(name: object) -> bool:
    """Tell whether nnU-Net would find a network, or a layer of one, by a name in plans."""
    from torch import nn

    if not isinstance(name, str) or not name.startswith(NETWORK_LIBRARIES):
        return False
    try:
        located = pydoc.locate(name)
    except pydoc.ErrorDuringImport:
        return False
    # A class that has moved is searched by nnU-Net, among its own networks only.
    return located is None or (isinstance(located, type) and issubclass(located, nn.Module))


def output_names(dataset_json: Mapping[str, Any]) -> tuple[str, ...]:
    """The label of every output of a network, in nnU-Net's order: by value, or of regions as they
    are listed.
    """
    labels = dataset_json.get("labels", {})
    try:
        values = {
            name: [int(value) for value in (entry if isinstance(entry, list) else [entry])]
            for name, entry in labels.items()
            if name != "ignore"
        }
        if any(len(value) > 1 for value in values.values()):
            return tuple(name for name in values if name != "background")
        return tuple(sorted(values, key=lambda name: values[name][0]))
    except (AttributeError, IndexError, TypeError, ValueError):
        raise LabelSetError(f"'labels': expected names with numbers, but got {labels!r}") from None


@contextmanager
def opened_model(model: Path, fold: str | None = None) -> Iterator[tuple[Path, Checkpoints]]:
    """Yield the folder of a model and its checkpoints by fold, all of them or one.

    Of a zip, only these files are unpacked.
    """
    if model.is_file():
        with tempfile.TemporaryDirectory(prefix="labelset_extend_") as scratch:
            yield _unpack(model, fold, Path(scratch))
    elif (model / PLANS).is_file():
        yield model, _checkpoints(model, model.glob(f"{fold_name('*')}/*"), fold)
    else:
        raise LabelSetError(f"{model}: {NO_MODEL}")


def best_start(checkpoints: Checkpoints) -> Path:
    """Return the checkpoint that saw most cases."""
    return checkpoints["all" if "all" in checkpoints else min(checkpoints)]


def _unpack(model: Path, fold: str | None, scratch: Path) -> tuple[Path, Checkpoints]:
    """Unpack plans, dataset.json and checkpoints; return the model folder and the checkpoints."""
    try:
        with zipfile.ZipFile(model) as archive:
            names = [name for name in archive.namelist() if ".." not in Path(name).parts]
            folder = _model_in_zip(model, names)
            files = [Path(name) for name in names if Path(name).parent.parent == folder]
            checkpoints = _checkpoints(model, files, fold)
            needed = [folder / PLANS, folder / DATASET, *checkpoints.values()]
            chosen = [path.as_posix() for path in needed]
            _check_growth(model, archive, chosen)
            archive.extractall(scratch, chosen)
    # RuntimeError: encrypted, or a compression that Python does not know
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError) as error:
        raise LabelSetError(f"{model}: not a zip that nnU-Net exported: {error}") from None
    return scratch / folder, {name: scratch / path for name, path in checkpoints.items()}


def _model_in_zip(model: Path, names: Sequence[str]) -> Path:
    folders = [Path(name).parent for name in names if Path(name).name == PLANS]
    models = [path for path in folders if path.name.count("__") == 2]  # others: postprocessing
    if len(models) != 1:
        listed = some(path.name for path in models) or "none"
        raise LabelSetError(
            f"{model}: expected one model in the zip, but got {listed}: unzip it and give its "
            "folder"
        )
    return models[0]


def _check_growth(model: Path, archive: zipfile.ZipFile, names: Sequence[str]) -> None:
    size = sum(archive.getinfo(name).file_size for name in names)
    if size > LARGEST_GROWTH * model.stat().st_size:
        raise LabelSetError(
            f"{model}: would unpack to {size / 1e6:.0f} MB, more than {LARGEST_GROWTH} times its "
            "size: not a model; unzip it yourself if you trust it, and give its folder"
        )


def _checkpoints(model: Path, files: Iterable[Path], fold: str | None) -> Checkpoints:
    folds = trained_folds(files)
    if not folds or (fold is not None and fold not in folds):
        raise LabelSetError(
            f"{model}: fold {fold or '0'} is not trained to its end; trained: "
            f"{some(folds) or 'none'}"
        )
    return folds if fold is None else {fold: folds[fold]}
