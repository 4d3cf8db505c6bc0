"""Slices of a case as pictures: reference, prediction and errors, with unannotated regions hatched."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813  (the name that everybody uses)
from matplotlib.image import imsave

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.counts import membership_matrix
from nnunet_labelset.io.volume import geometry_difference, label_array, read_image

# Paul Tol's muted scheme: distinct without red-green vision. More leaves repeat it, lighter.
LEAF_COLOURS = ("CC6677", "332288", "DDCC77", "117733", "88CCEE", "882255", "44AA99", "999933", "AA4499")
ERROR_COLOURS = {"missed": "56B4E9", "invented": "E69F00", "wrong leaf": "CC79A7"}
SIDE = 230  # pixels of the longer side of a view
MARGIN = 4  # voxels around what is labelled
VIEWS = ("axial", "coronal", "sagittal")


def leaf_colour(leaf: int) -> str:
    """The colour of a foreground leaf, as `#rrggbb`."""
    lap, index = divmod(leaf - 1, len(LEAF_COLOURS))
    lighter = 1 - 0.5 ** min(lap, 3)
    return "#" + "".join(f"{round(v + (255 - v) * lighter):02X}" for v in bytes.fromhex(LEAF_COLOURS[index]))


def find_image(reference_file: str | Path, case: str, file_ending: str) -> Path | None:
    """The first channel of a case, in nnU-Net's folder of images beside the folder of labels."""
    folder = Path(reference_file).parent
    if not folder.name.startswith("labels"):
        return None
    image = folder.with_name("images" + folder.name[len("labels") :]) / f"{case}_0000{file_ending}"
    return image if image.is_file() else None


class CaseSlices:
    """The most telling slice of a case in every view, painted."""

    def __init__(
        self,
        reference_file: str,
        prediction_files: Sequence[str],
        sets: Sequence[LabelSet],
        num_leaves: int,
        image_file: Path | None,
    ) -> None:
        reference_image = _oriented(reference_file)
        reference = label_array(reference_image, reference_file)
        predictions = []
        for path in prediction_files:
            prediction_image = _oriented(path)
            if difference := geometry_difference(reference_image, prediction_image):
                raise LabelSetError(f"{reference_file} and {path} differ in {difference}")
            predictions.append(label_array(prediction_image, path))
        membership = membership_matrix(sets, num_leaves)  # (K, C)
        for array, path, most in [(reference, reference_file, len(sets))] + [
            (array, path, num_leaves) for array, path in zip(predictions, prediction_files, strict=True)
        ]:
            if array.min() < 0 or array.max() >= most:
                raise LabelSetError(f"{path}: values outside 0..{most - 1}")
        self.num_leaves = num_leaves
        self.spacing = tuple(reversed(reference_image.GetSpacing()))
        if reference.ndim == 2:
            reference, predictions = reference[None], [array[None] for array in predictions]
            self.spacing = (1.0, *self.spacing)
        crop = _crop([reference, *predictions])
        self.reference = reference[crop]
        self.predictions = [array[crop] for array in predictions]
        self.uncertain = (membership.sum(1) > 1)[self.reference]
        self.errors = [_error_kinds(self.reference, array, membership) for array in self.predictions]
        self.image = _background(image_file, reference_image, crop, self.reference.shape)
        self.views = VIEWS if self.reference.shape[0] > 1 else VIEWS[:1]
        self.slices = [self._choose(axis) for axis in range(len(self.views))]

    def _choose(self, axis: int) -> int:
        """The slice with the most errors among those that cut well through what is drawn.

        Without that condition it would often lie just beside the organ, where nothing can be compared.
        """
        others = tuple(other for other in range(3) if other != axis)
        wrong = sum((array > 0).sum(axis=others) for array in self.errors)
        drawn = ((self.reference > 0) & (self.reference < self.num_leaves)).sum(axis=others)
        # Without errors: where most is drawn.
        return int(np.argmax(np.where(2 * drawn >= drawn.max(), wrong * self.reference.size + drawn, -1)))

    def error_counts(self, method: int) -> dict[str, int]:
        """Voxels of every kind of error, in the whole volume."""
        counts = np.bincount(self.errors[method].ravel(), minlength=1 + len(ERROR_COLOURS))
        return {kind: int(count) for kind, count in zip(ERROR_COLOURS, counts[1:], strict=True)}

    def picture_of_image(self) -> str:
        return self._picture(self._grey)

    def picture_of_reference(self) -> str:
        return self._picture(lambda axis: self._painted(axis, self.reference, hatch=True))

    def picture_of_prediction(self, method: int) -> str:
        return self._picture(lambda axis: self._painted(axis, self.predictions[method], hatch=False))

    def picture_of_errors(self, method: int) -> str:
        return self._picture(lambda axis: self._error_view(axis, method))

    def _cut(self, array: np.ndarray, axis: int) -> np.ndarray:
        """One slice with the patient upright, scaled to square pixels."""
        plane = np.take(array, self.slices[axis], axis=axis)
        if axis > 0:
            plane = plane[::-1]  # feet down
        size = [spacing for other, spacing in enumerate(self.spacing) if other != axis]
        extent = np.array(plane.shape) * size
        shape = np.maximum(1, np.rint(extent * SIDE / extent.max())).astype(int)
        rows, columns = (
            ((np.arange(n) + 0.5) * old / n).astype(int) for n, old in zip(shape, plane.shape, strict=True)
        )
        return plane[np.ix_(rows, columns)]

    def _grey(self, axis: int) -> np.ndarray:
        return np.repeat(self._cut(self.image, axis)[..., None], 3, axis=-1)  # (h, w, 3)

    def _painted(self, axis: int, labels: np.ndarray, hatch: bool) -> np.ndarray:
        picture, plane = self._grey(axis), self._cut(labels, axis)
        edge = _edges(plane)
        for leaf in np.unique(plane):
            if 0 < leaf < self.num_leaves:
                colour = _rgb(leaf_colour(int(leaf)))
                inside = plane == leaf
                picture[inside] = 0.4 * picture[inside] + 0.6 * colour
                picture[inside & edge] = colour
        return _hatched(picture, self._cut(self.uncertain, axis)) if hatch else picture

    def _error_view(self, axis: int, method: int) -> np.ndarray:
        picture = _hatched(self._grey(axis), self._cut(self.uncertain, axis))
        plane = self._cut(self.errors[method], axis)
        for kind, colour in enumerate(ERROR_COLOURS.values(), start=1):
            picture[plane == kind] = _rgb(colour)
        return picture

    def _picture(self, view: Callable[[int], np.ndarray]) -> str:
        """The views side by side on black, as a data URI."""
        panels = [view(axis) for axis in range(len(self.views))]
        height = max(panel.shape[0] for panel in panels)
        strips = []
        for panel in panels:
            above = (height - panel.shape[0]) // 2
            strips.append(np.pad(panel, ((above, height - panel.shape[0] - above), (2, 2), (0, 0))))
        buffer = io.BytesIO()
        imsave(buffer, np.clip(np.concatenate(strips, axis=1), 0, 255).astype(np.uint8), format="png")
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _oriented(path: str | Path) -> sitk.Image:
    """Left-posterior-superior axes, so that every case is shown the same way up."""
    image = read_image(path)
    return sitk.DICOMOrient(image, "LPS") if image.GetDimension() == 3 else image


