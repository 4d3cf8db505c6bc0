"""The files of an nnU-Net raw data set, in its folders or listed in place by `dataset.json`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import case_files, read_json
from nnunet_labelset.nnunet.names import (
    CHANNELS,
    CONVERT_DECATHLON,
    CONVERT_VERSION_1,
    DATASET,
    FILE_ENDING,
    FIRST_CHANNEL,
    IMAGES_TRAINING,
    LISTED,
    NUM_TRAINING,
)

TRAINING, TEST = "training", "test"
DEFAULT_ENDING = ".nii.gz"  # of the data sets that we write
INCOMPLETE = (
    ".nnunet_labelset_incomplete"  # lies in a data set while `convert` or `merge` is writing it
)
# What nnU-Net reads when it predicts, and what tells people about the data; all else in these files
# stays behind.
DATASET_KEYS = (
    CHANNELS,
    FILE_ENDING,
    "labels",
    "regions_class_order",
    "overwrite_image_reader_writer",
)
DATASET_TEXTS = (
    NUM_TRAINING,
    "name",
    "description",
    "reference",
    "licence",
    "license",
    "release",
)
BEFORE_ANNOTATE = "before_annotate"  # what `annotate` has replaced, a folder for every step


@dataclass(frozen=True)
class RawCase:
    """One case: its images by channel, its label map (which may not exist) and, if the data set
    keeps one, its mask.
    """

    name: str
    part: str
    images: tuple[Path, ...]
    label: Path | None
    mask: Path | None = None


def label_maps_replaced(folder: Path) -> bool:
    """Tell whether `annotate` has written new label maps, which nnU-Net must preprocess again."""
    return any((folder / BEFORE_ANNOTATE).glob("step_*/labels*"))


def file_ending(dataset_json: Mapping[str, Any]) -> str:
    ending = dataset_json.get(FILE_ENDING)
    if not isinstance(ending, str) or not ending:
        raise LabelSetError(
            f"Expected 'file_ending' in dataset.json to be such as '.nii.gz', but got {ending!r}"
        )
    return ending


def channel_names(dataset_json: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the channels, in their order."""
    channels = dataset_json.get(CHANNELS)
    if (
        not isinstance(channels, Mapping)
        or not channels
        or not all(str(key).isdigit() for key in channels)
    ):
        raise LabelSetError(
            f"Expected 'channel_names' in dataset.json to be as {{'0': 'CT'}}, but got {channels!r}"
        )
    return tuple(str(channels[key]) for key in sorted(channels, key=int))


def why_values_come_first(folder: Path, dataset_json: Mapping[str, Any]) -> str:
    """Say what to do about `labels` that name values, `{"1": "liver"}`, instead of labels."""
    if CHANNELS in dataset_json:
        return '\'labels\' has values before names: write {"background": 0, "liver": 1}'
    if any((folder / IMAGES_TRAINING).glob(f"*{FIRST_CHANNEL}.nii.gz")):
        return (
            f"this is a data set of nnU-Net v1: convert it first: {CONVERT_VERSION_1} {folder} "
            "DatasetXXX_NAME"
        )
    return (
        "this looks like a data set of the Medical Segmentation Decathlon: convert it first: "
        f"{CONVERT_DECATHLON} -i {folder}"
    )


def without_cases(dataset_json: dict[str, Any]) -> dict[str, Any]:
    """Return dataset.json without case names."""
    kept = {key: dataset_json[key] for key in DATASET_KEYS if key in dataset_json}
    texts = {key: dataset_json.get(key) for key in DATASET_TEXTS}
    kept |= {key: text for key, text in texts.items() if isinstance(text, str | int | float)}
    if BLOCK not in dataset_json:
        return kept
    contract = Contract.from_dataset_json(dataset_json)
    return {**kept, BLOCK: _without_case_names(contract).to_block()}


