"""What `annotate` writes, and how it takes it back: dataset.json, nnU-Net's copy of it and, with
masks, label maps.

New label maps come before the dataset.json that explains them, and go after it. Whoever is stopped
in between has values that dataset.json does not declare, which is an error everywhere; `--undo`
then puts all of it back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, IGNORE, Contract
from nnunet_labelset.datasets.annotate import BEFORE, Existing
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_bytes, read_json, reason, write_bytes, write_json
from nnunet_labelset.nnunet.folders import preprocessed_copy
from nnunet_labelset.nnunet.names import DATASET
from nnunet_labelset.nnunet.raw import OLD_LABEL_MAPS


def write_block(data: Existing, contract: Contract, new_maps: Mapping[Path, Path]) -> list[Path]:
    """Write the block into dataset.json and into nnU-Net's copy of it; returns the files. The old
    one is kept once.

    `new_maps` are label maps and the files that replace them. What nnU-Net has preprocessed is out
    of date then: its copy loses the block, so that no training starts before the data set is
    preprocessed again.
    """
    path = data.folder / DATASET
    new = {**data.dataset_json, BLOCK: contract.to_block()}
    if new_maps:
        new["labels"] = {**new["labels"], IGNORE: contract.num_leaves}
    Contract.from_dataset_json(new)  # what we write, we can read
    copy = _copy_of(data.folder, data.dataset_json)
    if not (data.folder / BEFORE).is_file():
        write_bytes(data.folder / BEFORE, read_bytes(path))
    try:
        for label_map, replacement in new_maps.items():
            _exchange(label_map, replacement)
    except OSError as error:
        _restore_label_maps(data.folder)
        raise LabelSetError(
            f"{error.filename}: cannot be replaced: {reason(error)}; nothing was changed"
        ) from None
    write_json(path, new)
    if copy is not None:
        write_json(copy, _with_block(read_json(copy), {} if new_maps else new))
    return [path, *([copy] if copy is not None and not new_maps else [])]


def undo(folder: Path) -> list[Path]:
    """Put the old dataset.json and label maps back, and take the block out of nnU-Net's copy;
    returns the files.
    """
    path, before = folder / DATASET, folder / BEFORE
    if not before.is_file():
        raise LabelSetError(
            f"{folder}: nothing to undo: annotate has not changed this data set (no {BEFORE})"
        )
    content, old = read_json(path), read_json(before)
    if any(folder.glob(f"labels*{OLD_LABEL_MAPS}")):
        content["labels"] = old["labels"]  # without the 'ignore' that --mask has declared
        copy = preprocessed_copy(folder)
        if copy is not None and read_json(copy).get("labels") != old["labels"]:
            copy = None  # preprocessed with the new label maps, and sound in itself
    else:
        copy = _copy_of(folder, content)
    if _with_block(content, {}) == _with_block(old, {}):
        write_bytes(path, read_bytes(before))
    else:  # somebody changed more since: that stays
        write_json(path, _with_block(content, old))
    if copy is not None:
        write_json(copy, _with_block(read_json(copy), old))
    label_maps = _restore_label_maps(folder)
    before.unlink()
    return [path, *([copy] if copy is not None else []), *label_maps]


def _with_block(content: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """With the block of `source`, or without any if it has none."""
    rest = {key: value for key, value in content.items() if key != BLOCK}
    return {**rest, BLOCK: source[BLOCK]} if BLOCK in source else rest


def _exchange(label_map: Path, replacement: Path) -> None:
    kept = label_map.parent.with_name(label_map.parent.name + OLD_LABEL_MAPS) / label_map.name
    kept.parent.mkdir(exist_ok=True)
    os.replace(label_map, kept)
    os.replace(replacement, label_map)


def _restore_label_maps(folder: Path) -> list[Path]:
    restored = []
    for kept in sorted(folder.glob(f"labels*{OLD_LABEL_MAPS}")):
        for file in sorted(kept.iterdir()):
            restored.append(kept.with_name(kept.name.removesuffix(OLD_LABEL_MAPS)) / file.name)
            os.replace(file, restored[-1])
            os.utime(
                restored[-1]
            )  # nnU-Net's preprocessing takes over what is newer than its own copy
        kept.rmdir()
    return restored


def _copy_of(folder: Path, dataset_json: Mapping[str, Any]) -> Path | None:
    copy = preprocessed_copy(folder)
    if copy is not None and read_json(copy).get("labels") != dataset_json.get("labels"):
        raise LabelSetError(
            f"{copy}: 'labels' differ from those of the raw data set: plan and preprocess again first"
        )
    return copy
