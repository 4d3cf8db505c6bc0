"""Slices of a case as pictures: layers of small images that share the grey one below them.

A layer holds all slices of a case, one below the other; a picture is a window on it. So the grey
values are stored once for all methods, and moving from slice to slice moves the window.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from nnunet_labelset.report.colours import (
    CONTOUR_COLOURS,
    ERROR_COLOURS,
    LEAF_COLOURS,
    leaf_colour,
    rgb,
)
from nnunet_labelset.report.overlays import DrawnCase
from nnunet_labelset.report.page import join

SIDE = 220  # pixels of the longer side of a slice
SMALLEST_NUMBERED = 200  # pixels of a region that has room for a number
FILL = 150  # of 255


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
        """Borders of the reference, of the prediction, and where both have one
        (CONTOUR_COLOURS).
        """
        arrays = (self.case.reference, self.case.predictions[method])
        reference, prediction = (_borders(self._stack(array)) for array in arrays)
        return self._add(
            f"contours{method}", _palette(CONTOUR_COLOURS.values())[reference + 2 * prediction]
        )

    def errors(self, method: int) -> str:
        kinds = self._stack(self.case.errors[method])
        picture = _palette(ERROR_COLOURS.values())[kinds]
        picture[_dark_lines(kinds)] = (0, 0, 0, 255)
        return self._add(f"errors{method}", self._hatched(picture, under=True))

    def definitions(self) -> Markup:
        """The layers, once per case; the pictures refer to them."""
        return Markup(
            '<svg width="0" height="0" style="position:absolute" '
            'aria-hidden="true"><defs>{}</defs></svg>'
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
            'role="img" '
            'aria-label="{}, {}"{}>{}</svg>'
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
            'data-step="{}" min="0" '
            'max="{}" value="{}"></label> <output></output></p>'
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
        """Leaves in their colours, with their edges; of more leaves than colours that can be told
        apart, with numbers.

        Edges and numbers together would be too large for a page.
        """
        labels = self._stack(array)
        colours = _palette(map(leaf_colour, range(1, self.case.num_leaves)), FILL)
        picture = np.append(colours, colours[:1], axis=0)[
            labels
        ]  # (h, w, 4); what is unannotated has no colour
        if self.case.num_leaves - 1 <= len(LEAF_COLOURS):
            picture[..., 3][_edges(labels) & (picture[..., 3] > 0)] = 255
            return picture
        canvas = Image.fromarray(picture)
        draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(size=10)
        draw.fontmode = "1"  # without grey edges, which would double the size
        for number, frame in enumerate(labels.reshape(-1, self.height, self.width)):
            sizes = np.bincount(frame.ravel(), minlength=self.case.num_leaves)
            for leaf in np.flatnonzero(sizes[1 : self.case.num_leaves] >= SMALLEST_NUMBERED) + 1:
                y, x = _inner_point(frame == leaf)
                place = (x, y + number * self.height)
                draw.text(
                    place, str(leaf), "white", font, "mm", stroke_width=1, stroke_fill="black"
                )
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
    """The pixel of a region that is nearest to its middle: inside also where the region is bent."""
    places = np.argwhere(mask)
    y, x = places[np.argmin(((places - places.mean(0)) ** 2).sum(1))]
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


def _dark_lines(kinds: np.ndarray) -> np.ndarray:
    """Return where a pattern is black: rows, columns or squares, by kind of error."""
    row, column = np.indices(kinds.shape) % 4 < 2
    patterns = np.stack([np.zeros_like(row), row, column, row ^ column])  # (4, h, w)
    return np.take_along_axis(patterns, kinds[None].astype(np.int64), axis=0)[0]


def _stripes(mask: np.ndarray) -> np.ndarray:
    """White and black diagonal stripes inside a mask: `(2, h, w)`."""
    phase = np.indices(mask.shape).sum(0) % 10
    return mask & [phase < 2, phase == 2]
