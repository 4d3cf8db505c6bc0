"""Segmentations as 3D Slicer saves them: a header with segments, layers in front, cropped."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def write_segmentation(
    path: Path,
    segments: Mapping[str, np.ndarray],
    spacing: Sequence[float] = (0.8, 0.8, 0.9),
    origin: Sequence[float] = (-3.0, 4.0, 5.5),
    old: bool = False,
) -> Path:
    """Write boolean arrays (z, y, x), cropped to what was drawn; those that overlap get layers.

    `old` files, of Slicer before 4.11, have one layer per segment and no values.
    """
    layers: list[np.ndarray] = []
    lines = []
    for number, (name, inside) in enumerate(segments.items()):
        layer = 0
        while not old and layer < len(layers) and layers[layer][inside].any():
            layer += 1
        if old or layer == len(layers):
            layer = len(layers)
            layers.append(np.zeros(inside.shape, np.uint8))
        layers[layer][inside] = 1 if old else number + 1
        lines += [f"Segment{number}_ID:=Segment_{number}", f"Segment{number}_Name:={name}"]
        if not old:
            lines += [
                f"Segment{number}_LabelValue:={number + 1}",
                f"Segment{number}_Layer:={layer}",
            ]
    array = np.stack(layers, axis=-1)
    drawn = np.argwhere(array.any(axis=-1))
    low, high = drawn.min(axis=0), drawn.max(axis=0) + 1
    array = array[tuple(slice(a, b) for a, b in zip(low, high, strict=True))]
    corner = np.add(origin, low[::-1] * np.array(spacing))
    several = array.shape[-1] > 1
    x, y, z = spacing
    header = [
        "NRRD0004",
        "type: unsigned char",
        f"dimension: {4 if several else 3}",
        "space: left-posterior-superior",
        "sizes: " + " ".join(map(str, array.shape[::-1] if several else array.shape[-2::-1])),
        f"space directions: {'none ' if several else ''}({x},0,0) (0,{y},0) (0,0,{z})",
        f"kinds: {'list ' if several else ''}domain domain domain",
        "encoding: gzip",
        f"space origin: ({corner[0]},{corner[1]},{corner[2]})",
        *lines,
        f"Segmentation_ReferenceImageExtentOffset:={low[2]} {low[1]} {low[0]}",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(("\n".join(header) + "\n\n").encode() + gzip.compress(array.tobytes()))
    return path
