"""Segmentations of 3D Slicer (`.seg.nrrd`): segments with names, values and layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.volume import Volume, read_voxels

SEGMENT = re.compile(r"Segment(\d+)_(?:Name|ID)").fullmatch
BINARY = "Binary labelmap"


@dataclass(frozen=True)
class Segment:
    """One segment: the voxels of its layer that have its value."""

    name: str
    layer: int
    value: int


def read_segments(path: Path) -> list[Segment]:
    """Return the segments that the header of a file names."""
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
    except RuntimeError as error:
        why = str(error).strip().splitlines()[-1].strip()
        raise LabelSetError(f"{path}: not readable as a segmentation: {why}") from None
    representation = _text(reader, "Segmentation_SourceRepresentation") or _text(
        reader, "Segmentation_MasterRepresentation"
    )
    if representation not in ("", BINARY):
        raise LabelSetError(
            f"{path}: stored as '{representation}': save it from Slicer as a binary labelmap"
        )
    matches = [match for match in map(SEGMENT, reader.GetMetaDataKeys()) if match]
    numbers = sorted({int(match[1]) for match in matches})
    if not numbers:
        raise LabelSetError(
            f"{path}: no segments in its header: for a label map without names, use "
            'kind = "files" and the values as keys of labels'
        )
    return [_segment(reader, number, path) for number in numbers]


def _text(reader: sitk.ImageFileReader, key: str) -> str:
    if not reader.HasMetaDataKey(key):
        return ""
    # SWIG hands over what is not UTF-8 as lone surrogates.
    raw = reader.GetMetaData(key).encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8").strip()
    except UnicodeDecodeError:
        return raw.decode("latin-1").strip()


def _segment(reader: sitk.ImageFileReader, number: int, path: Path) -> Segment:
    """Return a segment; files of Slicer before 4.11 have one layer for each and no values."""

    def number_of(key: str, default: int) -> int:
        text = _text(reader, f"Segment{number}_{key}")
        return int(text) if text else default

    try:
        layer = number_of("Layer", number if reader.GetNumberOfComponents() > 1 else 0)
        value = number_of("LabelValue", 1)
    except ValueError as error:
        raise LabelSetError(f"{path}: Segment{number} in its header: {error}") from None
    if not 0 <= layer < reader.GetNumberOfComponents():
        raise LabelSetError(f"{path}: Segment{number} lies in layer {layer}, which is not there")
    name = _text(reader, f"Segment{number}_Name") or _text(reader, f"Segment{number}_ID")
    return Segment(name, layer, value)


def paint_segments(
    path: Path, structures: Mapping[int, Sequence[str]], overlap: bool
) -> tuple[Volume, list[str]]:
    """Return the numbers of the structures, later ones over earlier ones, and what was covered."""
    volume = read_voxels(path)
    layers = volume.array if volume.place.components > 1 else volume.array[..., None]
    painted = np.zeros(layers.shape[:-1], dtype=np.uint16)
    segments = read_segments(path)
    covered_notes = []
    for number, names in sorted(structures.items()):
        for segment in (segment for segment in segments if segment.name in names):
            inside = layers[..., segment.layer] == segment.value
            covered = int(np.count_nonzero((painted[inside] != 0) & (painted[inside] != number)))
            if covered and not overlap:
                raise LabelSetError(
                    f"{path}: {covered} voxels of segment '{segment.name}' belong to another one "
                    "too: 'overlap = \"last\"' lets later ones win"
                )
            if covered:
                covered_notes.append(f"{segment.name}: {covered}")
            painted[inside] = number
    return Volume(painted, volume.place), covered_notes


def is_placeholder(volume: Volume) -> bool:
    """Return whether Slicer had nothing to crop to: all segments empty, one voxel anywhere."""
    return volume.array.size == 1 and not volume.array.any()
