"""Thousands of cases with many leaves, each case with its own protocol: every verb beside reading the files alone.

python benchmarks/scale.py                      # 2,000 cases, 117 leaves; about 300 MB in a temporary folder
python benchmarks/scale.py --cases 200 --json scale.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nnunet_labelset.cli import main
from nnunet_labelset.io.files import write_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.volume import Place, read_voxels, write_voxels
from nnunet_labelset.nnunet.raw import raw_cases

SIZE = 32


def write_case(job: tuple[Path, int, int]) -> None:
    """A volume of noise and blocks of labels, of which one leaf is left out."""
    folder, number, leaves = job
    rng = np.random.default_rng(number)
    place = Place((SIZE,) * 3, (1.0,) * 3, (0.0,) * 3, (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0))
    labels = np.kron(rng.integers(0, leaves, (8, 8, 8)), np.ones((4, 4, 4))).astype(np.uint8)
    labels[labels == 1 + number % (leaves - 1)] = 0
    write_voxels(
        folder / "imagesTr" / f"case_{number:05d}_0000.nii.gz", rng.integers(0, 999, (SIZE,) * 3, np.int16), place
    )
    write_voxels(folder / "labelsTr" / f"case_{number:05d}.nii.gz", labels, place)


def write_dataset(folder: Path, cases: int, leaves: int, processes: int) -> None:
    labels = {"background": 0, **{f"organ_{i}": i for i in range(1, leaves)}}
    names = [f"case_{i:05d}" for i in range(cases)]
    protocols = {f"p{i}": {"background": ["background", f"organ_{1 + i % (leaves - 1)}"]} for i in range(cases)}
    block = {"version": 1, "protocols": protocols, "cases": {name: f"p{i}" for i, name in enumerate(names)}}
    content = {"channel_names": {"0": "CT"}, "labels": labels, "numTraining": cases, "file_ending": ".nii.gz"}
    write_json(folder / "dataset.json", {**content, "label_sets": block})
    list(map_parallel(write_case, [(folder, i, leaves) for i in range(cases)], processes, "writing"))


def read_files(paths: tuple[Path, ...]) -> int:
    return sum(read_voxels(path)[0].size for path in paths)


def seconds(work: Callable[[], object]) -> tuple[float, int]:
    """Time, and how many characters were printed."""
    printed = io.StringIO()
    start = time.perf_counter()
    with contextlib.redirect_stdout(printed):
        assert not work(), printed.getvalue()[-2000:]
    return time.perf_counter() - start, len(printed.getvalue())


def measure(root: Path, cases: int, leaves: int, processes: int, repeats: int) -> list[dict[str, object]]:
    folder = root / "Dataset001_Scale"
    write_dataset(folder, cases, leaves, processes)
    os.environ["nnUNet_raw"], os.environ["nnUNet_preprocessed"] = str(root), str(root / "preprocessed")
    listed = raw_cases(folder, json.loads((folder / "dataset.json").read_text()))
    files = [(*case.images, case.label) for case in listed if case.label]
    workers = ["-np", str(processes)]
    verbs = {
        "verify": ["verify", "-d", "1", *workers],
        "coverage": ["coverage", "-d", "1"],
        "splits": ["splits", "-d", "1", "--overwrite"],
        "splits --random 10": ["splits", "-d", "1", "--random", "10", "--overwrite"],
        "merge": ["merge", "-d", "2", "-n", "Merged", "--overwrite", "1", *workers],
    }
    times: dict[str, list[tuple[float, int]]] = {}
    for _ in range(repeats):
        reading = seconds(lambda: list(map_parallel(read_files, files, processes, "reading")) and None)
        times.setdefault("reading the files", []).append(reading)
        for name, arguments in verbs.items():
            times.setdefault(name, []).append(seconds(lambda arguments=arguments: main(arguments)))  # type: ignore[misc]
    base = np.median([time for time, _ in times["reading the files"]])
    return [
        {
            "verb": name,
            "seconds": float(np.median([time for time, _ in found])),
            "ratio": float(np.median([time for time, _ in found]) / base),
            "printed_characters": found[0][1],
        }
        for name, found in times.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--leaves", type=int, default=117)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-np", type=int, default=2)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = measure(Path(temporary), args.cases, args.leaves, args.np, args.repeats)
    print(f"{args.cases} cases of {SIZE}^3 voxels, {args.leaves} leaves, each case its own protocol, -np {args.np}")
    for row in rows:
        print(
            f"{row['verb']:20} {row['seconds']:8.2f} s  {row['ratio']:6.2f}  {row['printed_characters']:>9} characters"
        )
    if args.json:
        write_json(args.json, {"rows": rows, "arguments": vars(args), "python": platform.python_version()})
