"""Test-time mirroring that exchanges left and right, for models trained with SwapMirroring.

nnU-Net averages over mirrored images, but keeps the outputs as they are: left would be mixed with
right. Here the outputs of the mirrored image are mirrored back and swapped. nnU-Net predicts as
always, with a network that does both by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.checkpoint_file import stored_state
from nnunet_labelset.nnunet.default_trainer import parse_prediction
from nnunet_labelset.nnunet.models import find_model, trained_folds
from nnunet_labelset.nnunet.raw import file_ending, image_files

if TYPE_CHECKING:
    from torch import Tensor, nn

VARIABLE = "nnunet_labelset_mirror"  # how `nnunet_labelset predict` tells the trainer's class
LARGEST_ANGLE = 30  # degrees between an image axis and left-right
SWAP_MIRRORING = "SwapMirroring"  # in the name of a trainer
WITHOUT = "predict with --disable_tta"


@dataclass(frozen=True)
class Mirror:
    """The axis of a patch that runs from left to right, and which output becomes which."""

    axis: int
    swap: tuple[int, ...]

    @classmethod
    def of_model(cls, model: Path) -> Mirror | None:
        """Return how a model was mirrored in training; None for one that was not, or by 0.2."""
        checkpoints = trained_folds(model.glob(f"{names.fold_name('*')}/*"))
        if not checkpoints:
            return None
        stored = stored_state(min(checkpoints.values())).get("mirror")
        return cls(axis=stored["axis"], swap=tuple(stored["swap"])) if stored else None

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Let networks that are built inside the block mirror their predictions."""
        os.environ[VARIABLE] = json.dumps(asdict(self))
        try:
            yield
        finally:
            del os.environ[VARIABLE]

    def apply(self, network: nn.Module) -> None:
        """Let the network average over the image and its mirror image.

        A hook leaves the names of the weights as they are, so that checkpoints load.
        """
        is_mirrored = False

        def average(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
            nonlocal is_mirrored
            if is_mirrored or module.training:
                return output
            is_mirrored = True
            try:
                mirrored = module(inputs[0].flip(self.axis + 2))
            finally:
                is_mirrored = False
            return (output + mirrored[:, list(self.swap)].flip(self.axis + 2)) / 2

        network.register_forward_hook(average)


def announced_mirror() -> Mirror | None:
    """Return what `Mirror.announced` said."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    content = json.loads(text)
    return Mirror(axis=content["axis"], swap=tuple(content["swap"]))


def left_right_axis(properties: Mapping[str, Any], transpose: Sequence[int]) -> int:
    """Return the axis of a preprocessed image, of 0 to 2, that runs from one side to the other.

    properties: nnU-Net's, of a case. transpose: `transpose_forward` of the plans.
    """
    if "sitk_stuff" in properties:
        direction = np.array(properties["sitk_stuff"]["direction"])
        if direction.size != 9:
            raise LabelSetError("SwapMirroring needs 3D images, which tell left from right")
        sideways = np.abs(direction.reshape(3, 3)[0])  # by axis of the image: x, y, z
    elif "nibabel_stuff" in properties:
        stored = properties["nibabel_stuff"]
        # One of nnU-Net's readers turns images before anything sees them.
        affine = np.array(stored.get("reoriented_affine", stored["original_affine"]))[:3, :3]
        sideways = np.abs(affine[0] / np.linalg.norm(affine, axis=0))
    else:
        raise LabelSetError("SwapMirroring: the image format does not tell left from right")
    if sideways.max() < np.cos(np.radians(LARGEST_ANGLE)):
        raise LabelSetError("SwapMirroring: no axis of the image runs from left to right")
    return list(transpose).index(2 - int(sideways.argmax()))


def check_images(model: Path, folder: Path, mirror: Mirror) -> None:
    """Fail if left-right is another axis of some image than in training."""
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    plans = PlansManager(read_json(model / names.PLANS))
    _, _, configuration = names.model_words(model)
    dimensions = len(plans.get_configuration(configuration).patch_size)
    reader = plans.image_reader_writer_class()
    ending = file_ending(read_json(model / names.DATASET))
    for images in image_files(folder, ending)[0].values():
        _, properties = reader.read_images([str(images[0])])
        try:
            axis = left_right_axis(properties, plans.transpose_forward) - (3 - dimensions)
        except LabelSetError as error:
            raise LabelSetError(f"{images[0]}: {error}: {WITHOUT}") from None
        if axis != mirror.axis:
            raise LabelSetError(
                f"{images[0]}: left-right is axis {axis}, but the model was trained with axis "
                f"{mirror.axis}: reorient the image, or {WITHOUT}"
            )


@contextmanager
def swapped_mirroring(arguments: Sequence[str]) -> Iterator[None]:
    """Let `nnUNetv2_predict` with these arguments mirror and swap, if the model can do it."""
    mirror = _mirror_of_prediction(arguments)
    if mirror is None:
        yield
        return
    print(f"Mirroring along axis {mirror.axis}, and left with right exchanged", flush=True)
    with mirror.announced():
        yield


def _mirror_of_prediction(arguments: Sequence[str]) -> Mirror | None:
    args = parse_prediction(arguments)
    if args is None or SWAP_MIRRORING not in (args.trainer or "") or args.disable_tta:
        return None
    model = find_model(args.dataset, args.trainer, args.plans, args.configuration)
    mirror = Mirror.of_model(model)
    if mirror is None:
        print(f"{model}: the checkpoint does not tell the axis: predicting without mirroring")
        return None
    check_images(model, Path(args.i), mirror)
    return mirror