def _crop(labels: Sequence[np.ndarray]) -> tuple[slice, ...]:
    """The box around everything that is labelled anywhere; the whole image if nothing is."""
    crop = []
    for axis in range(3):
        others = tuple(other for other in range(3) if other != axis)
        used = np.flatnonzero(np.any([(array != 0).any(axis=others) for array in labels], axis=0))
        size = labels[0].shape[axis]
        crop.append(slice(max(0, used[0] - MARGIN), min(size, used[-1] + 1 + MARGIN)) if len(used) else slice(0, size))
    return tuple(crop)


def _error_kinds(reference: np.ndarray, prediction: np.ndarray, membership: np.ndarray) -> np.ndarray:
    """0 where the prediction may be right, else 1 missed, 2 invented, 3 wrong leaf (as in ERROR_COLOURS)."""
    num_values, num_leaves = membership.shape
    kinds = np.zeros((num_values, num_leaves), np.uint8)
    kinds[~membership] = 3
    kinds[~membership[:, 0], 0] = 1
    only_background = membership[:, 0] & (membership.sum(1) == 1)
    kinds[only_background, 1:] = 2
    return kinds[reference, prediction]


def _background(path: Path | None, like: sitk.Image, crop: tuple[slice, ...], shape: tuple[int, ...]) -> np.ndarray:
    """The image as grey values 0..255; dark grey if there is none on the same grid."""
    plain = np.full(shape, 40.0)
    if path is None:
        return plain
    image = _oriented(path)
    if geometry_difference(image, like):
        return plain
    array = np.nan_to_num(sitk.GetArrayFromImage(image).astype(np.float64))
    if image.GetNumberOfComponentsPerPixel() > 1:
        array = array.mean(axis=-1)
    array = (array if array.ndim == 3 else array[None])[crop]
    low, high = np.percentile(array, [0.5, 99.5])
    return np.clip((array - low) / ((high - low) or 1), 0, 1) * 255


def _edges(plane: np.ndarray) -> np.ndarray:
    edge = np.zeros(plane.shape, bool)
    for axis in (0, 1):
        for step in (1, -1):
            edge |= np.roll(plane, step, axis) != plane
    return edge


def _hatched(picture: np.ndarray, region: np.ndarray) -> np.ndarray:
    """Diagonal stripes, white beside black, so that they show on any grey."""
    phase = np.add.outer(np.arange(picture.shape[0]), np.arange(picture.shape[1])) % 10
    for phases, grey in (((0, 1), 235.0), ((2,), 20.0)):
        stripe = region & np.isin(phase, phases)
        picture[stripe] = 0.35 * picture[stripe] + 0.65 * grey
    return picture


def _rgb(colour: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(colour.removeprefix("#")), np.uint8).astype(float)
