"""The pictures of the README, from a finished demo:  python docs/figures.py labelset_demo"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import SimpleITK as sitk  # noqa: N813
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from nnunet_labelset.report.colours import leaf_colour
from nnunet_labelset.study.demo import DATASET, METHODS
from nnunet_labelset.study.phantom.data import BASIC
from nnunet_labelset.study.phantom.volume import LEAVES

CASE = "test_spina_bifida_003"


def read(path: Path) -> np.ndarray:
    return sitk.GetArrayFromImage(sitk.ReadImage(str(path)))


def main(demo: Path, output: Path) -> None:
    raw = demo / "nnUNet_raw" / DATASET[1]
    image, truth = read(raw / "imagesTs" / f"{CASE}_0000.nii.gz"), read(raw / "labelsTs" / f"{CASE}.nii.gz")
    drawn = np.isin(truth, [LEAVES.index(name) for name in BASIC])
    panels = {"T2 image": None, "truth": truth, "what the hospital drew": np.where(drawn, truth, 0)}
    for method in ("plain nnU-Net", "Leaf-Dice"):
        panels[method] = read(demo / "predictions" / METHODS[method] / f"{CASE}.nii.gz")
    # the slice, from side to side, that shows most tissues
    plane = max(range(truth.shape[1]), key=lambda y: (len(np.unique(truth[:, y])), (truth[:, y] > 0).sum()))
    rows, columns = (np.flatnonzero((truth[:, plane] > 0).any(axis)) for axis in (1, 0))
    crop = (slice(rows[0] - 2, rows[-1] + 3), plane, slice(columns[0] - 2, columns[-1] + 3))
    colours = ListedColormap(["#00000000", *(leaf_colour(leaf) for leaf in range(1, len(LEAVES)))])
    figure, axes = plt.subplots(1, len(panels), figsize=(2.6 * len(panels), 3.4), layout="constrained")
    for axis, (title, labels) in zip(axes, panels.items(), strict=True):
        axis.imshow(image[crop], cmap="gray", origin="lower")
        if labels is not None:
            axis.imshow(labels[crop], cmap=colours, vmin=0, vmax=len(LEAVES) - 1, origin="lower", interpolation="none")
        if title == "what the hospital drew":
            unknown = ((truth > 0) & ~drawn)[crop].astype(float)
            axis.contourf(unknown, levels=[0.5, 1], colors="none", hatches=["////"])
        axis.set_title(title, fontsize=11)
        axis.axis("off")
    handles = [
        Patch(color=leaf_colour(leaf), label=name.replace("_", " ")) for leaf, name in enumerate(LEAVES) if leaf > 0
    ]
    handles.append(Patch(facecolor="white", edgecolor="black", hatch="////", label="one of the other five"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    output.mkdir(parents=True, exist_ok=True)
    figure.savefig(output / "overview.png", dpi=110)
    shutil.copyfile(demo / "coverage.png", output / "coverage.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).parent / "images")
