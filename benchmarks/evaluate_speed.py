"""Dice and HD95 of 8 labels on volumes of the size of a fetal brain: all our metrics against
surface-distance and MONAI.

    pip install surface-distance monai
    python benchmarks/evaluate_speed.py --json evaluate_speed.json
    python benchmarks/evaluate_speed.py --files 15 --processes 2   # from files, nnU-Net's Dice too
    python benchmarks/evaluate_speed.py --memory

Without `--files` all work on arrays of one volume in memory, on one thread. MONAI defines HD95
without area weights, so only its Dice is compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import scipy.ndimage
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.contract.protocol import Protocol
from nnunet_labelset.evaluation.results import Pair, Structure, StructureKind
from nnunet_labelset.evaluation.scores import score_arrays, score_pair

SHAPE = (155, 189, 135)
LEAVES = 8
Scores = dict[str, list[float]]


def volumes(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A brain of shells and lumps with rough borders, and the same brain deformed by a few
    voxels.
    """
    rng = np.random.default_rng(seed)

    def smooth(sigma: float) -> np.ndarray:
        field = scipy.ndimage.gaussian_filter(rng.normal(size=SHAPE).astype(np.float32), sigma)
        return field / field.std()

    grid = np.indices(SHAPE, dtype=np.float32)
    middle, half = (
        np.array(SHAPE).reshape(3, 1, 1, 1) / 2,
        np.array([55, 70, 50]).reshape(3, 1, 1, 1),
    )
    radius = np.sqrt((((grid - middle) / half) ** 2).sum(0)) + 0.04 * smooth(3)
    reference = np.zeros(SHAPE, np.uint8)
    # CSF, cortex, white matter, deep grey, ...
    for value, outer in ((4, 1.0), (5, 0.92), (1, 0.84), (6, 0.4), (2, 0.25)):
        reference[radius < outer] = value
    for value, centre, size in (
        (3, (0.3, 0.65, 0.5), 15),
        (7, (0.25, 0.5, 0.5), 10),
        (8, (0.65, 0.5, 0.5), 8),
    ):
        distance = np.sqrt(
            (
                (grid - np.array(centre).reshape(3, 1, 1, 1) * np.array(SHAPE).reshape(3, 1, 1, 1))
                ** 2
            ).sum(0)
        )
        reference[distance + smooth(2) < size] = value
    shift = np.stack([1.5 * smooth(10) for _ in range(3)])
    return reference, scipy.ndimage.map_coordinates(reference, grid + shift, order=0)


def pair_of(reference: str = "", prediction: str = "", surfaces: bool = True) -> Pair:
    names = ("background", *(f"leaf_{value}" for value in range(1, LEAVES + 1)))
    protocol = Protocol.complete(LEAVES + 1, has_ignore=False)
    structures = tuple(
        Structure(name, StructureKind.LABEL, protocol.sets[value], annotated=True)
        for value, name in enumerate(names)
        if value
    )
    return Pair("case", "full", protocol, reference, prediction, names, structures, surfaces)


def ours(reference: np.ndarray, prediction: np.ndarray, spacing: tuple[float, ...]) -> Scores:
    """All metrics of the registry, of which two are compared."""
    scores = score_arrays(pair_of(), reference, prediction, spacing).leaves.values()
    return {
        metric: [float(score.values[metric] or 0) for score in scores]
        for metric in ("dice", "hd95")
    }


def surface_distance(
    reference: np.ndarray, prediction: np.ndarray, spacing: tuple[float, ...]
) -> Scores:
    import surface_distance as package

    scores: Scores = {"dice": [], "hd95": []}
    for value in range(1, LEAVES + 1):
        a, b = reference == value, prediction == value
        scores["dice"].append(float(package.compute_dice_coefficient(a, b)))
        distances = package.compute_surface_distances(a, b, spacing)
        scores["hd95"].append(float(package.compute_robust_hausdorff(distances, 95)))
    return scores