def _without_case_names(contract: Contract) -> Contract:
    """Return the protocols alone; one of a single case, whose name it may have, gets a number."""
    numbered = (f"protocol_{number}" for number in count(1))
    free_names = (name for name in numbered if name not in contract.protocols)
    protocols = {}
    for name, protocol in contract.protocols.items():
        protocols[next(free_names) if name in contract.cases else name] = protocol
    return replace(contract, protocols=protocols, cases={})


def read_dataset(folder: Path) -> tuple[dict[str, Any], Contract]:
    """dataset.json, and the contract in it; the error names the folder."""
    dataset_json = read_json(folder / DATASET)
    return dataset_json, Contract.from_dataset_json(dataset_json, folder)


def check_unchanged(folder: Path, dataset_json: Mapping[str, Any]) -> None:
    """Fail if the data set was declared anew since its dataset.json was read: label maps that were
    read meanwhile may be others than those that it explained.
    """
    if read_json(folder / DATASET) != dataset_json:
        raise LabelSetError(f"{folder / DATASET} has changed while it was being read: run again")


def raw_cases(folder: str | Path, dataset_json: Mapping[str, Any]) -> list[RawCase]:
    """Training and test cases of a raw data set, sorted by name, training first.

    Training cases are found as nnU-Net finds them: the key `dataset` of `dataset.json` if it is
    there, else imagesTr. A test case needs an image or a label map. Nothing is read, so files that
    are listed may be missing.
    """
    folder = Path(folder)
    ending = file_ending(dataset_json)
    listed = dataset_json.get(LISTED)
    if listed is None:
        training = _folder_cases(folder, ending, "Tr", TRAINING)
    elif not isinstance(listed, Mapping):
        raise LabelSetError(
            f"Expected 'dataset' in dataset.json to be an object of cases, but got {listed!r}"
        )
    else:
        training = [
            _listed_case(folder, str(name), entry) for name, entry in sorted(listed.items())
        ]
    return training + _folder_cases(folder, ending, "Ts", TEST)


def training_cases(folder: Path, dataset_json: Mapping[str, Any]) -> list[str]:
    """Their names; none is an error."""
    names = [case.name for case in raw_cases(folder, dataset_json) if case.part == TRAINING]
    if not names:
        raise LabelSetError(f"{folder}: no training cases: expected images in {IMAGES_TRAINING}")
    return names


def image_files(folder: str | Path, ending: str) -> tuple[dict[str, list[Path]], list[Path]]:
    """Images `{case}_{channel}{ending}` by case, and the files of that ending that are not named
    so.
    """
    images: dict[str, list[Path]] = {}
    strays = []
    for stem, path in case_files(folder, ending).items():
        if re.fullmatch(r".+_\d{4}", stem):
            images.setdefault(stem[:-5], []).append(path)
        else:
            strays.append(path)
    return images, strays


def _folder_cases(folder: Path, ending: str, suffix: str, part: str) -> list[RawCase]:
    images, _ = image_files(folder / f"images{suffix}", ending)
    labels = case_files(folder / f"labels{suffix}", ending)
    masks = case_files(folder / f"masks{suffix}", ending)
    if part == TRAINING:  # each should have a label map
        labels = {
            name: labels.get(name, folder / f"labels{suffix}" / f"{name}{ending}")
            for name in images
        }
    names = sorted({*images, *labels})
    return [
        RawCase(name, part, tuple(images.get(name, ())), labels.get(name), masks.get(name))
        for name in names
    ]


def _listed_case(folder: Path, name: str, entry: Any) -> RawCase:
    images, label = (
        (entry.get("images"), entry.get("label")) if isinstance(entry, Mapping) else ((), "")
    )
    if (
        not isinstance(images, list)
        or not images
        or not all(isinstance(text, str) for text in (*images, label))
    ):
        raise LabelSetError(
            f"dataset.json, dataset.{name}: expected 'images' (a list of files) and 'label' (a "
            "file)"
        )
    *images, label = (folder / os.path.expandvars(text) for text in (*images, label))
    return RawCase(name, TRAINING, tuple(images), label)
