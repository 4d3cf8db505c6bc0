"""Predictions of the test cases, and their scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
from scipy.ndimage import label as components

SLICES = 16  # that a network sees at once


@dataclass(frozen=True)
class TestImage:
    """A test case as the network sees it, and what is known about it, all on the cropped grid."""

    name: str
    group: str
    data: torch.Tensor  # (channels, z, y, x)
    reference: np.ndarray  # (z, y, x)


def test_images(trainer: Any, raw: Path, cases: dict[str, Any]) -> list[TestImage]:
    """Test cases after nnU-Net's preprocessing. All cases of a study have one spacing."""
    preprocessor = trainer.configuration_manager.preprocessor_class(verbose=False)
    images = []
    for name, case in sorted(cases.items()):
        if not case["test"]:
            continue
        channels = sorted((raw / "imagesTs").glob(f"{name}_*.nii.gz"))
        data, reference, _ = preprocessor.run_case(
            [str(path) for path in channels],
            str(raw / "labelsTs" / f"{name}.nii.gz"),
            trainer.plans_manager,
            trainer.configuration_manager,
            trainer.dataset_json,
        )
        tensor = torch.as_tensor(np.asarray(data), dtype=torch.float32)
        # -1 marks what nnU-Net's crop shows outside of the head
        truth = np.maximum(np.asarray(reference)[0], 0).astype(np.int64)
        images.append(TestImage(name, case["group"], tensor, truth))
    return images


@torch.no_grad()
def logits_of(trainer: Any, data: torch.Tensor) -> torch.Tensor:
    """Logits `(C, z, y, x)`: whole slices in two dimensions, nnU-Net's sliding window in three."""
    trainer.network.eval()
    trainer.set_deep_supervision_enabled(False)
    if len(trainer.configuration_manager.patch_size) == 2:
        logits = _whole_slices(trainer, data)
    else:
        logits = predictor_of(trainer).predict_sliding_window_return_logits(data)
    trainer.set_deep_supervision_enabled(trainer.enable_deep_supervision)
    trainer.network.train()
    return logits.float()


def predictor_of(trainer: Any) -> nnUNetPredictor:
    """nnU-Net's predictor for a network in memory, without mirroring."""
    predictor = nnUNetPredictor(0.75, True, False, device=torch.device("cpu"), allow_tqdm=False)
    weights = [trainer.network.state_dict()]
    managers = (trainer.plans_manager, trainer.configuration_manager)
    predictor.manual_initialization(
        trainer.network, *managers, weights, trainer.dataset_json, "", None
    )
    return predictor


def predict(trainer: Any, images: Iterable[Path], target: Path) -> None:
    """Write nnU-Net's segmentation of every image (one channel) on the grid of the image."""
    trainer.set_deep_supervision_enabled(False)
    predictor = predictor_of(trainer)
    reader = trainer.plans_manager.image_reader_writer_class()
    for path in images:
        image, properties = reader.read_images([str(path)])
        segmentation = predictor.predict_single_npy_array(image, properties)
        name = path.name.replace("_0000", "")
        reader.write_seg(segmentation, str(target / name), properties)


def _whole_slices(trainer: Any, data: torch.Tensor) -> torch.Tensor:
    patch = trainer.configuration_manager.patch_size
    step = 2 ** (len(trainer.configuration_manager.pool_op_kernel_sizes) - 1)
    padding: list[int] = []
    for size, least in zip(data.shape[:1:-1], patch[::-1], strict=True):
        width = max(least, -(-size // step) * step) - size
        padding += [width // 2, width - width // 2]
    padded = F.pad(data, padding).movedim(1, 0)  # (z, channels, y, x)
    logits = torch.cat([trainer.network(part) for part in padded.split(SLICES)])
    left, _, top, _ = padding
    height, width = data.shape[2:]
    return logits[:, :, top : top + height, left : left + width].movedim(0, 1)


def segmentation_of(trainer: Any, data: torch.Tensor) -> np.ndarray:
    manager = trainer.label_manager
    return np.asarray(manager.convert_logits_to_segmentation(logits_of(trainer, data)))


def scores_of(
    predicted: np.ndarray, reference: np.ndarray, names: tuple[str, ...]
) -> dict[str, dict[str, float | None]]:
    """Dice in %, the false islands (components of the prediction that touch nothing of the label),
    and the predicted voxels that are another label. Voxels of a natural gap (the value after the
    last label) count nowhere.
    """
    known = reference <= len(names)
    scores = {}
    for value, name in enumerate(names, 1):
        mask = (predicted == value) & known
        truth = reference == value
        total = int(mask.sum() + truth.sum())
        numbered, count = components(predicted == value)
        right = np.unique(numbered[truth | ~known])
        sizes = np.bincount(numbered.ravel(), minlength=count + 1)
        sizes[0] = 0
        sizes[right] = 0
        scores[name] = {
            "dice": round(200 * int((mask & truth).sum()) / total, 3) if total else None,
            "islands": int((sizes > 0).sum()),
            "island_voxels": int(sizes.sum()),
            "confused": int((mask & ~truth & (reference > 0)).sum()),
        }
    return scores


def average(cases: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Mean Dice over labels, then over cases, by group and by label."""
    dice = {
        case: [
            np.nan if row["scores"][n]["dice"] is None else row["scores"][n]["dice"] for n in names
        ]
        for case, row in cases.items()
    }
    groups = sorted({row["group"] for row in cases.values()})
    table = np.array(list(dice.values()), float)
    member = np.array([row["group"] for row in cases.values()])
    return {
        "dice": round(float(np.nanmean(np.nanmean(table, 1))), 3),
        "groups": {
            g: round(float(np.nanmean(np.nanmean(table[member == g], 1))), 3) for g in groups
        },
        "labels": dict(zip(names, np.round(np.nanmean(table, 0), 3).tolist(), strict=True)),
    }
