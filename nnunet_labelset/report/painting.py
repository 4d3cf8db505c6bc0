"""The pictures of a case: its slices that say most, as layers of small images that share the grey
one below them.

A layer holds all slices of a case, one below the other; a picture is a window on it. So the grey
values are stored once for all methods, and moving from slice to slice moves the window.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from nnunet_labelset.contract import Protocol
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.counts import look_up
from nnunet_labelset.evaluation.scores import checked_labels
from nnunet_labelset.io.place import Place, geometry_difference
from nnunet_labelset.io.volume import Volume, oriented, read_voxels
from nnunet_labelset.nnunet.names import FIRST_CHANNEL
from nnunet_labelset.report.page import join
from nnunet_labelset.report.plots import (
    ERROR_COLOUR,
    ERROR_KINDS,
    REFERENCE_COLOUR,
    label_colour,
    method_colour,
    rgb,
)

MARGIN = 4  # voxels around what the reference labels
FRAMES = 10  # axial slices to choose from
VIEWS = ("axial", "coronal", "sagittal")


class DrawnCase:
    """One case, cropped to what its reference labels; every method on the same slices."""

    def __init__(
        self,
        reference_file: str,
        prediction_files: Sequence[str],
        protocol: Protocol,
        image_file: Path | None,
    ) -> None:
        voxels, place = _oriented(reference_file)
        reference = checked_labels(voxels, reference_file, len(protocol.sets))
        predictions = []
        for path in prediction_files:
            voxels, prediction_place = _oriented(path)
            if difference := geometry_difference(place, prediction_place):
                raise LabelSetError(f"{reference_file} and {path} differ in {difference}")
            predictions.append(checked_labels(voxels, path, protocol.num_leaves))
        membership = protocol.membership  # (V, C)
        self.num_leaves = protocol.num_leaves
        self.spacing = place.spacing[::-1]
        if reference.ndim == 2:
            reference, predictions = reference[None], [array[None] for array in predictions]
            self.spacing = (1.0, *self.spacing)
        kinds = error_kinds(membership)
        whole = [_errors(kinds, reference, array) for array in predictions]
        self.error_counts = [
            dict(zip(ERROR_KINDS, map(int, counts[1:]), strict=True)) for counts in whole
        ]
        labelled = ~membership[:, 0]  # what is certainly not background
        foreground = next(
            (mask for mask in (look_up(labelled, reference), reference != 0) if mask.any()),
            np.ones(reference.shape, bool),
        )
        crop = _box_around(foreground)
        self.reference = reference[crop]
        self.predictions = [array[crop] for array in predictions]
        self.errors = [look_up(kinds, self.reference, array) for array in self.predictions]
        self.errors_outside = [
            int(counts[1:].sum()) - int(np.count_nonzero(errors))
            for counts, errors in zip(whole, self.errors, strict=True)
        ]
        self.uncertain = look_up(membership.sum(1) > 1, self.reference)
        self.image = _grey(image_file, place, crop, foreground[crop])
        self.views = VIEWS if self.reference.shape[0] > 1 else VIEWS[:1]

    @cached_property
    def telling(self) -> list[int]:
        """In every view, the slice with the most errors among those that cut well through what is
        drawn.

        Without that condition it would often lie just beside the organ, where nothing can be
        compared.
        """
        chosen = []
        for axis in range(len(self.views)):
            others = tuple(other for other in range(3) if other != axis)
            wrong = sum((array > 0).sum(axis=others) for array in self.errors)
            drawn = ((self.reference > 0) & (self.reference < self.num_leaves)).sum(axis=others)
            # Without errors: where most is drawn.
            chosen.append(
                int(
                    np.argmax(
                        np.where(2 * drawn >= drawn.max(), wrong * self.reference.size + drawn, -1)
                    )
                )
            )
        return chosen

    @cached_property
    def axial(self) -> list[int]:
        """The axial slices to choose from, the telling one among them."""
        depth = self.reference.shape[0]
        evenly = np.linspace(0, depth - 1, min(depth, FRAMES)).round().astype(int).tolist()
        nearest = min(evenly, key=lambda index: abs(index - self.telling[0]))
        return sorted(
            {*evenly, self.telling[0]} - ({nearest} if nearest != self.telling[0] else set())
        )

    def frames(self, array: np.ndarray) -> list[np.ndarray]:
        """Slices with the patient upright: the axial ones, then one of every other view."""
        planes = [array[index] for index in self.axial]
        return planes + [
            np.take(array, self.telling[axis], axis)[::-1] for axis in range(1, len(self.views))
        ]

    def frame_extents(self) -> list[tuple[float, float]]:
        """Height and width of every frame in mm."""
        sizes = np.multiply(self.reference.shape, self.spacing)
        axes = [0] * len(self.axial) + list(range(1, len(self.views)))
        return [tuple(size for other, size in enumerate(sizes) if other != axis) for axis in axes]


def find_image(reference_file: str | Path, case: str, file_ending: str) -> Path | None:
    """The first channel of a case, in nnU-Net's folder of images beside the folder of labels."""
    folder = Path(reference_file).parent
    if not folder.name.startswith("labels"):
        return None
    image = (
        folder.with_name("images" + folder.name[len("labels") :])
        / f"{case}{FIRST_CHANNEL}{file_ending}"
    )
    return image if image.is_file() else None


