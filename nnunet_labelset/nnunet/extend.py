"""`nnunet_labelset extend`: the start of a training in which a trained model learns more
structures.

The network is the old model's, so that its plans move to the new data set. Only the output layers
have other rows: the labels that the model knows keep theirs, by name, and a new one begins as an
unlikely copy of the background: at the first step the network says what the old one said.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import check_name, new_file, read_json, write_json
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER
from nnunet_labelset.nnunet.folders import find_dataset, nnunet_folder
from nnunet_labelset.nnunet.models import trained_folds
from nnunet_labelset.nnunet.names import (
    DATASET,
    PLANS,
    PREPROCESSED,
    RAW,
    dataset_words,
    fold_name,
    model_words,
)
from nnunet_labelset.nnunet.raw import channel_names, raw_cases, read_dataset
from nnunet_labelset.nnunet.recommendation import (
    TEACHER_TRAINER,
    next_commands_with_plans,
    recommended_trainer,
)

OUTPUTS = "output_names"  # in a start file: the name of every row of the output layers
NEW_OUTPUTS = "new_names"  # those of them that the old model did not know
OUTPUT_LAYERS = ".seg_layers."  # nnU-Net's, in the names of the weights
# The logit of a new label against that of background, or of a new region, which has no background:
# low enough that the first prediction is the old one, and high enough that Dice, whose gradient
# goes with the probability, finds the label.
UNLIKELY = -2.0


def extend(
    model: Path, dataset: str, plans_name: str | None = None, fold: str | None = None
) -> None:
    """Write the plans and the first weights into the preprocessed data set, and print what to type
    next.
    """
    raw = find_dataset(dataset)
    dataset_json, contract = read_dataset(raw)
    new = tuple(contract.regions) if contract.regions is not None else contract.leaf_names
    with _opened(model, fold) as (folder, checkpoint_file):
        plans, old_json = read_json(folder / PLANS), read_json(folder / DATASET)
        if folder.name.count("__") != 2 or not {
            "plans_name",
            "dataset_name",
            "configurations",
        } <= set(plans):
            raise LabelSetError(
                f"{model}: no model: expected a folder TRAINER__PLANS__CONFIGURATION, or its zip"
            )
        _, _, configuration = model_words(folder)
        old = output_names(old_json)
        _check(plans, configuration, old_json, old, dataset_json, contract, new)
        weights = _new_weights(checkpoint_file, old, new, contract.regions is not None)
    words = dataset_words(raw.name)
    if words is None:
        raise LabelSetError(f"{raw}: expected a folder DatasetXXX_Name in {RAW}")
    target = nnunet_folder(PREPROCESSED) / raw.name
    name = check_name(
        plans_name or f"{plans['plans_name']}_of_{plans['dataset_name']}".replace("__", "_"),
        "plans",
    )
    if "__" in name:
        raise LabelSetError(
            f"plans '{name}': nnU-Net tells trainer, plans and configuration apart by '__': use '_'"
        )
    start = target / f"start_{name}_{configuration}.pth"
    for file in (target / f"{name}.json", start):
        if file.exists():
            raise LabelSetError(
                f"{file}: exists already: remove it, or choose another name with -p"
            )
    moved = _moved(plans, name, raw, dataset_json)
    added = [label for label in new if label not in old]
    import torch

    with new_file(
        start
    ) as temporary:  # the large file first: should the disk be full, nothing is there
        torch.save({"network_weights": weights, OUTPUTS: list(new), NEW_OUTPUTS: added}, temporary)
    write_json(target / f"{name}.json", moved)
    write_json(target / DATASET, dataset_json)
    number = words[0]  # nnU-Net's commands take no name here
    commands = next_commands_with_plans(number, name, configuration, _trainer(contract, old, new))
    print(
        "\n".join(
            [
                f"{start}: {len(old)} outputs of the old model, new: {some(added, 20) or 'none'}. Next:",
                *commands,
            ]
        ),
        f"-pretrained_weights {start}",
    )


def _trainer(contract: Contract, old: Sequence[str], new: Sequence[str]) -> str:
    """The old model teaches where a case does not annotate all that it knows; regions have no
    teacher.
    """
    trainer = recommended_trainer(new)
    if contract.regions is not None:
        return trainer
    known = {contract.leaf_names.index(label) for label in old}
    complete = all(
        known <= contract.protocols[protocol].annotated for protocol in set(contract.cases.values())
    )
    return trainer if complete else trainer.replace(DEFAULT_TRAINER, TEACHER_TRAINER)


def output_names(dataset_json: Mapping[str, Any]) -> tuple[str, ...]:
    """The label of every output of a network, in nnU-Net's order: by value, or of regions as they
    are listed.
    """
    labels = {
        name: value for name, value in dataset_json.get("labels", {}).items() if name != "ignore"
    }
    if any(isinstance(value, (list, tuple)) and len(value) > 1 for value in labels.values()):
        return tuple(name for name in labels if name != "background")
    return tuple(
        sorted(
            labels,
            key=lambda name: int(
                labels[name][0] if isinstance(labels[name], list) else labels[name]
            ),
        )
    )


@contextmanager
def _opened(model: Path, fold: str | None) -> Iterator[tuple[Path, Path]]:
    """The folder of a model and one of its checkpoints; of a zip, only these files are unpacked."""
    if not model.is_file():
        if not (model / PLANS).is_file():
            raise LabelSetError(
                f"{model}: no model: expected a folder TRAINER__PLANS__CONFIGURATION, or its zip"
            )
        yield model, _checkpoint(model, model.glob(f"{fold_name('*')}/*"), fold)
        return
    with tempfile.TemporaryDirectory(prefix="labelset_extend_") as scratch:
        try:
            with zipfile.ZipFile(model) as archive:
                names = [name for name in archive.namelist() if ".." not in Path(name).parts]
                folders = [Path(name).parent for name in names if Path(name).name == PLANS]
                models = [
                    path for path in folders if path.name.count("__") == 2
                ]  # others belong to postprocessing
                if len(models) != 1:
                    found = some(path.name for path in models) or "none"
                    raise LabelSetError(
                        f"{model}: expected one model in the zip, but got {found}: unzip it, give its folder"
                    )
                files = [Path(name) for name in names if Path(name).parent.parent == models[0]]
                chosen = _checkpoint(model, files, fold)
                for path in (models[0] / PLANS, models[0] / DATASET, chosen):
                    archive.extract(path.as_posix(), scratch)
        except (zipfile.BadZipFile, KeyError, EOFError) as error:
            raise LabelSetError(f"{model}: not a zip that nnU-Net exported: {error}") from None
        yield Path(scratch) / models[0], Path(scratch) / chosen


def _checkpoint(model: Path, files: Iterable[Path], fold: str | None) -> Path:
    folds = trained_folds(files)
    if not folds or (fold is not None and fold not in folds):
        raise LabelSetError(
            f"{model}: fold {fold or '0'} is not trained to its end; trained: {some(folds) or 'none'}"
        )
    return folds[fold if fold is not None else "all" if "all" in folds else min(folds)]


def _check(
    plans: Mapping[str, Any],
    configuration: str,
    old_json: Mapping[str, Any],
    old: Sequence[str],
    dataset_json: Mapping[str, Any],
    contract: Contract,
    new: Sequence[str],
) -> None:
    """What would make another network of it, or lose what it knows, is one line."""
    if plans["configurations"].get(configuration, {}).get("previous_stage"):
        raise LabelSetError(
            f"{configuration} sees the labels of its first stage as images: extend the first stage"
        )
    if ("background" not in old) != (contract.regions is not None):
        raise LabelSetError(
            "one of model and data set has regions, the other has labels: an output means another thing"
        )
    channels = [list(channel_names(json)) for json in (old_json, dataset_json)]
    are_ct = [
        [name.casefold() == "ct" for name in names] for names in channels
    ]  # nnU-Net normalises it differently
    if are_ct[0] != are_ct[1] or (
        channels[0] != channels[1] and sorted(channels[0]) == sorted(channels[1])
    ):
        raise LabelSetError(
            f"the model was trained on the channels {channels[0]}, the data set has {channels[1]}"
        )
    if channels[0] != channels[1]:
        print(
            f"WARNING: channels {channels[0]} of the model are {channels[1]} here; they are normalised as before"
        )
    common = [label for label in new if label in old and label != "background"]
    if not common:
        raise LabelSetError(
            f"no label in common: the model knows {some(old, 20)}, the data set has {some(new, 20)}"
        )
    lost = [label for label in old if label not in new]
    if lost:
        hint = did_you_mean(lost[0], [label for label in new if label not in old])
        raise LabelSetError(f"the model knows '{lost[0]}', which is no label of the data set{hint}")


def _new_weights(
    file: Path, old: Sequence[str], new: Sequence[str], regions: bool
) -> dict[str, Any]:
    """The weights of the old network, with the rows of the new output layers."""
    import torch

    try:
        weights = torch.load(file, map_location="cpu", weights_only=False)["network_weights"]
    except Exception as error:  # torch raises many kinds for a file that is not whole
        said = (str(error).splitlines() or [""])[0]
        raise LabelSetError(f"{file.name}: not readable as a checkpoint: {said}") from None
    layers = [key for key in weights if OUTPUT_LAYERS in key]
    if not layers:
        raise LabelSetError(
            f"the network of the model has no layers '{OUTPUT_LAYERS.strip('.')}': not a U-Net of nnU-Net"
        )
    for key in layers:
        before = weights[key]
        if len(before) != len(old):
            raise LabelSetError(
                f"{key} has {len(before)} rows, but the dataset.json of the model {len(old)} labels"
            )
        unknown = torch.zeros_like(before[0]) if regions else before[0]
        unknown = unknown + UNLIKELY if before.ndim == 1 else unknown  # the bias
        rows = [before[old.index(label)] if label in old else unknown for label in new]
        weights[key] = torch.stack(rows)
    return weights


def _moved(
    plans: dict[str, Any], name: str, raw: Path, dataset_json: Mapping[str, Any]
) -> dict[str, Any]:
    """The plans as `nnUNetv2_move_plans_between_datasets` wants them in the other data set."""
    from nnunetv2.imageio.reader_writer_registry import determine_reader_writer_from_dataset_json

    cases = raw_cases(raw, dataset_json)
    if not cases or not cases[0].images:
        raise LabelSetError(f"{raw}: no training images")
    reader = determine_reader_writer_from_dataset_json(
        dict(dataset_json), str(cases[0].images[0]), True, verbose=False
    )
    for planned in plans["configurations"].values():
        if "data_identifier" in planned:
            words = planned["data_identifier"].removeprefix(plans["plans_name"]).lstrip("_")
            planned["data_identifier"] = f"{name}_{words}"
    return {
        **plans,
        "dataset_name": raw.name,
        "plans_name": name,
        "image_reader_writer": reader.__name__,
    }
