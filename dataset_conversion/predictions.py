"""Folders of predictions, whoever made them: one label map per case, or one mask per label.

FOLDER/case.nii.gz              values are the labels
FOLDER/case/liver.nii.gz ...    a mask for each label, as TotalSegmentator writes them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.dataset_conversion.statements import NONE, Answer
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import case_files
from nnunet_labelset.io.place import Place, geometry_difference
from nnunet_labelset.io.tables import read_table
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import count_values, integer_array, read_voxels

PREDICTION = "prediction"  # columns of the table of labels
LABEL = "label"


@dataclass(frozen=True)
class Predictions:
    """A folder, and the leaf that each value or mask in it stands for; `NONE` for none of ours."""

    name: str  # of the model, or of the folder
    folder: Path
    leaves: Mapping[str, int]
    ending: str
    table: Path  # where `leaves` were read, for messages

    @property
    def known(self) -> LabelSet:
        return frozenset(self.leaves.values()) - {NONE}

    def has_case(self, case: str) -> bool:
        return self._label_map(case).is_file() or (self.folder / case).is_dir()

    def read(self, case: str, place: Place) -> Reading:
        """Return the answers for a case, on the grid of its image."""
        if self._label_map(case).is_file():
            return self._read_label_map(self._label_map(case), place)
        return self._read_masks(self.folder / case, place)

    def _label_map(self, case: str) -> Path:
        return self.folder / f"{case}{self.ending}"

    def _read_label_map(self, path: Path, place: Place) -> Reading:
        values = _read_on_grid(path, place)
        present = list(count_values(values))
        if min(present) < 0:
            raise LabelSetError(f"{path}: value {min(present)} is negative: not a label map")
        leaf_of_value = np.zeros(max(present) + 1, np.int64)
        for value in present:
            leaf_of_value[value] = self.leaves.get(str(value), NONE)
        unknown = [value for value in present if value and str(value) not in self.leaves]
        answer = Answer(leaf_of_value[values], self.known)
        return Reading([answer], tuple(map(str, unknown)))

    def _read_masks(self, folder: Path, place: Place) -> Reading:
        layers = [np.zeros(place.size[::-1], np.int64)]
        for name, leaf in self.leaves.items():
            if leaf == NONE:
                continue
            mask = _read_mask(folder / f"{name}{self.ending}", place)
            _paint(layers, mask, leaf)
        # Only the first layer denies: a label that lies in a lower layer is seen there.
        answers = [Answer(layers[0], self.known)]
        answers += [Answer(layer, frozenset()) for layer in layers[1:]]
        unknown = case_files(folder, self.ending).keys() - self.leaves.keys()
        return Reading(answers, tuple(sorted(unknown)))


@dataclass(frozen=True)
class Reading:
    """What a folder says about a case, and the values or masks that its table does not list."""

    answers: list[Answer]
    unknown: tuple[str, ...]

    @property
    def seen(self) -> LabelSet:
        """The leaves that occur."""
        values = (np.unique(answer.leaf_map).tolist() for answer in self.answers)
        return frozenset().union(*values) - {NONE}


def _read_on_grid(path: Path, place: Place) -> np.ndarray:
    array, own_place = read_voxels(path)
    difference = geometry_difference(place, own_place)
    if difference is not None:
        raise LabelSetError(
            f"{path}: not on the grid of its image ({difference}): resample it to the image"
        )
    return integer_array(array, path, allow_nan=False)


def _read_mask(path: Path, place: Place) -> np.ndarray:
    values = _read_on_grid(path, place)
    present = [value for value in count_values(values) if value]
    if len(present) > 1:
        raise LabelSetError(
            f"{path}: expected a mask with one value beside 0, but got {some(present)}"
        )
    return values != 0


def _paint(layers: list[np.ndarray], mask: np.ndarray, leaf: int) -> None:
    """Write a leaf into the first layer that is free; masks that overlap need several."""
    for layer in layers:
        is_free = layer == NONE
        mask_here = mask & (is_free | (layer == leaf))
        layer[mask_here] = leaf
        mask = mask & ~mask_here
        if not mask.any():
            return
    layers.append(np.where(mask, leaf, NONE))


def read_label_table(path: Path, leaf_names: Sequence[str]) -> dict[str, int]:
    """Return the leaf of every value or mask that a table lists (columns `prediction`, `label`)."""
    leaves: dict[str, int] = {}
    for row in read_table(path):
        missing = [column for column in (PREDICTION, LABEL) if column not in row]
        if missing:
            raise LabelSetError(
                f"{path}: no column '{missing[0]}': expected the columns '{PREDICTION}' (a value, "
                f"or the name of a mask) and '{LABEL}' (a label of the data set)"
            )
        prediction, label = row[PREDICTION], row[LABEL]
        if label not in leaf_names:
            raise LabelSetError(
                f"{row.where}: '{label}' is no label of the data set"
                f"{did_you_mean(label, leaf_names)}"
            )
        leaf = leaf_names.index(label)
        if leaves.setdefault(prediction, leaf) != leaf:
            raise LabelSetError(f"{row.where}: '{prediction}' is listed with two labels")
    if not set(leaves.values()) - {NONE}:
        raise LabelSetError(f"{path}: no label but background: nothing to learn from it")
    return leaves


def predictions_of_folder(
    folder: Path, table: Path, leaf_names: Sequence[str], ending: str, cases: Sequence[str]
) -> Predictions:
    """Return a folder of predictions, after checking that it fits the table and the cases."""
    if not folder.is_dir():
        raise LabelSetError(f"--from {folder}: no such folder")
    leaves = read_label_table(table, leaf_names)
    predictions = Predictions(
        name=folder.resolve().name,
        folder=folder,
        leaves=_without_ending(leaves, ending),
        ending=ending,
        table=table,
    )
    for problem in _problems(predictions, cases):
        raise LabelSetError(problem)
    return predictions


def _without_ending(leaves: Mapping[str, int], ending: str) -> dict[str, int]:
    return {name.removesuffix(ending): leaf for name, leaf in leaves.items()}


def _problems(predictions: Predictions, cases: Sequence[str]) -> Iterator[str]:
    present = [case for case in cases if predictions.has_case(case)]
    if not present:
        yield (
            f"--from {predictions.folder}: no prediction of any case: expected "
            f"{some([f'{case}{predictions.ending}' for case in cases], 2)} or folders of masks"
        )
    for case in present:
        if (predictions.folder / case).is_dir():
            yield from _missing_masks(predictions, predictions.folder / case)
        else:
            yield from _names_of_masks(predictions)


def _missing_masks(predictions: Predictions, folder: Path) -> Iterator[str]:
    masks = case_files(folder, predictions.ending)
    for name, leaf in predictions.leaves.items():
        if leaf != NONE and name not in masks:
            yield (
                f"{folder}: no {name}{predictions.ending}, which {predictions.table} lists"
                f"{did_you_mean(name, masks)}"
            )


def _names_of_masks(predictions: Predictions) -> Iterator[str]:
    for name in predictions.leaves:
        if not name.isdigit() or name != str(int(name)):
            yield (
                f"{predictions.table}: '{name}': expected a value such as 7, as "
                f"{predictions.folder} has one label map per case"
            )