def monai(reference: np.ndarray, prediction: np.ndarray, spacing: tuple[float, ...]) -> Scores:
    import torch
    from monai.metrics import compute_dice, compute_hausdorff_distance

    def one_hot(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(
            np.stack([array == value for value in range(LEAVES + 1)])[None].astype(np.float32)
        )

    y_pred, y = one_hot(prediction), one_hot(reference)
    dice = compute_dice(y_pred, y, include_background=False)[0].tolist()
    hd95 = compute_hausdorff_distance(y_pred, y, percentile=95, spacing=list(spacing))[0].tolist()
    return {"dice": dice, "hd95": hd95}


def from_files(method: Callable[..., Scores], paths: tuple[str, str]) -> Scores:
    restore_names()
    images = [sitk.ReadImage(path) for path in paths]
    return method(*map(sitk.GetArrayFromImage, images), images[0].GetSpacing()[::-1])


def end_to_end(
    files: int, processes: int, repeats: int, spacing: tuple[float, ...]
) -> dict[str, list[float]]:
    """Seconds from two folders to the scores; the methods take turns."""
    from nnunetv2.evaluation.evaluate_predictions import compute_metrics_on_folder
    from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO

    from nnunet_labelset.cli import main as cli

    with tempfile.TemporaryDirectory() as root:
        pairs = []
        for case in range(files):
            pairs.append(
                (
                    f"{root}/labelsTr/case_{case:02d}.nii.gz",
                    f"{root}/predictions/case_{case:02d}.nii.gz",
                )
            )
            for path, array in zip(pairs[-1], volumes(case), strict=True):
                Path(path).parent.mkdir(exist_ok=True)
                image = sitk.GetImageFromArray(array)
                image.SetSpacing(spacing[::-1])
                sitk.WriteImage(image, path, useCompression=True)
        leaves = {"background": 0, **{f"leaf_{value}": value for value in range(1, LEAVES + 1)}}
        cases = {f"case_{case:02d}": "full" for case in range(files)}
        block = {"version": 1, "protocols": {"full": {}}, "cases": cases}
        dataset = {
            "channel_names": {"0": "T2"},
            "labels": leaves,
            "numTraining": files,
            "file_ending": ".nii.gz",
        }
        Path(root, "dataset.json").write_text(json.dumps({**dataset, "label_sets": block}))
        folders = f"{root}/labelsTr", f"{root}/predictions"

        def evaluate(*options: str) -> None:
            out = tempfile.mkdtemp(dir=root)  # nothing is kept from an earlier turn
            with contextlib.redirect_stdout(io.StringIO()):
                if cli(["evaluate", *folders, "-o", out, "-np", str(processes), *options]):
                    raise SystemExit("evaluate failed")

        def package(method: Callable[..., Scores]) -> None:
            with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
                list(pool.map(partial(from_files, method), pairs))

        def nnunet() -> None:
            reader, values = SimpleITKIO(), list(range(1, LEAVES + 1))
            compute_metrics_on_folder(
                *folders, f"{root}/s.json", reader, ".nii.gz", values, num_processes=processes
            )

        methods: dict[str, Callable[[], None]] = {
            "ours, all metrics": evaluate,
            "surface-distance": partial(package, surface_distance),
            "monai": partial(package, monai),
            "ours, counts alone": partial(evaluate, "--no-surfaces"),
            "nnU-Net (counts)": nnunet,
        }
        return measure(methods, repeats, ())


def print_end_to_end(args: argparse.Namespace) -> None:
    seconds = end_to_end(args.files, args.processes, args.repeats, tuple(args.spacing))
    print(
        f"{args.files} volumes of {'x'.join(map(str, SHAPE))}, {args.processes} processes, "
        f"{args.repeats} repeats"
    )
    for name, values in seconds.items():
        peer = "ours, counts alone" if "counts" in name else "ours, all metrics"
        ratio = statistics.median(np.divide(values, seconds[peer]))
        print(
            f"{name:20}{statistics.median(values):8.2f} s "
            f"({min(values):.2f}-{max(values):.2f}){ratio:8.2f} x ours"
        )


def print_memory() -> None:
    """The largest memory of one worker that scores a CT of 512 x 512 x 300 from files, all
    metrics.
    """
    import resource

    with tempfile.TemporaryDirectory() as folder:
        # A child writes the files, because what it needs for them is not what we want to know.
        if (child := os.fork()) == 0:
            grid = [
                (np.arange(size, dtype=np.float32) - size / 2) / size for size in (300, 512, 512)
            ]
            radius = grid[0][:, None, None] ** 2 + grid[1][:, None] ** 2 + grid[2] ** 2
            for name, shift in (("reference", 0.0), ("prediction", 0.004)):
                volume = (LEAVES - np.clip((radius + shift) * 16, 0, LEAVES)).astype(np.uint8)
                sitk.WriteImage(sitk.GetImageFromArray(volume), f"{folder}/{name}.nii.gz")
            os._exit(0)
        os.waitpid(child, 0)
        score_pair(pair_of(f"{folder}/reference.nii.gz", f"{folder}/prediction.nii.gz"))
    print(
        f"512x512x300: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB at most"
    )


def restore_names() -> None:
    """The last release of surface-distance uses names that NumPy 2 and SciPy 1.15 have dropped."""
    for name, value in (("Inf", np.inf), ("NaN", np.nan)):
        if not hasattr(np, name):
            setattr(np, name, value)
    for name in ("filters", "morphology"):
        if not hasattr(scipy.ndimage, name):
            setattr(scipy.ndimage, name, scipy.ndimage)


def measure(
    methods: dict[str, Callable[..., Scores]], repeats: int, arguments: tuple
) -> dict[str, list[float]]:
    """Seconds of every repeat; the methods take turns, so that a busy machine is unfair to all of
    them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            start = time.perf_counter()
            method(*arguments)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spacing", type=float, nargs=3, default=(0.8, 0.8, 0.8))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument(
        "--files", type=int, metavar="N", help="from N pairs of files to the scores"
    )
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="of --files")
    parser.add_argument(
        "--memory", action="store_true", help="only the memory of one worker on a large volume"
    )
    args = parser.parse_args()
    if args.memory:
        print_memory()
        return
    if args.files:
        print_end_to_end(args)
        return
    packages = ["nnunet_labelset", "surface-distance", "monai", "numpy", "scipy", "torch"]
    versions = {name: installed(name) for name in packages}
    methods: dict[str, Callable[..., Scores]] = {"ours": ours}
    for name, method in (("surface-distance", surface_distance), ("monai", monai)):
        if versions[name]:
            methods[name] = method
        else:
            print(f"{name} is not installed: left out", file=sys.stderr)
    restore_names()
    if "monai" in methods:
        import torch

        torch.set_num_threads(1)

    reference, prediction = volumes(args.seed)
    arguments = (reference, prediction, tuple(args.spacing))
    scores = {name: method(*arguments) for name, method in methods.items()}  # the warm-up
    seconds = measure(methods, args.repeats, arguments)

    rows = {}
    for name, values in seconds.items():
        ratio = statistics.median(values) / statistics.median(seconds["ours"])
        rows[name] = {
            "median_s": statistics.median(values),
            "min_s": min(values),
            "max_s": max(values),
            "ratio": ratio,
        }
        for metric in ("dice", "hd95"):
            difference = np.abs(np.subtract(scores[name][metric], scores["ours"][metric])).max()
            rows[name][f"max_difference_{metric}"] = float(difference)
    print(f"{LEAVES} leaves, {'x'.join(map(str, SHAPE))} voxels, {args.repeats} repeats, 1 thread")
    print(
        f"{'':18}{'median s':>9}{'min s':>8}{'max s':>8}{'x ours':>8}{'Dice diff.':>12}{'HD95 diff.':>12}"
    )
    for name, row in rows.items():
        print(
            f"{name:18}{row['median_s']:9.3f}{row['min_s']:8.3f}{row['max_s']:8.3f}{row['ratio']:8.2f}"
            f"{row['max_difference_dice']:12.1e}{row['max_difference_hd95']:12.1e}"
        )
    if args.json:
        machine = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "threads": 1,
        }
        content = {
            "shape": SHAPE,
            "leaves": LEAVES,
            "repeats": args.repeats,
            "seed": args.seed,
            "spacing": args.spacing,
        }
        with open(args.json, "w") as file:
            json.dump(
                {
                    **content,
                    "results": rows,
                    "scores": scores,
                    "versions": versions,
                    "machine": machine,
                },
                file,
                indent=2,
            )


if __name__ == "__main__":
    main()
