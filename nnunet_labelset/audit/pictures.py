"""Small pictures of a case: for every label the slice that tells most, in one sprite per case."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.volume import Volume, integer_array, oriented, read_voxels
from nnunet_labelset.report.plots import rgb

COLUMNS = 10  # of a sprite
LARGE, SMALL = 160, 128  # pixels of a picture
MANY = 1500  # pictures of a page, from which they are small
QUALITIES = (45, 20, 5)  # of WebP: the first one with which a page stays small
MOST_BYTES = 10_000_000  # of all pictures of a page, before base64 adds a third
ZOOM = 1.8  # sides of a picture by the sides of what it shows
LEAST_SHARE = 0.35  # of the image that a picture shows at least
CONTOUR_COLOURS = {"reference": "#2FA8FF", "prediction": "#FFB000", "both": "#FFFFFF"}
DARK = 24  # grey of what lies outside of the image


@dataclass(frozen=True)
class Shown:
    """The files of a case: its image (the first channel), its label map, perhaps a prediction."""

    name: str
    image: Path | None
    drawn: Path
    predicted: Path | None = None


@dataclass(frozen=True)
class Box:
    """Middle and size of a label, each `(z, y, x)` and relative to the image."""

    middle: np.ndarray
    size: np.ndarray


@dataclass(frozen=True)
class Sprite:
    """The pictures of a case, row by row, as a data URL."""

    url: str
    side: int


Boxes = Mapping[int, Box]  # by label


def draw_sprites(cases: Sequence[Shown], num_labels: int, processes: int) -> dict[str, Sprite]:
    """Return the sprite of every case; picture `n` of a sprite is about label `n + 1`."""
    boxes = dict(map_parallel(_boxes, cases, processes, "finding labels"))
    usual = _usual_boxes(list(boxes.values()), num_labels)
    side = LARGE if len(cases) * (num_labels - 1) <= MANY else SMALL
    most_bytes = MOST_BYTES // max(1, len(cases))
    draw = partial(_sprite, num_labels=num_labels, usual=usual, side=side, most_bytes=most_bytes)
    sprites = map_parallel(draw, cases, processes, "drawing")
    return {case.name: sprite for case, sprite in sprites}


def _boxes(case: Shown) -> dict[int, Box]:
    """Return the boxes of the labels that are drawn in a case."""
    labels, _ = _labels(case.drawn)
    boxes = {}
    for label, box in enumerate(ndimage.find_objects(labels), start=1):
        if box is not None:
            starts = np.array([side.start for side in box])
            stops = np.array([side.stop for side in box])
            size = np.array(labels.shape)
            boxes[label] = Box(middle=(starts + stops) / 2 / size, size=(stops - starts) / size)
    return boxes


def _usual_boxes(cases: Sequence[Boxes], num_labels: int) -> dict[int, Box]:
    """Return where each label usually is: there one looks for it where it was not drawn."""
    usual = {}
    for label in range(1, num_labels):
        known = [boxes[label] for boxes in cases if label in boxes]
        middle = np.median([box.middle for box in known], axis=0) if known else np.full(3, 0.5)
        size = np.median([box.size for box in known], axis=0) if known else np.ones(3)
        usual[label] = Box(middle=middle, size=size)
    return usual


def _sprite(case: Shown, num_labels: int, usual: Boxes, side: int, most_bytes: int) -> Sprite:
    drawn, volume = _labels(case.drawn)
    predicted = _labels(case.predicted)[0] if case.predicted else np.zeros_like(drawn)
    spacing = np.array([1.0, *volume.place.spacing[::-1]])[-3:]
    if predicted.shape != drawn.shape:
        raise LabelSetError(f"{case.predicted}: shape {predicted.shape}, expected {drawn.shape}")
    image = _grey(case.image, drawn.shape)
    rows = -(-(num_labels - 1) // COLUMNS)
    canvas = np.full((rows * side, min(COLUMNS, num_labels - 1) * side, 3), DARK, np.uint8)
    for label in range(1, num_labels):
        row, column = divmod(label - 1, COLUMNS)
        masks = np.stack([drawn == label, predicted == label])
        tile = _picture(image, masks, usual[label], spacing, side)
        canvas[row * side : (row + 1) * side, column * side : (column + 1) * side] = tile
    content = base64.b64encode(_encoded(canvas, most_bytes)).decode("ascii")
    return Sprite(url=f"data:image/webp;base64,{content}", side=side)


def _encoded(picture: np.ndarray, most_bytes: int) -> bytes:
    """Return a picture as WebP, in the best quality that fits, or the lowest."""
    content = b""
    for quality in QUALITIES:
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "WEBP", quality=quality, method=4)
        content = buffer.getvalue()
        if len(content) <= most_bytes:
            break
    return content


def _picture(
    image: np.ndarray, masks: np.ndarray, usual: Box, spacing: np.ndarray, side: int
) -> np.ndarray:
    """Return the telling slice of a label with its contours `(side, side, 3)`.

    masks `(2, z, y, x)`: drawn and predicted.
    """
    shape = np.array(image.shape)
    middle = usual.middle * shape
    size = usual.size * shape
    if masks.any():
        places = np.argwhere(masks.any(0))
        middle = (places.min(0) + places.max(0) + 1) / 2
        size = places.max(0) + 1 - places.min(0)
        middle[0] = _telling_slice(masks)
    depth = int(np.clip(middle[0], 0, shape[0] - 1))
    extent = shape[1:] * spacing[1:]
    width = min(max(ZOOM * (size * spacing)[1:].max(), LEAST_SHARE * extent.max()), extent.max())
    steps = (np.arange(side) + 0.5) / side * width - width / 2  # mm
    rows = np.floor(middle[1] + steps / spacing[1]).astype(int)
    columns = np.floor(middle[2] + steps / spacing[2]).astype(int)
    inside = np.ix_((rows >= 0) & (rows < shape[1]), (columns >= 0) & (columns < shape[2]))
    grid = np.ix_(rows.clip(0, shape[1] - 1), columns.clip(0, shape[2] - 1))
    grey = np.full((side, side), DARK, np.uint8)
    grey[inside] = image[depth][grid][inside]
    picture = np.repeat(grey[..., None], 3, axis=2)
    drawn, predicted = (_edge(mask[depth][grid]) for mask in masks)
    for where, which in (
        (drawn, "reference"),
        (predicted, "prediction"),
        (drawn & predicted, "both"),
    ):
        picture[where] = rgb(CONTOUR_COLOURS[which])
    return picture


def _telling_slice(masks: np.ndarray) -> int:
    """Return the slice in which drawing and prediction differ most, or the largest one."""
    drawn, predicted = masks
    only_drawn = not predicted.any()
    areas = (drawn if only_drawn else drawn ^ predicted).sum(axis=(1, 2))
    return int(areas.argmax()) if areas.any() else int(drawn.sum(axis=(1, 2)).argmax())


def _edge(mask: np.ndarray) -> np.ndarray:
    return mask & ~ndimage.binary_erosion(mask)


def _labels(path: Path) -> tuple[np.ndarray, Volume]:
    """Return a label map in three dimensions with the axes left, posterior, superior."""
    volume = oriented(read_voxels(path), "LPS")
    labels = integer_array(volume.array, path)
    return (labels if labels.ndim == 3 else labels[None]), volume


def _grey(path: Path | None, shape: tuple[int, ...]) -> np.ndarray:
    """Return the image as grey values, plain grey where there is none of this shape."""
    plain = np.full(shape, 2 * DARK, np.uint8)
    if path is None:
        return plain
    volume = oriented(read_voxels(path), "LPS")
    array = np.nan_to_num(volume.array.astype(np.float32))
    if volume.place.components > 1:
        array = array.mean(axis=-1)
    array = array if array.ndim == 3 else array[None]
    if array.shape != shape:
        return plain
    low, high = np.percentile(array[array > array.min()] if np.ptp(array) else array, [2, 99])
    return (np.clip((array - low) / ((high - low) or 1), 0, 1) * 255).astype(np.uint8)
