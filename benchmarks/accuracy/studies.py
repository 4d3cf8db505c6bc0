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
from scipy.ndimage import gaussian_filter

from nnunet_labelset.study.phantom.data import demo_cases
from nnunet_labelset.study.phantom.volume import LEAVES, SPACING, make_volume

BACKGROUND = "background"


@dataclass(frozen=True)
class Case:
    """A training or test case, its arrays `(z, y, x)`, the image of a photograph `(c, z, y, x)`.

    labels: with gaps, whose value is one more than the highest label.
    uncertain: the labels that a voxel of a gap may have.
    truth: the labels without gaps; None if nobody drew them.
    vouched: every label was drawn, although some voxels are uncertain.
    """

    name: str
    image: np.ndarray
    labels: np.ndarray
    spacing: tuple[float, ...]
    uncertain: tuple[str, ...] = ()
    group: str = "all"
    is_test: bool = False
    truth: np.ndarray | None = None
    vouched: bool = False

    @property
    def is_complete(self) -> bool:
        return self.vouched or not self.uncertain

    @property
    def protocol(self) -> str:
        return "complete" if self.is_complete else "+".join(self.uncertain)


@dataclass(frozen=True)
class Study:
    """A data set with the network that a CPU trains on it in minutes."""

    leaves: tuple[str, ...]
    cases: Callable[[Path], Iterator[Case]]
    patch: tuple[int, ...]  # two numbers: slices
    features: tuple[int, ...]
    mirror: tuple[int, ...] | None
    channel: str
    tolerance: float
    batch: int = 2
    channels: int = 1
    has_truth: bool = True  # of the training cases: what full annotation would give is known
    has_natural_gaps: bool = False  # the truth is uncertain, too

    @property
    def configuration(self) -> str:
        return "2d" if len(self.patch) == 2 else "3d_fullres"


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


