"""A seeded phantom: small T2 volumes that look like fetal brains, with the eight tissues of the
paper.

Shapes are drawn analytically in millimetres of a brain of 34 weeks, on a grid twice as fine as
asked for; averaging it gives partial volume. x is left-right, y grows to the front, z upwards;
arrays are (z, y, x).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy.ndimage import gaussian_filter

from nnunet_labelset.study.phantom.shapes import (
    average_blocks,
    capsule,
    depth_inside,
    ellipsoid,
    smooth_noise,
)

LEAVES = (
    "background",
    "white_matter",
    "ventricles",
    "cerebellum",
    "external_csf",
    "cortical_gray_matter",
    "deep_gray_matter",
    "brainstem",
    "corpus_callosum",
)
WM, VENTRICLES, CEREBELLUM, CSF, CORTEX, DEEP, BRAINSTEM, CALLOSUM = range(1, 9)
SHAPE = (48, 56, 48)
SPACING = 2.4
FINE = 2
REACH = (58, 62, 52)  # of the brain and what surrounds it from the middle, in 34-week millimetres
YOUNGEST, OLDEST = 21.0, 35.0
# Mean intensities of the leaves, near those of a fetal atlas.
INTENSITY = np.array([0, 1900, 2680, 1960, 2430, 1480, 1640, 1600, 1420], np.float32)
# Lateral ventricle as a chain of (x, y, z, radius): frontal horn, body, atrium, occipital horn;
# then the temporal horn.
LATERAL = (
    (6.5, 20, 6, 3.2),
    (6.5, 8, 10.5, 3.6),
    (9, -10, 11, 4.4),
    (15, -22, 6, 6.5),
    (15, -34, 3, 3.8),
)
TEMPORAL = ((15, -20, 4, 5.0), (21, -10, -7, 2.4), (24, 6, -12, 1.8))


def make_volume(
    age: float,
    seed: int,
    spina_bifida: bool = False,
    centre: int = 0,
    shape: Sequence[int] = SHAPE,
    spacing: float = SPACING,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image (float32), label map (uint8, values as in `LEAVES`) and brain mask (uint8), arrays (z,
    y, x).

    `age` is in weeks of gestation (21 to 35). The seed makes the individual; the centre makes
    contrast, bias field and noise. Spina bifida means large ventricles, a small cerebellum pulled
    down, and little external CSF.
    """
    age = float(np.clip(age, YOUNGEST, OLDEST))
    rng = np.random.default_rng([seed, int(spina_bifida)])
    millimetres = spacing / FINE
    growth = (age - YOUNGEST) / (OLDEST - YOUNGEST)
    scale = (0.68 + 0.23 * growth) * rng.normal(1, 0.02)
    box = tuple(  # only where the brain is
        slice(max(0, size // 2 - half), min(size, size // 2 + half))
        for size, half in zip(
            shape, (int(np.ceil(reach * scale / spacing)) for reach in REACH), strict=True
        )
    )
    axes = [
        (np.arange(FINE * part.start, FINE * part.stop, dtype=np.float32) - (FINE * size - 1) / 2)
        * millimetres
        / scale
        for size, part in zip(shape, box, strict=True)
    ]
    points = _individual_space(rng, axes)
    labels, brain = _draw(points, rng, growth, spina_bifida, millimetres, scale)
    # (C - 1, z, y, x)
    share = np.stack([average_blocks(labels == leaf, FINE) for leaf in range(1, len(LEAVES))])
    image, label, mask = (
        np.zeros(shape, np.float32),
        np.zeros(shape, np.uint8),
        np.zeros(shape, np.uint8),
    )
    mask[box] = average_blocks(brain, FINE) >= 0.5
    label[box] = (1 + share.argmax(0)) * mask[box]
    image[box] = _acquire(labels, brain, rng, growth, centre, millimetres)
    return image, label, mask


def _individual_space(rng: np.random.Generator, axes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Coordinates x, y, z of a 34-week brain for every voxel: turned a little, stretched, and
    smoothly bent.
    """
    shape, step = [len(axis) for axis in axes], float(axes[0][1] - axes[0][0])
    z, y, x = np.meshgrid(*axes, indexing="ij", sparse=True)
    angles = rng.normal(0, np.radians(4), 3)
    rotation = np.eye(3)
    for axis, angle in enumerate(angles):
        i, j = (axis + 1) % 3, (axis + 2) % 3
        turn = np.eye(3)
        turn[[i, j], [i, j]] = np.cos(angle)
        turn[i, j], turn[j, i] = -np.sin(angle), np.sin(angle)
        rotation = rotation @ turn
    matrix = (rotation * rng.normal(1, 0.025, 3)).astype(np.float32)
    # of the brain with its stem, so that it lies in the middle of the grid
    middle = (0.0, 0.0, -6.0)
    return [
        row[0] * x + row[1] * y + row[2] * z + shift + 0.8 * smooth_noise(rng, shape, 26 / step)
        for row, shift in zip(matrix, middle, strict=True)
    ]


def _draw(
    points: Sequence[np.ndarray],
    rng: np.random.Generator,
    growth: float,
    spina_bifida: bool,
    millimetres: float,
    scale: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The label map and the brain mask on the fine grid."""
    x, y, z = points
    side = np.abs(x)
    width = 39 - 4 * np.clip(y / 50, -1, 1)  # wider at the back
    height = np.where(z > 0, 40, 21).astype(np.float32)
    shell = ((side / width) ** 2.3 + np.abs(y / 51) ** 2.3 + np.abs(z / height) ** 2.3) ** (1 / 2.3)
    temporal = np.sqrt(((side - 23) / 13) ** 2 + ((y - 7) / 25) ** 2 + ((z + 13) / 14) ** 2)
    depth = np.maximum((1 - shell) * 40, (1 - temporal) * 14)
    # 1 at the top of the callosum
    arch = np.sqrt(((y - 2) / 27) ** 2 + ((z - 1) / np.where(z > 1, 18.5, 26)) ** 2)

    folds = smooth_noise(rng, x.shape, 9.5 * scale / millimetres)
    sulci = depth < (1 + 9 * growth) * (0.6 if spina_bifida else 1) * (1 - np.abs(folds) / 0.5)
    opercula = (
        (side > 25 + 5 * growth) & (np.abs(z + 4 - 0.15 * y) < 2.6 - growth) & (np.abs(y - 4) < 19)
    )
    fissure = (side < (0.9 if spina_bifida else 1.5)) & (arch > 1)
    cistern = (side < 9) & (z < -9)
    cerebrum = (depth > 0) & ~sulci & ~opercula & ~fissure & ~cistern

    # a cortex thinner than a voxel could not be drawn
    ribbon = max(2 + 0.4 * growth, 2.2 * millimetres)
    labels = np.zeros(x.shape, np.uint8)
    labels[cerebrum] = WM
    # Where the hemispheres join each other and the stem there is no cortex.
    core = (side < 15) & ((arch < 1.02) | ((np.abs(y) < 18) & (z < 2)))
    labels[cerebrum & (depth_inside(cerebrum, millimetres) < ribbon) & ~core] = CORTEX
    deep = ellipsoid(side, y, z, (9, -3, -2), (8, 13, 8)) | ellipsoid(
        side, y, z, (17, 5, 0), (6, 13, 9)
    )
    labels[deep & cerebrum] = DEEP

    wide = rng.normal(2.15, 0.12) if spina_bifida else rng.normal(1, 0.06)
    ventricles = (side < 1.2 * wide) & (np.abs(y) < 10) & (z > -11) & (z < 5)
    for chain in (LATERAL, TEMPORAL):
        for (*start, r0), (*end, r1) in pairwise(chain):
            ventricles |= capsule((side, y, z), start, end, r0 * wide, r1 * wide)
    ventricles |= (side < 2.5 * wide) & (arch < 0.8) & (z > 3) & (y > -14)  # cavum septi pellucidi
    labels[ventricles & cerebrum & (labels != CORTEX) & (arch < 0.99 + side / 40)] = VENTRICLES
    thick = 0.27 if spina_bifida else 0.3
    labels[
        (arch < 1.02) & (arch > 1.02 - thick * np.where(z > 1, 0.8, 0.6)) & (z > -2) & (side < 8)
    ] = CALLOSUM

    down, small = (-6.0, 0.7) if spina_bifida else (0.0, 1.0)
    little = small * rng.normal(1, 0.04)
    cerebellum = ellipsoid(
        side, y, z, (10 * small, -27, -29 + down), (14 * little, 12 * little, 11 * little)
    )
    cerebellum |= ellipsoid(
        side, y, z, (0, -25, -28 + down), (8 * little, 11 * little, 12 * little)
    )
    stem = capsule((side, y, z), (0, -4, -10), (0, -8, -26), 7, 8.5)
    stem |= capsule((side, y, z), (0, -8, -26), (0, -16, -46), 7, 4.5)
    labels[cerebellum & ~cerebrum] = CEREBELLUM
    labels[stem & (labels != DEEP)] = BRAINSTEM
    labels[capsule((side, y, z), (0, -13, -20), (0, -17, -34 + down), 2.0, 1.2)] = (
        VENTRICLES  # aqueduct, fourth
    )

    layer, closing = (0.4, 2.0) if spina_bifida else (2.0, 4.0)  # of CSF, in real millimetres
    swollen = depth_inside(labels == 0, millimetres) < layer + closing
    brain = (depth_inside(swollen, millimetres) > closing) | (labels > 0)
    labels[brain & (labels == 0)] = CSF
    return labels, brain


def _acquire(
    labels: np.ndarray,
    brain: np.ndarray,
    rng: np.random.Generator,
    growth: float,
    centre: int,
    millimetres: float,
) -> np.ndarray:
    """The image of a label map as a centre sees it: contrast, blur, partial volume, bias field and
    noise.
    """
    hospital = np.random.default_rng([4711, centre])
    contrast = hospital.normal(1, 0.025, len(LEAVES)) if centre else np.ones(len(LEAVES))
    gamma = hospital.uniform(0.8, 1.25) if centre else 1.0
    level = hospital.choice([0.2, 0.5, 1.5]) if centre else 1.0
    means = INTENSITY * contrast * np.where(np.arange(len(LEAVES)) == WM, 1.05 - 0.06 * growth, 1)
    means = 2700 * (means / 2700) ** gamma
    texture = 1 + 0.015 * smooth_noise(rng, labels.shape, 6 / millimetres)
    fine = means.astype(np.float32)[labels] * texture
    outside = depth_inside(~brain, millimetres)
    # what is left of the skull after masking
    fine += (~brain) * 700 * np.exp(-outside / 2.5) * texture
    coarse = average_blocks(gaussian_filter(fine, 0.8), FINE)
    bias = np.exp(0.06 * smooth_noise(rng, coarse.shape, max(coarse.shape) / 2))
    noise = gaussian_filter(rng.normal(0, 1, coarse.shape).astype(np.float32), 0.5) * (
        60 + 20 * (centre % 3)
    )
    inside = np.minimum(1, average_blocks(brain, FINE) + (coarse > 40))
    return (level * np.maximum(0, coarse * bias + noise) * inside).astype(np.float32)
