"""Learning curves: Dice over steps, a line per method."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.accuracy.methods import METHODS, REFERENCE
from benchmarks.accuracy.results import Results

STYLES = ("-", "--", ":", "-.")


def draw(results: Results, path: Path) -> None:
    """Write an SVG with the mean Dice over seeds; the recommended trainer has the thickest line."""
    plt.rcParams["svg.hashsalt"] = "accuracy"  # the same file from the same numbers
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    colours = plt.get_cmap("tab10")
    for number, (name, runs) in enumerate(results.runs.items()):
        curves = [run["curve"] for run in runs.values() if run["curve"]]
        if not curves:
            continue
        steps = [point["steps"] for point in curves[0]]
        dice = np.mean([[point["dice"] for point in curve] for curve in curves], 0)
        axes.plot(
            steps,
            dice,
            STYLES[number // 10],
            color=colours(number % 10),
            linewidth=2.6 if name == REFERENCE else 1.3,
            marker=".",
            label=METHODS[name].title.replace("`", "").replace("*", ""),
        )
    axes.set_xlabel("steps")
    axes.set_ylabel("mean Dice in %")
    axes.set_title(results.study)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