def hippocampus(folder: Path, swap: bool = False) -> Iterator[Case]:
    """60 test cases; of 100, every tenth complete, the others anterior only, posterior only, or
    merged.
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
        kind = 0 if i >= 100 or i % 10 == 0 else 1 + i % 3
        hidden = {0: np.zeros_like(labels, bool), 1: labels != 1, 2: labels != 2, 3: labels > 0}[
            kind
        ]
        yield Case(
            path.name[:-7],
            image.astype(np.float32),
            np.where(hidden, 3, labels).astype(np.uint8),
            spacing,
            unknown.get(kind, ()),
            is_test=i >= 100,
            truth=labels.astype(np.uint8),
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


PAROTIDS = ("RightParotid", "LeftParotid")


def parotids(folder: Path) -> Iterator[Case]:
    """One side each: of the cases with both parotids every third is a test case; of the others one
    half shows the right one only, the other half the left one. The files call the axis from side to
    side y; here it is x, as the direction of the images says.
    """
    paths = sorted(folder.glob("pt_*"), key=lambda path: int(path.name[3:]))
    paths = [
        path for path in paths if all((path / f"{side}.nii.gz").is_file() for side in PAROTIDS)
    ]
    for i, path in enumerate(paths):
        image, spacing = read(path / "ct.nii.gz", 5.0)
        truth = np.zeros(image.shape, np.uint8)
        for value, side in enumerate(PAROTIDS, 1):
            truth[read(path / f"{side}.nii.gz", 5.0, is_label=True)[0] > 0] = value
        is_test = i % 3 == 0
        shown = i % 3  # 1 or 2 in training cases
        labels = truth if is_test else np.where(truth == shown, shown, 3).astype(np.uint8)
        uncertain = () if is_test else (BACKGROUND, PAROTIDS[2 - shown])
        yield Case(
            path.name,
            image.astype(np.float32).swapaxes(1, 2),
            labels.swapaxes(1, 2),
            spacing,
            uncertain,
            is_test=is_test,
            truth=truth.swapaxes(1, 2),
        )


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
        truth = labels.astype(np.uint8)
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
        yield Case(
            name,
            image.astype(np.float32),
            labels.astype(np.uint8),
            spacing,
            withheld,
            group,
            is_test=name in TEST,
            truth=truth,
        )


def phantom(_: Path | None) -> Iterator[Case]:
    """The brains of `make demo`: 8 complete normal cases, 12 partial ones of both populations, 12
    test cases.
    """
    for seed, case in enumerate(demo_cases()):
        image, labels, mask = make_volume(case.age, seed, case.spina_bifida, case.centre)
        truth = labels
        withheld = tuple(tissue for tissue in TISSUES if tissue not in case.annotated)
        if withheld:
            drawn = np.isin(labels, [TISSUES.index(tissue) + 1 for tissue in case.annotated])
            labels = np.where((mask > 0) & ~drawn, len(TISSUES) + 1, labels).astype(np.uint8)
        yield Case(
            case.name.replace("-", "_"),
            image,
            labels,
            (SPACING,) * 3,
            withheld,
            "spina bifida" if case.spina_bifida else "normal",
            is_test=case.folder in ("test", "feta"),
            truth=truth,
        )


ORGAN = "cerebellum"  # what the second scanner never shows as annotated
SITE_TISSUES = ("white_matter", "ventricles", ORGAN, "deep_gray_matter", "brainstem")


def another_scanner(image: np.ndarray, seed: int) -> np.ndarray:
    """Brighter in the dark, blurred and noisy inside of the head; dark stays darker than bright."""
    top = image.max()
    softer = gaussian_filter((image / top) ** 0.6, 0.7)
    noise = np.random.default_rng(seed).normal(0, 0.04, image.shape)
    return np.where(image > 0, np.maximum(top * (softer + noise), 1), 0)


def inverted(image: np.ndarray, seed: int) -> np.ndarray:
    """Another sequence: dark is bright inside of the head."""
    return np.where(image > 0, np.maximum(image.max() * 1.1 - image, 1), 0)


def sites(
    _: Path | None, look: Callable[[np.ndarray, int], np.ndarray] = another_scanner
) -> Iterator[Case]:
    """The gap follows the site: 8 complete cases of scanner A; 16 of scanner B, which looks
    different and whose hospital never drew the cerebellum. No mask: a voxel of the head that nobody
    drew is background or cerebellum. 6 test cases of each scanner.
    """
    values = np.zeros(len(LEAVES), np.uint8)
    for value, tissue in enumerate(SITE_TISSUES, 1):
        values[LEAVES.index(tissue)] = value
    organ = SITE_TISSUES.index(ORGAN) + 1
    numbers = {"A": (8, 6), "B": (16, 6)}
    for scanner, (training, test) in numbers.items():
        for i in range(training + test):
            is_test = i >= training
            age = 22 + 12 * (i / training if not is_test else (i - training) / test)
            seed = 5000 + 1000 * (scanner == "B") + i
            image, labels, _ = make_volume(age, seed)
            if scanner == "B":
                image = look(image, seed)
            truth = values[labels]
            gaps = scanner == "B" and not is_test
            # Air is known to be background. nnU-Net normalises inside of the head, which it tells
            # from air by label 0: a gap in the air would give training images other intensities.
            is_open = (image > 0) & ((truth == 0) | (truth == organ))
            drawn = truth if not gaps else np.where(is_open, 6, truth)
            yield Case(
                f"site{scanner}_{i:02d}",
                image.astype(np.float32),
                drawn.astype(np.uint8),
                (SPACING,) * 3,
                (BACKGROUND, ORGAN) if gaps else (),
                f"scanner {scanner}",
                is_test=is_test,
                truth=truth,
            )


VESSELS = ("artery", "vein")


def retina(folder: Path) -> Iterator[Case]:
    """Fundus photographs of two cameras: 8 show arteries and veins, 37 of both cameras vessels only
    ({artery, vein}). 7 and 15 test cases. Crossings are {artery, vein} in all of them.
    """
    for camera, test in (("les", 7), ("hrf", 15)):
        paths = sorted((folder / camera / "images").glob("*.png"))
        for i, path in enumerate(paths):
            image = np.moveaxis(sitk.GetArrayFromImage(sitk.ReadImage(str(path))), -1, 0)
            truth = sitk.GetArrayFromImage(
                sitk.ReadImage(str(folder / camera / "labels" / path.name))
            )
            is_test = i >= len(paths) - test
            complete = is_test or (camera == "les" and i < 8)
            labels = truth if complete else np.where(truth > 0, 3, 0)
            yield Case(
                path.stem,
                image[:, None].astype(np.float32),
                labels[None].astype(np.uint8),
                (999.0, 1.0, 1.0),
                VESSELS,
                camera,
                is_test=is_test,
                truth=truth[None].astype(np.uint8),
                vouched=complete,
            )


STUDIES = {
    "hippocampus": Study(
        ("anterior", "posterior"), hippocampus, (24, 32, 24), (16, 32, 64), (2,), "MRI", 1.0
    ),
    "openkbp": Study(
        ORGANS, openkbp, (32, 48, 40), (16, 32, 64, 128), None, "CT", 5.0, has_truth=False
    ),
    "fetal": Study(TISSUES, fetal, (24, 32, 24), (16, 32, 64, 128), (2,), "T2", 2.4),
    "phantom": Study(TISSUES, phantom, (24, 32, 24), (12, 24, 48, 64), (2,), "T2", 2.4),
}
# Other test cases: cases that were for training before.
STUDIES["hippocampus_swapped"] = replace(
    STUDIES["hippocampus"], cases=partial(hippocampus, swap=True)
)
STUDIES["openkbp_swapped"] = replace(STUDIES["openkbp"], cases=partial(openkbp, swap=True))
# Patches that show few organs at a time, as those of whole-body images.
STUDIES["openkbp_patches"] = replace(STUDIES["openkbp"], patch=(16, 24, 24), features=(16, 32, 64))

# Slices with small networks: nnU-Net's own optimiser reaches its plateau in minutes.
SMALL = (12, 24, 48, 96)
STUDIES["hippocampus_2d"] = replace(
    STUDIES["hippocampus"], patch=(56, 40), features=SMALL, mirror=(1,), batch=4
)
# For nnU-Net's 250,000 steps: `--regime full`.
STUDIES["hippocampus_tiny"] = replace(STUDIES["hippocampus_2d"], features=(8, 16, 32), batch=2)
STUDIES["openkbp_2d"] = replace(STUDIES["openkbp"], patch=(48, 48), features=SMALL, batch=4)
STUDIES["fetal_2d"] = replace(
    STUDIES["fetal"], patch=(56, 48), features=SMALL, mirror=(1,), batch=4
)
STUDIES["phantom_2d"] = replace(
    STUDIES["phantom"], patch=(56, 48), features=SMALL, mirror=(1,), batch=4
)
STUDIES["sites_2d"] = Study(SITE_TISSUES, sites, (56, 48), SMALL, (1,), "T2", 2.4, batch=4)
STUDIES["sites_inverted_2d"] = replace(STUDIES["sites_2d"], cases=partial(sites, look=inverted))
STUDIES["parotids_2d"] = replace(
    STUDIES["openkbp_2d"], leaves=PAROTIDS, cases=parotids, has_truth=True
)
STUDIES["retina_2d"] = Study(
    VESSELS, retina, (96, 96), SMALL, (0, 1), "RGB", 1.0, 4, channels=3, has_natural_gaps=True
)
