"""Slices of a case as pictures: layers of small images that share the grey one below them.

A layer holds all slices of a case, one below the other; a picture is a window on it. So the grey
values are stored once for all methods, and moving from slice to slice moves the window.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

import numpy as np
import scipy
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from nnunet_labelset.report.colours import (
    ERROR_COLOUR,
    ERROR_KINDS,
    REFERENCE_COLOUR,
    label_colour,
    method_colour,
    rgb,
)
from nnunet_labelset.report.overlays import DrawnCase
from nnunet_labelset.report.page import join

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
