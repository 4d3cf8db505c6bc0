"""Speed and memory of `nnunet_labelset convert` against reading and writing the same files with
SimpleITK alone.

    python benchmarks/convert_speed.py                      # generated case folders
    python benchmarks/convert_speed.py --data FOLDER        # case folders of your own

The peer reads image, mask and label map of every case and writes image and label map, and does
nothing else. Rounds of peer and converter alternate, so that both see the same load of the machine.
Memory is the peak of a process of its own beyond its imports, once for one case and once for all:
it should not grow.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813
from scipy.ndimage import gaussian_filter

from nnunet_labelset.cli import main as command
from nnunet_labelset.io.parallel import map_parallel

VARIANTS = {
    "convert": [],
    "convert --withhold": ["--withhold", "corpus_callosum", "brainstem"],
    "convert --link": ["--link"],
    "convert --mask-images": ["--mask-images"],
}


def generate(folder: Path, cases: int, shape: tuple[int, int, int]) -> None:
    """Smooth tissue-like volumes with eight labels inside an ellipsoid, noise everywhere: they
    compress like scans.
    """
    grid = np.stack(np.meshgrid(*(np.linspace(-1, 1, size) for size in shape), indexing="ij"))
    mask = (grid**2).sum(0) < 0.7
    for number in range(cases):
        rng = np.random.default_rng(number)
        field = gaussian_filter(rng.normal(size=shape), 6)
        labels = np.where(
            mask, np.digitize(field, np.quantile(field[mask], np.linspace(0, 1, 9)[1:-1])) + 1, 0
        )
        image = np.where(mask, 300.0 * labels, 0) + rng.normal(0, 20, shape)
        target = folder / f"case{number:03d}"
        target.mkdir(parents=True)
        arrays = {
            "srr": image.astype(np.float32),
            "mask": mask.astype(np.uint8),
            "parcellation": labels.astype(np.uint8),
        }
        for name, array in arrays.items():
            sitk.WriteImage(sitk.GetImageFromArray(array), str(target / f"{name}.nii.gz"))


def peer_case(paths: tuple[Path, Path]) -> None:
    case, out = paths
    image, _, labels = (
        sitk.ReadImage(str(case / f"{name}.nii.gz")) for name in ("srr", "mask", "parcellation")
    )
    sitk.WriteImage(image, str(out / f"{case.name}_0000.nii.gz"), useCompression=True)
    sitk.WriteImage(labels, str(out / f"{case.name}.nii.gz"), useCompression=True)


def run_peer(data: Path, out: Path, processes: int) -> None:
    out.mkdir(parents=True)
    items = [(case, out) for case in sorted(data.iterdir()) if case.is_dir()]
    for _ in map_parallel(peer_case, items, processes, "peer"):
        pass


def run_convert(data: Path, out: Path, processes: int, extra: list[str]) -> None:
    arguments = [
        "convert",
        "-d",
        "1",
        "-n",
        "Speed",
        "-o",
        str(out),
        "-np",
        str(processes),
        f"--source=atlas={data}",
    ]
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        if command(arguments + extra) != 0:
            raise SystemExit("the conversion failed")


def timed(action: Callable[[Path], None], scratch: Path) -> tuple[float, float]:
    """Seconds on the clock, and of processor time, workers included: the latter hardly depends on
    other users.
    """
    out = scratch / "out"
    start, before = time.perf_counter(), sum(os.times()[:4])
    action(out)
    seconds, cpu = time.perf_counter() - start, sum(os.times()[:4]) - before
    shutil.rmtree(out)
    return seconds, cpu


MEMORY = """
import re, sys
from pathlib import Path
sys.path.insert(0, {here!r})
import convert_speed
def megabytes(key): return int(re.search(key + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports (Linux)
before = megabytes("VmRSS")
convert_speed.run_convert(Path({data!r}), Path({out!r}), 1, [])
print(megabytes("VmHWM") - before)
"""


def memory(data: Path, scratch: Path) -> float:
    """Peak megabytes of a conversion in a process of its own, beyond what the imports need."""
    out = scratch / "out"
    script = MEMORY.format(here=str(Path(__file__).parent), data=str(data), out=str(out))
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    shutil.rmtree(out)
    return float(finished.stdout.split()[-1])


def measure(data: Path, scratch: Path, processes: int, repeats: int) -> list[dict]:
    actions: dict[str, Callable[[Path], None]] = {
        "SimpleITK read + write": lambda out: run_peer(data, out, processes)
    }
    for name, extra in VARIANTS.items():
        actions[name] = lambda out, extra=extra: run_convert(data, out, processes, extra)  # type: ignore[misc]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for turn in range(repeats + 1):
        for name, action in actions.items():
            measured = timed(action, scratch)
            if turn:  # the first turn warms up caches and imports
                times[name].append(measured)
    peer = times["SimpleITK read + write"]
    rows = []
    for name, found in times.items():
        seconds = [measured[0] for measured in found]
        ratios = [mine[0] / other[0] for mine, other in zip(found, peer, strict=True)]
        rows.append(
            {
                "what": name,
                "processes": processes,
                "seconds": statistics.median(seconds),
                "seconds_min": min(seconds),
                "seconds_max": max(seconds),
                "ratio": statistics.median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
                "cpu_ratio": statistics.median(
                    mine[1] / other[1] for mine, other in zip(found, peer, strict=True)
                ),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="a folder of case folders (default: generated volumes)"
    )
    parser.add_argument(
        "--cases", type=int, default=8, help="how many to generate (default %(default)s)"
    )
    parser.add_argument(
        "--size", type=int, default=128, help="their edge in voxels (default %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="(default %(default)s)")
    parser.add_argument(
        "-np", type=int, nargs="+", default=[1, 2], help="numbers of processes to try (default 1 2)"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        data = args.data
        if data is None:
            data = scratch / "data"
            generate(data, args.cases, (args.size, args.size, args.size))
        cases = sorted(path for path in data.iterdir() if path.is_dir())
        single = scratch / "single"
        single.mkdir()
        (single / cases[0].name).symlink_to(cases[0].resolve())
        rows = [
            row for processes in args.np for row in measure(data, scratch, processes, args.repeats)
        ]
        image = sitk.ReadImage(str(cases[0] / "srr.nii.gz"))
        voxels = float(np.prod(image.GetSize()))
        peaks = {"one case": memory(single, scratch), "all cases": memory(data, scratch)}
    print(
        f"{len(cases)} cases of {image.GetSize()}, {args.repeats} repeats; ratio to SimpleITK in "
        "the same round"
    )
    print(
        f"{'':24}{'processes':>10}{'seconds':>9}{'spread':>16}{'ratio':>7}{'spread':>15}{'cpu ratio':>11}"
    )
    for row in rows:
        seconds = f"{row['seconds_min']:.2f} .. {row['seconds_max']:.2f}"
        ratio = f"{row['ratio_min']:.2f} .. {row['ratio_max']:.2f}"
        print(f"{row['what']:24}{row['processes']:>10}{row['seconds']:>9.2f}{seconds:>16}", end="")
        print(f"{row['ratio']:>7.2f}{ratio:>15}{row['cpu_ratio']:>11.2f}")
    print(
        f"peak memory beyond imports, one process: {peaks['one case']:.0f} MB for one case, ",
        end="",
    )
    print(
        f"{peaks['all cases']:.0f} MB for {len(cases)} cases (one float32 image: "
        f"{voxels * 4 / 2**20:.0f} MB)"
    )
    if args.json:
        versions = {
            package: version(package)
            for package in ("SimpleITK", "nibabel", "numpy", "nnunet_labelset")
        }
        content = {
            "rows": rows,
            "peak_mb": peaks,
            "cases": len(cases),
            "size": image.GetSize(),
            "cpus": os.cpu_count(),
        }
        content |= {"versions": {**versions, "python": platform.python_version()}}
        args.json.write_text(json.dumps(content, indent=4) + "\n")


if __name__ == "__main__":
    main()
