"""The picture of a result on real data, from the trainings behind docs/accuracy.md.

python -m benchmarks.accuracy train hippocampus_2d --data hippocampus/ -o RUNS --steps 12000 \
    --methods background ours --seeds 0
python -m docs.real_picture RUNS 12000

Images: Medical Segmentation Decathlon, Task 04 Hippocampus (CC BY-SA 4.0, A. L. Simpson et al.,
arXiv 1902.09063). The picture shows the test case with the median gain over plain nnU-Net.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from benchmarks.accuracy.prepare import set_environment
from benchmarks.accuracy.recipes import Job, images_of
from benchmarks.accuracy.scoring import TestImage, segmentation_of
from benchmarks.accuracy.training import CHECKPOINT
from nnunet_labelset.io.files import read_json
from nnunet_labelset.report.plots import label_colour

STUDY = "hippocampus_2d"
METHODS = {"plain nnU-Net, gaps as background": "background", "with label-sets": "ours"}
LABELS = ("anterior", "posterior")
OUTPUT = Path(__file__).parent / "images" / "real.png"


def mean_dice(job: Job) -> dict[str, float]:
    """Return the mean Dice of every test case, in %."""
    cases = read_json(job.folder / "run.json")["cases"]
    means = {}
    for name, case in cases.items():
        means[name] = float(np.mean([scores["dice"] for scores in case["scores"].values()]))
    return means


def trained(job: Job) -> Any:
    """Return the trainer of a finished run with its last weights."""
    trainer = job.training().trainer()
    trainer.initialize()
    checkpoint = torch.load(job.folder / "main" / CHECKPOINT, "cpu", weights_only=False)
    trainer.network.load_state_dict(checkpoint["network_weights"])
    return trainer


def median_case(jobs: dict[str, Job]) -> str:
    plain, ours = (mean_dice(job) for job in jobs.values())
    ranked = sorted(ours, key=lambda case: ours[case] - plain[case])
    return ranked[len(ranked) // 2]


def draw(image: TestImage, panels: dict[str, np.ndarray | None]) -> None:
    plane = int(np.argmax((image.reference > 0).sum(axis=(1, 2))))
    colours = ListedColormap(["#00000000", label_colour(1), label_colour(2)])
    figure, axes = plt.subplots(1, len(panels), figsize=(10, 3.2), layout="constrained")
    for axis, (title, labels) in zip(axes, panels.items(), strict=True):
        axis.imshow(image.data[0, plane], cmap="gray", origin="lower")
        if labels is not None:
            axis.imshow(
                labels[plane],
                colours,
                vmin=0,
                vmax=2,
                alpha=0.75,
                origin="lower",
                interpolation="none",
            )
        axis.set_title(title, fontsize=10)
        axis.axis("off")
    handles = [Patch(color=label_colour(n), label=name) for n, name in enumerate(LABELS, 1)]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    figure.savefig(OUTPUT, dpi=90)


def main(runs: Path, steps: int) -> None:
    home = (runs / STUDY).resolve()
    set_environment(home)
    jobs = {title: Job(STUDY, method, 0, steps, "sgd", home) for title, method in METHODS.items()}
    case = median_case(jobs)
    panels: dict[str, np.ndarray | None] = {"MR image": None}
    for title, job in jobs.items():
        images = {image.name: image for image in images_of(job, job.training())}
        panels.setdefault("drawn by hand", images[case].reference)
        dice = mean_dice(job)[case]
        panels[f"{title}\n(Dice {dice:.0f} %)"] = segmentation_of(trained(job), images[case].data)
    draw(images[case], panels)
    print(f"{OUTPUT}: {case}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
