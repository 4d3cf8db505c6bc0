"""Flat pictures with label maps, as cameras and annotation tools write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from skimage import io

SHAPE = (32, 40)  # (y, x)
MANIFEST = """
leaves = ["background", "artery", "vein"]
channels = {channels}

[sources.eyes]
folder = "eyes"
image = "images/{{case}}{ending}"
label = "labels/{{case}}{ending}"
{keys}

[sources.eyes.labels]
1 = "artery"
2 = "vein"
3 = ["artery", "vein"]
"""


def random_picture(seed: int = 0, colours: int = 3) -> np.ndarray:
    shape = (*SHAPE, colours) if colours > 1 else SHAPE
    return np.random.default_rng(seed).integers(0, 255, shape).astype(np.uint8)


def vessels() -> np.ndarray:
    labels = np.zeros(SHAPE, np.uint8)
    labels[4:8, 5:30] = 1
    labels[15:20, 5:30] = 2
    labels[25:28, 5:30] = 3
    return labels


def write_picture(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    io.imsave(str(path), array, check_contrast=False)
    return path


def write_eyes(folder: Path, ending: str = ".png", cases=("a", "b"), colours: int = 3) -> Path:
    """Write photographs and label maps; returns the manifest beside them."""
    for seed, case in enumerate(cases):
        picture = random_picture(seed, colours)
        write_picture(folder / "eyes" / "images" / f"{case}{ending}", picture)
        write_picture(folder / "eyes" / "labels" / f"{case}{ending}", vessels())
    return write_manifest(folder, ending, colours)


def write_manifest(folder: Path, ending: str = ".png", colours: int = 3, keys: str = "") -> Path:
    channels = '["R", "G", "B"]' if colours == 3 else '["grey"]'
    text = MANIFEST.format(channels=channels, ending=ending, keys=keys)
    (folder / "eyes.toml").write_text(text)
    return folder / "eyes.toml"