def error_kinds(membership: np.ndarray) -> np.ndarray:
    """By value and predicted leaf `(K, C)`: 0 what may be right, else missed, invented, wrong label
    (ERROR_KINDS).
    """
    kinds = np.zeros(membership.shape, np.uint8)
    kinds[~membership] = 3
    kinds[~membership[:, 0], 0] = 1
    only_background = membership[:, 0] & (membership.sum(1) == 1)
    kinds[only_background, 1:] = 2
    return kinds


def _errors(kinds: np.ndarray, reference: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """How many voxels are of each kind."""
    planes = zip(reference, prediction, strict=True)
    return np.sum(
        [np.bincount(kinds[pair].ravel(), minlength=len(ERROR_KINDS) + 1) for pair in planes],
        axis=0,
    )


def _oriented(path: str | Path) -> Volume:
    """Left-posterior-superior axes, so that every case is shown the same way up."""
    return oriented(read_voxels(path), "LPS")


def _box_around(mask: np.ndarray) -> tuple[slice, ...]:
    """The box of a mask and a margin around it."""
    (box,) = scipy.ndimage.find_objects(mask.view(np.uint8))
    return tuple(slice(max(0, axis.start - MARGIN), axis.stop + MARGIN) for axis in box)


def _grey(
    path: Path | None, like: Place, crop: tuple[slice, ...], inside: np.ndarray
) -> np.ndarray:
    """The image as grey values, its window from what the reference labels; dark grey if there is
    none on this grid.
    """
    plain = np.full(inside.shape, 40, np.uint8)
    if path is None:
        return plain
    voxels, place = _oriented(path)
    if geometry_difference(place, like):
        return plain
    array = np.nan_to_num(
        (voxels if len(place.size) == 3 else voxels[None])[crop].astype(np.float32)
    )
    if place.components > 1:
        array = array.mean(axis=-1)
    low, high = np.percentile(array[inside], [1, 99])
    # Half as much again on both sides: neighbours are darker or brighter than what is labelled.
    spread = (high - low) / 2
    low, high = max(low - spread, array.min()), min(high + spread, array.max())
    return (np.clip((array - low) / ((high - low) or 1), 0, 1) * 255).astype(np.uint8)


SIDE = 220  # pixels of the longer side of a slice
SMALLEST_NUMBERED = 120  # pixels of a label that has room for its number
FILL = 90  # of 255: the scan stays visible
SHADE = 150  # of 255: what darkens the scan between the lines of a pattern
HALO = 90  # of 255: the same beside contours
STRIPE = 3  # pixels of a line in a pattern; pictures are shown at half of their size


class Painter:
    """The layers of one case, and windows on them."""

    def __init__(self, case: DrawnCase, name: str) -> None:
        self.case, self.name = case, name
        extents = np.array(case.frame_extents())
        self.shapes = np.maximum(1, np.rint(extents * SIDE / extents.max())).astype(int)
        self.height, self.width = self.shapes.max(0)
        self.hatch = _stripes(self._stack(case.uncertain))
        self.layers: list[Markup] = []
        self._add("grey", self._stack(case.image), quality=50)

    def reference(self) -> str:
        """Paint the reference, hatched where several leaves are possible; the name of the layer."""
        return self._add("reference", self._hatched(self._filled(self.case.reference)))

    def prediction(self, method: int) -> str:
        return self._add(f"prediction{method}", self._filled(self.case.predictions[method]))

    def contours(self, method: int) -> str:
        """Draw the borders of the prediction, dashed in the colour of its method, then those of the
        reference, on a shade that separates them from a bright scan.
        """
        arrays = (self.case.reference, self.case.predictions[method])
        reference, prediction = (_borders(self._stack(array)) for array in arrays)
        picture = np.zeros((*reference.shape, 4), np.uint8)
        picture[_beside(reference | prediction)] = (0, 0, 0, HALO)
        picture[prediction & _dashes(prediction.shape)] = (*rgb(method_colour(method)), 255)
        picture[reference] = (*rgb(REFERENCE_COLOUR), 255)
        return self._add(f"contours{method}", picture)

    def errors(self, method: int) -> str:
        """Paint errors as patterns inside of an outline, because thin ones have no room for a
        pattern.
        """
        kinds = self._stack(self.case.errors[method])
        picture = _palette([ERROR_COLOUR] * len(ERROR_KINDS))[kinds]
        picture[_dark_parts(kinds) & ~_edges(kinds)] = (0, 0, 0, SHADE)
        return self._add(f"errors{method}", self._hatched(picture, under=True))

    def definitions(self) -> Markup:
        """The layers, once per case; the pictures refer to them."""
        return Markup(
            '<svg width="0" height="0" style="position:absolute" aria-hidden="true">'
            "<defs>{}</defs></svg>"
        ).format(join(self.layers))

    def picture(self, label: str, *layers: str) -> Markup:
        """All views of the layers above the grey one, side by side."""
        uses = join(
            Markup('<use href="#{}"/>').format(layer) for layer in (f"{self.name}-grey", *layers)
        )
        first = self.case.axial.index(self.case.telling[0])
        frames = [first, *range(len(self.case.axial), len(self.shapes))]
        window = Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="{} {} {w} {}" style="flex:{w} 1 0" '
            'role="img" aria-label="{}, {}"{}>{}</svg>'
        )
        views = []
        for frame, view in zip(frames, self.case.views, strict=True):
            width = self.shapes[frame][1]
            box = ((self.width - width) // 2, frame * self.height, self.height)
            slices = Markup(' data-slices="{}"').format(self.name) if frame == first else ""
            views.append(window.format(*box, label, view, slices, uses, w=width))
        return Markup('<div class="views">{}</div>').format(join(views))

    def slider(self) -> Markup:
        """Moves all axial pictures of the case; shown where scripts run."""
        if len(self.case.axial) < 2:
            return Markup("")
        return Markup(
            '<p class="tools" hidden><label>Axial slice <input type="range" data-moves="{}" '
            'data-step="{}" min="0" max="{}" value="{}"></label> <output></output></p>'
        ).format(
            self.name,
            self.height,
            len(self.case.axial) - 1,
            self.case.axial.index(self.case.telling[0]),
        )

    def _stack(self, array: np.ndarray) -> np.ndarray:
        """The frames scaled to square pixels, centred, one below the other: `(frames * height,
        width)`.
        """
        stack = np.zeros((len(self.shapes), self.height, self.width), array.dtype)
        for place, frame, shape in zip(stack, self.case.frames(array), self.shapes, strict=True):
            rows, columns = (
                ((np.arange(n) + 0.5) * old / n).astype(int)
                for n, old in zip(shape, frame.shape, strict=True)
            )
            top, left = (np.array(place.shape) - shape) // 2
            place[top : top + shape[0], left : left + shape[1]] = frame[np.ix_(rows, columns)]
        return stack.reshape(-1, self.width)

    def _hatched(self, picture: np.ndarray, under: bool = False) -> np.ndarray:
        """Diagonal stripes, white beside black, so that they show on any grey."""
        for stripe, grey in zip(self.hatch, (235, 20), strict=True):
            picture[stripe & (picture[..., 3] == 0) if under else stripe] = (grey, grey, grey, 190)
        return picture

    def _filled(self, array: np.ndarray) -> np.ndarray:
        """Return labels as outlines in their colours with a pale filling, and their numbers."""
        labels = self._stack(array)
        colours = _palette(map(label_colour, range(1, self.case.num_leaves)), FILL)
        # What is unannotated has no colour.
        picture = np.append(colours, colours[:1], axis=0)[labels]  # (h, w, 4)
        picture[..., 3][_edges(labels) & (picture[..., 3] > 0)] = 255
        canvas = Image.fromarray(picture)
        draw = ImageDraw.Draw(canvas)
        font = ImageFont.load_default(size=16)
        draw.fontmode = "1"  # without grey edges, which would double the size
        for number, frame in enumerate(labels.reshape(-1, self.height, self.width)):
            sizes = np.bincount(frame.ravel(), minlength=self.case.num_leaves)
            large = np.flatnonzero(sizes[1 : self.case.num_leaves] >= SMALLEST_NUMBERED) + 1
            for label in large:
                y, x = _inner_point(frame == label)
                place = (x, y + number * self.height)
                text = str(label)
                draw.text(place, text, "white", font, "mm", stroke_width=1, stroke_fill="black")
        return np.array(canvas)

    def _add(self, layer: str, picture: np.ndarray, quality: int | None = None) -> str:
        """A layer without loss, or of this quality; its name."""
        name, buffer = f"{self.name}-{layer}", io.BytesIO()
        options = {"lossless": True} if quality is None else {"quality": quality}
        Image.fromarray(picture).save(buffer, "WEBP", method=4, **options)
        height, width = picture.shape[:2]
        content = base64.b64encode(buffer.getvalue()).decode("ascii")
        image = Markup('<image id="{}" width="{}" height="{}" href="data:image/webp;base64,{}"/>')
        self.layers.append(image.format(name, width, height, content))
        return name


def _palette(colours: Iterable[str], alpha: int = 255) -> np.ndarray:
    """RGBA by number `(n + 1, 4)`; 0 is nothing."""
    return np.array([(0, 0, 0, 0), *((*rgb(colour), alpha) for colour in colours)], np.uint8)


def _inner_point(mask: np.ndarray) -> tuple[int, int]:
    """Return the pixel that is farthest from the border: a number there covers no other label."""
    depth = scipy.ndimage.distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1]
    y, x = np.unravel_index(np.argmax(depth), mask.shape)
    return int(y), int(x)


