"""Names and colours of labels for viewers: ITK-SNAP (label descriptions) and 3D Slicer (.ctbl)."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, IGNORE, Contract
from nnunet_labelset.io.files import write_text

ITK_SNAP = "labels_itksnap.txt"
SLICER = "labels_slicer.ctbl"
GOLDEN = 0.618034  # neighbouring values get hues far apart


def write_label_colours(folder: Path, dataset_json: Mapping[str, Any]) -> None:
    """Write both files for the values of the segmentations of a data set or model."""
    names = label_names(dataset_json)
    write_text(folder / ITK_SNAP, itk_snap_text(names))
    write_text(folder / SLICER, slicer_text(names))


def label_names(dataset_json: Mapping[str, Any]) -> dict[int, str]:
    """Return the name of every value of a segmentation, but for background and `ignore`."""
    if BLOCK in dataset_json:
        leaves = Contract.from_dataset_json(dict(dataset_json)).leaf_names
        return dict(list(enumerate(leaves))[1:])
    order = dataset_json.get("regions_class_order")
    labels = {name: value for name, value in dataset_json["labels"].items() if name != IGNORE}
    if order:  # a region writes the value at its place
        foreground = [name for name, value in labels.items() if value not in (0, [0])]
        return dict(sorted(zip(order, foreground, strict=True)))
    return {int(value): name for name, value in sorted(labels.items(), key=lambda i: i[1]) if value}


def itk_snap_text(names: Mapping[int, str]) -> str:
    """Return a label description file: value, red, green, blue, opacity, visible, mesh, name."""
    lines = ["# ITK-SnAP Label Description File", '0 0 0 0 0 0 0 "Clear Label"']
    for value, name in names.items():
        red, green, blue = _colour(value)
        lines.append(f'{value} {red} {green} {blue} 1 1 1 "{name.replace(chr(34), chr(39))}"')
    return "\n".join(lines) + "\n"


def slicer_text(names: Mapping[int, str]) -> str:
    """Return a color table: value, name without blanks, red, green, blue, opacity."""
    lines = ["# Color table file", "0 background 0 0 0 0"]
    for value, name in names.items():
        red, green, blue = _colour(value)
        lines.append(f"{value} {'_'.join(name.split())} {red} {green} {blue} 255")
    return "\n".join(lines) + "\n"


def _colour(value: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(value * GOLDEN % 1, 0.75, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)
