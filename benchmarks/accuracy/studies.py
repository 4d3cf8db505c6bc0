"""The data of the benchmarks: which cases are complete, what the others lack, and which are the
test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.study.phantom.data import demo_cases
from nnunet_labelset.study.phantom.volume import LEAVES, SPACING, make_volume

BACKGROUND = "background"


@dataclass(frozen=True)
class Case:
    """A training or test case; `uncertain` are the leaves that an unannotated voxel may be."""

    name: str
    image: np.ndarray
    labels: np.ndarray
    spacing: tuple[float, ...]
    uncertain: tuple[str, ...] = ()
    group: str = "all"
    is_test: bool = False


@dataclass(frozen=True)
class Study:
    """A data set with the network that a CPU trains on it in minutes."""

    leaves: tuple[str, ...]
    cases: Callable[[Path], Iterator[Case]]
    patch: tuple[int, int, int]
    features: tuple[int, ...]
    mirror: tuple[int, ...] | None
    channel: str
    tolerance: float


def read(
    path: Path, spacing: float | None = None, is_label: bool = False
) -> tuple[np.ndarray, tuple[float, ...]]:
    """An array `(z, y, x)` and its spacing, on a coarser grid if one is given."""
    image = sitk.ReadImage(str(path))
    if spacing is not None:
        size = [
            round(n * s / spacing) for n, s in zip(image.GetSize(), image.GetSpacing(), strict=True)
        ]
        if not is_label:  # what the coarse grid cannot show is smoothed away
            image = sitk.SmoothingRecursiveGaussian(
                sitk.Cast(image, sitk.sitkFloat32), spacing / 2.355
            )
        interpolator = sitk.sitkNearestNeighbor if is_label else sitk.sitkLinear
        grid = (image.GetOrigin(), [spacing] * 3, image.GetDirection())
        image = sitk.Resample(
            image, size, sitk.Transform(), interpolator, *grid, 0, image.GetPixelID()
        )
    return sitk.GetArrayFromImage(image), image.GetSpacing()[::-1]


def hippocampus(folder: Path, swap: bool = False, complete: bool = False) -> Iterator[Case]:
    """60 test cases; of 100, every tenth complete (or all), the others anterior only, posterior
    only, or merged.
    """
    unknown = {
        1: (BACKGROUND, "posterior"),
        2: (BACKGROUND, "anterior"),
        3: ("anterior", "posterior"),
    }
    paths = sorted((folder / "images").glob("*.nii.gz"))[:160]
    for i, path in enumerate(reversed(paths) if swap else paths):
        image, spacing = read(path)
        labels, _ = read(folder / "labels" / path.name, is_label=True)
        kind = 0 if complete or i >= 100 or i % 10 == 0 else 1 + i % 3
        hidden = {0: np.zeros_like(labels, bool), 1: labels != 1, 2: labels != 2, 3: labels > 0}[
            kind
        ]
        labels = np.where(hidden, 3, labels).astype(np.uint8)
        yield Case(
            path.name[:-7],
            image.astype(np.float32),
            labels,
            spacing,
            unknown.get(kind, ()),
            is_test=i >= 100,
        )


ORGANS = (
    "Brainstem",
    "SpinalCord",
    "RightParotid",
    "LeftParotid",
    "Esophagus",
    "Larynx",
    "Mandible",
)


def openkbp(folder: Path, swap: bool = False) -> Iterator[Case]:
    """Natural gaps, no mask: what is not drawn is background or a missing organ. Half of the
    complete are the test.
    """
    complete = 0
    for path in sorted(folder.glob("pt_*"), key=lambda path: int(path.name[3:])):
        image, spacing = read(path / "ct.nii.gz", 5.0)
        missing = [organ for organ in ORGANS if not (path / f"{organ}.nii.gz").is_file()]
        complete += not missing
        labels = np.full(image.shape, len(ORGANS) + 1 if missing else 0, np.uint8)
        for value, organ in enumerate(ORGANS, 1):
            if organ not in missing:
                labels[read(path / f"{organ}.nii.gz", 5.0, is_label=True)[0] > 0] = value
        is_test = not missing and complete % 2 == swap
        uncertain = (BACKGROUND, *missing) if missing else ()
        yield Case(path.name, image.astype(np.float32), labels, spacing, uncertain, is_test=is_test)


TISSUES = LEAVES[1:]
COMPLETE = ("GA21_notoperated", "GA22_notoperated", "GA24_notoperated")
TEST = (
    "GA23_notoperated",
    "GA25_notoperated",
    *(f"GA{week}_operated" for week in (26, 28, 30, 32, 34)),
)


def fetal(folder: Path) -> Iterator[Case]:
    """3 complete normal cases; the other population as in the paper: three tissues, rarely CSF or
    corpus callosum.
    """
    partial = 0
    for path in sorted(path.parent for path in folder.glob("*/parcellation.nii.gz")):
        name = path.name.removeprefix("fetal_SB_atlas_")
        image, spacing = read(path / "srr.nii.gz", 2.4)
        labels, _ = read(path / "parcellation.nii.gz", 2.4, is_label=True)
        mask = (read(path / "mask.nii.gz", 2.4, is_label=True)[0] > 0) | (labels > 0)
        withheld: tuple[str, ...] = ()
        if name not in COMPLETE + TEST:
            extra = {1: "external_csf", 3: "corpus_callosum", 4: "external_csf"}.get(partial)
            withheld = tuple(tissue for tissue in TISSUES[3:] if tissue != extra)
            partial += 1
            hidden = mask & (
                (labels == 0) | np.isin(labels, [TISSUES.index(tissue) + 1 for tissue in withheld])
            )
            labels = np.where(hidden, len(TISSUES) + 1, labels)
        group = "spina bifida, operated" if name.endswith("_operated") else "not operated"
        labels = labels.astype(np.uint8)
        yield Case(
            name, image.astype(np.float32), labels, spacing, withheld, group, is_test=name in TEST
        )


def phantom(_: Path | None) -> Iterator[Case]:
    """The brains of `make demo`: 8 complete normal cases, 12 partial ones of both populations, 12
    test cases.
    """
    for seed, case in enumerate(demo_cases()):
        image, labels, mask = make_volume(case.age, seed, case.spina_bifida, case.centre)
        withheld = tuple(tissue for tissue in TISSUES if tissue not in case.annotated)
        if withheld:
            drawn = np.isin(labels, [TISSUES.index(tissue) + 1 for tissue in case.annotated])
            labels = np.where((mask > 0) & ~drawn, len(TISSUES) + 1, labels).astype(np.uint8)
        group = "spina bifida" if case.spina_bifida else "normal"
        spacing, is_test = (SPACING,) * 3, case.folder in ("test", "feta")
        yield Case(case.name.replace("-", "_"), image, labels, spacing, withheld, group, is_test)


STUDIES = {
    "hippocampus": Study(
        ("anterior", "posterior"), hippocampus, (24, 32, 24), (16, 32, 64), (2,), "MRI", 1.0
    ),
    "openkbp": Study(ORGANS, openkbp, (32, 48, 40), (16, 32, 64, 128), None, "CT", 5.0),
    "fetal": Study(TISSUES, fetal, (24, 32, 24), (16, 32, 64, 128), (2,), "T2", 2.4),
    "phantom": Study(TISSUES, phantom, (24, 32, 24), (12, 24, 48, 64), (2,), "T2", 2.4),
}
# What all annotations together would give.
STUDIES["hippocampus_complete"] = replace(
    STUDIES["hippocampus"], cases=partial(hippocampus, complete=True)
)
# Other test cases: cases that were for training before.
STUDIES["hippocampus_swapped"] = replace(
    STUDIES["hippocampus"], cases=partial(hippocampus, swap=True)
)
STUDIES["openkbp_swapped"] = replace(STUDIES["openkbp"], cases=partial(openkbp, swap=True))
# Patches that show few organs at a time, as those of whole-body images.
STUDIES["openkbp_patches"] = replace(STUDIES["openkbp"], patch=(16, 24, 24), features=(16, 32, 64))
