"""Where nnU-Net keeps its data sets: found, or explained."""

from __future__ import annotations

import os
from pathlib import Path

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.names import DATASET, PREPROCESSED, RAW, VARIABLES, dataset_name


def nnunet_folder(variable: str) -> Path:
    """The folder that one of nnU-Net's environment variables names (`nnUNet_raw`, ...)."""
    folder = os.environ.get(variable)
    if not folder:
        raise LabelSetError(
            f"{variable} is not set: export {variable}=/your/folder, as nnU-Net needs it"
        )
    return Path(folder)


def find_dataset(dataset: str | int, variable: str = RAW) -> Path:
    """The folder of a data set, given as id (`27`), name (`Dataset027_Name`) or path.

    `variable` is nnU-Net's name of the folder to look in, one of `names.VARIABLES`.
    """
    dataset = str(dataset)
    if dataset.isdigit():
        return _the_one_folder(variable, dataset, dataset_name(int(dataset), "*"))
    if (Path(dataset) / DATASET).is_file():
        return Path(dataset)
    if not dataset.startswith("Dataset") or os.sep in dataset:
        raise LabelSetError(
            f"{dataset}: not a data set: expected an id, a name DatasetXXX_Name or its folder"
        )
    return _the_one_folder(variable, dataset, dataset)


def _the_one_folder(variable: str, dataset: str, pattern: str) -> Path:
    root = nnunet_folder(variable)
    folders = sorted(path for path in root.glob(pattern) if path.is_dir())
    if not folders:
        raise LabelSetError(f"{root}: no data set {dataset} (looked for {pattern})")
    if len(folders) > 1:
        names = ", ".join(path.name for path in folders)
        raise LabelSetError(f"{root}: several data sets have id {dataset}: {names}")
    return folders[0]


def check_free(number: int, begun: str = "") -> None:
    """Fail if a data set of this id has left something in one of nnU-Net's folders, which would be
    taken for new.

    begun: name of a data set that may stand in the preprocessed folder, because a run that writes
        it was ended.
    """
    for variable in VARIABLES:
        for taken in sorted(nnunet_folder(variable).glob(dataset_name(number, "*"))):
            if variable != PREPROCESSED or taken.name != begun:
                raise LabelSetError(
                    f"{taken} exists: remove it, or choose another id than {number}"
                )


def preprocessed_copy(folder: Path) -> Path | None:
    """nnU-Net's copy of dataset.json, from which trainers read, if the data set was planned
    already.
    """
    root = os.environ.get(PREPROCESSED)
    copy = Path(root, folder.resolve().name, DATASET) if root else None
    return copy if copy is not None and copy.is_file() else None
