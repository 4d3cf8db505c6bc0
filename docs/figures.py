"""The pictures of the documentation.

python -m docs.figures labelset_demo    those of the README, from a finished demo
python -m docs.figures rooms            that of the architecture, from the import graph
"""

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

from nnunet_labelset.report.plots import label_colour
from nnunet_labelset.study.demo import DEMO_DATASET, METHODS
from nnunet_labelset.study.phantom.data import BASIC
from nnunet_labelset.study.phantom.volume import LEAVES
from tests.helpers.imports import FLOOR, FLOORS, import_graph, room_of

# public names, and the old places of two modules
OLD = ("nnunet_labelset", "label_sets", "trainer")
CASE = "test_spina_bifida_003"


def read(path: Path) -> np.ndarray:
    return sitk.GetArrayFromImage(sitk.ReadImage(str(path)))


def main(demo: Path, output: Path) -> None:
    raw = demo / "nnUNet_raw" / DEMO_DATASET[1]
    image, truth = (
        read(raw / "imagesTs" / f"{CASE}_0000.nii.gz"),
        read(raw / "labelsTs" / f"{CASE}.nii.gz"),
    )
    drawn = np.isin(truth, [LEAVES.index(name) for name in BASIC])
    panels = {"T2 image": None, "truth": truth, "what the hospital drew": np.where(drawn, truth, 0)}
    for title, method in (
        ("plain nnU-Net", "plain nnU-Net"),
        ("with label-sets", "nnUNetTrainerLabelSet"),
    ):
        panels[title] = read(demo / "predictions" / METHODS[method] / f"{CASE}.nii.gz")
    # the slice, from side to side, that shows most tissues
    plane = max(
        range(truth.shape[1]), key=lambda y: (len(np.unique(truth[:, y])), (truth[:, y] > 0).sum())
    )
    rows, columns = (np.flatnonzero((truth[:, plane] > 0).any(axis)) for axis in (1, 0))
    crop = (slice(rows[0] - 2, rows[-1] + 3), plane, slice(columns[0] - 2, columns[-1] + 3))
    colours = ListedColormap(["#00000000", *(label_colour(leaf) for leaf in range(1, len(LEAVES)))])
    figure, axes = plt.subplots(
        1, len(panels), figsize=(2.6 * len(panels), 3.4), layout="constrained"
    )
    for axis, (title, labels) in zip(axes, panels.items(), strict=True):
        axis.imshow(image[crop], cmap="gray", origin="lower")
        if labels is not None:
            axis.imshow(
                labels[crop],
                cmap=colours,
                vmin=0,
                vmax=len(LEAVES) - 1,
                origin="lower",
                interpolation="none",
            )
        if title == "what the hospital drew":
            unknown = ((truth > 0) & ~drawn)[crop].astype(float)
            axis.contourf(unknown, levels=[0.5, 1], colors="none", hatches=["////"])
        axis.set_title(title, fontsize=11)
        axis.axis("off")
    handles = [
        Patch(color=label_colour(leaf), label=name.replace("_", " "))
        for leaf, name in enumerate(LEAVES)
        if leaf > 0
    ]
    handles.append(
        Patch(facecolor="white", edgecolor="black", hatch="////", label="one of the other five")
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    output.mkdir(parents=True, exist_ok=True)
    figure.savefig(output / "overview.png", dpi=110)
    shutil.copyfile(demo / "coverage.png", output / "coverage.png")


def rooms(output: Path) -> None:
    """Floors of rooms, and arrows to what they import; an arrow that others imply is left out."""
    imported: dict[str, set[str]] = {room: set() for room in FLOOR if room not in OLD}
    for module, targets in import_graph().items():
        if room_of(module) in imported:
            imported[room_of(module)] |= {room_of(target) for target in targets} & set(imported) - {
                room_of(module)
            }
    imported["cli"].add("commands")  # by its name, when it is asked for
    implied = {
        room: set().union(*(_below(imported, below) for below in imported[room]))
        for room in imported
    }
    width, height = 150, 76
    floors = [[room for room in floor if room in imported] for floor in FLOORS]
    place = {
        room: (420 + (number - (len(floor) - 1) / 2) * 220, (len(floors) - level) * height - 30)
        for level, floor in enumerate(floors)
        for number, room in enumerate(floor)
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 {len(floors) * height + 20}" '
        'font-family="sans-serif" font-size="15">'
        '<defs><marker id="tip" markerWidth="9" markerHeight="9" refX="8" refY="4" orient="auto">'
        '<path d="M0,0 L9,4 L0,8 z" fill="#667"/></marker></defs><rect width="100%" height="100%" '
        'fill="white"/>'
    ]
    for room, targets in imported.items():
        for target in sorted(targets - implied[room]):
            (x, y), (to_x, to_y) = place[room], place[target]
            lines.append(
                f'<line x1="{x:.0f}" y1="{y + 18:.0f}" x2="{to_x:.0f}" y2="{to_y - 18:.0f}" '
                'stroke="#667" '
                'marker-end="url(#tip)"/>'
            )
    for room, (x, y) in place.items():
        lines.append(
            f'<rect x="{x - width / 2:.0f}" y="{y - 18:.0f}" width="{width}" height="36" rx="6" '
            'fill="#e8eef7" '
            f'stroke="#345"/><text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{room}</text>'
        )
    (output / "rooms.svg").write_text("\n".join([*lines, "</svg>\n"]))


def _below(imported: dict[str, set[str]], room: str) -> set[str]:
    return imported[room].union(*(_below(imported, below) for below in imported[room]))


if __name__ == "__main__":
    images = Path(__file__).parent / "images"
    if sys.argv[1] == "rooms":
        rooms(images)
    else:
        main(Path(sys.argv[1]), images)