def _borders(labels: np.ndarray) -> np.ndarray:
    """Lines one pixel thick between values."""
    border = np.zeros(labels.shape, bool)
    border[:-1] |= labels[:-1] != labels[1:]
    border[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    return border


def _edges(labels: np.ndarray) -> np.ndarray:
    """Pixels beside another value, on both sides."""
    return _borders(labels) | _borders(labels[::-1, ::-1])[::-1, ::-1]


def _beside(lines: np.ndarray) -> np.ndarray:
    """Return pixels within one of a line."""
    return scipy.ndimage.binary_dilation(lines, np.ones((3, 3), bool))


def _dashes(shape: tuple[int, ...]) -> np.ndarray:
    """Return two of three diagonals of squares: lines through them are dashed in any direction."""
    row, column = np.indices(shape) // 2
    return (row + column) % 3 > 0


def _dark_parts(kinds: np.ndarray) -> np.ndarray:
    """Return where a pattern is dark: rows, columns or squares, by kind of error."""
    row, column = np.indices(kinds.shape) // STRIPE % 2 == 1
    patterns = np.stack([np.zeros_like(row), row, column, row ^ column])  # (4, h, w)
    return np.take_along_axis(patterns, kinds[None].astype(np.int64), axis=0)[0]


def _stripes(mask: np.ndarray) -> np.ndarray:
    """White and black diagonal stripes inside a mask: `(2, h, w)`."""
    phase = np.indices(mask.shape).sum(0) % 10
    return mask & [phase < 2, phase == 2]
