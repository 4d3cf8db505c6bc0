"""DICOM-SEG: segments as voxels of the image that they were drawn on."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import highdicom
import numpy as np

from nnunet_labelset.dataset_conversion.dicom.polygons import Raster
from nnunet_labelset.dataset_conversion.dicom.stack import Stack
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import reason

HALF = 0.5  # of the highest fraction: what a voxel of a fractional segment needs
OFF_GRID = 0.1  # pixels or slices


@lru_cache(maxsize=1)
def _open(path: Path) -> highdicom.seg.Segmentation:
    try:
        return highdicom.seg.segread(path)
    except Exception as error:  # parsers of broken bytes raise whatever they stumble over
        why = reason(error).splitlines()[0]
        raise LabelSetError(f"{path}: not readable as a segmentation: {why}") from None


def segment_names(path: Path) -> list[str]:
    """Return the labels of the segments, in their order."""
    segments = _open(path)
    return [
        str(segments.get_segment_description(number).segment_label)
        for number in segments.segment_numbers
    ]


def read_segment(path: Path, name: str, stack: Stack) -> Raster:
    """Return the voxels of the segments of this name; slices without a frame are empty."""
    segments = _open(path)
    numbers = [
        number
        for number, label in zip(segments.segment_numbers, segment_names(path), strict=True)
        if label == name
    ]
    try:
        volume = segments.get_volume(
            segment_numbers=numbers, rescale_fractional=True, allow_missing_positions=True
        )
    except Exception as error:  # irregular frames, missing geometry
        why = reason(error).splitlines()[0]
        raise LabelSetError(f"{path}: segment '{name}': not a volume: {why}") from None
    where = f"{path}: segment '{name}'"
    _check_steps(volume, stack, where)
    inside = np.argwhere((volume.array >= HALF).any(axis=3))
    target = np.zeros(stack.shape, dtype=bool)
    if len(inside):
        places = stack.pixel_coordinates(volume.map_indices_to_reference(inside))
        nearest = np.rint(places).astype(int)
        if np.abs(places - nearest).max() > OFF_GRID:
            raise LabelSetError(f"{where} lies between the voxels of the image")
        if (nearest < 0).any() or (nearest >= np.array(stack.shape)).any():
            raise LabelSetError(f"{where} lies outside of the image: was it drawn on another one?")
        target[tuple(nearest.T)] = True
    whole = (slice(0, stack.shape[0]), slice(0, stack.shape[1]), slice(0, stack.shape[2]))
    return Raster(whole, target, float(len(inside)), float(len(inside)))


def _check_steps(volume: highdicom.Volume, stack: Stack, where: str) -> None:
    """A step to the next voxel of the segment must be a step to the next voxel of the image."""
    corners = np.vstack([np.zeros(3, int), np.eye(3, dtype=int)])
    places = stack.pixel_coordinates(volume.map_indices_to_reference(corners))
    steps = np.abs(places[1:] - places[0])
    several = np.array(volume.spatial_shape) > 1  # else the step is unknown
    rows = np.sort(steps[several], axis=1)
    if np.abs(rows - [0, 0, 1]).max(initial=0) > OFF_GRID:
        raise LabelSetError(f"{where} has other voxels than the image: {volume.spacing} mm")
