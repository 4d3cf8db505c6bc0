"""A case to be drawn: reference, predictions and image on one grid, and the slices that say
most.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy

from nnunet_labelset.contract import Protocol
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.counts import look_up
from nnunet_labelset.evaluation.scores import checked_labels
from nnunet_labelset.io.place import Place, geometry_difference
from nnunet_labelset.io.volume import Volume, oriented, read_voxels
from nnunet_labelset.nnunet.names import FIRST_CHANNEL
from nnunet_labelset.report.colours import ERROR_KINDS

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
        crop = _box(foreground)
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


def _box(mask: np.ndarray) -> tuple[slice, ...]:
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
