"""DICOM through `nnunet_labelset convert`: speed, memory, and a round trip of real contours.

    python -m benchmarks.dicom speed                    # a generated series with 20 ROIs
    python -m benchmarks.dicom openkbp --data FOLDER    # case folders, written as RTSTRUCT and back

Run it in the root of the repository: what writes DICOM belongs to the tests.

`speed` takes turns with pydicom and SimpleITK, which only read the pixels, and with SimpleITK
reading the pixels and writing the two files that `convert` writes. It counts seconds of the
processor, which hardly depend on other users. Memory is the peak of a process of its own beyond
its imports, in volumes: images as they are stored.

`openkbp` converts every case twice: from one file per organ, and from a CT series with an RTSTRUCT
whose contours go through the centres between voxels. It compares coverage and label-sets.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import SimpleITK as sitk  # noqa: N813
from scipy.ndimage import binary_dilation, binary_erosion, gaussian_filter

from nnunet_labelset.cli import main as command
from nnunet_labelset.dataset_conversion.dicom.drawing import DicomReader
from nnunet_labelset.dataset_conversion.dicom.planning import plan_cases
from nnunet_labelset.dataset_conversion.sources.dicom_rules import read_dicom_rules
from tests.helpers.conversion import contract_of, read_array
from tests.helpers.dicom import RoiSpec, Scan, mask_contours, write_series, write_structures

SHAPE = (140, 512, 512)
ROIS = 20
ORGANS = (
    "Brainstem", "SpinalCord", "LeftParotid", "RightParotid", "Esophagus", "Larynx", "Mandible",
)  # fmt: skip


def generate(folder: Path, every: int) -> None:
    """Write a body with noise and 20 smooth organs, each on 40 to 70 slices, and all contours.

    Of their points, 0.8 mm from each other, `every` n-th is kept.
    """
    scan = Scan(shape=SHAPE, spacing=(2.5, 1.0, 1.0))
    rng = np.random.default_rng(0)
    row, column = np.ogrid[: SHAPE[1], : SHAPE[2]]
    body = ((row - 256) / 200) ** 2 + ((column - 256) / 240) ** 2 < 1
    image = np.where(body, 40, -1000) + rng.normal(0, 15, SHAPE)
    write_series(folder / "ct", (image // 2 * 2).astype(np.int16), scan)
    whole = np.broadcast_to(body, SHAPE)
    rois = {"BODY": RoiSpec(thinned(scan, whole, every), interpreted_type="EXTERNAL")}
    for number in range(ROIS):
        depth = int(rng.integers(40, 70))
        first = int(rng.integers(0, SHAPE[0] - depth))
        field = gaussian_filter(rng.normal(size=(depth, 90, 90)), (8, 9, 9))
        grid = np.meshgrid(*(np.linspace(-1, 1, size) for size in field.shape), indexing="ij")
        organ = field / field.std() + 4 - 8 * sum(axis**2 for axis in grid) > 0
        corner = 20 + 95 * np.array(divmod(number, 5)) + rng.integers(0, 5, 2)
        mask = np.zeros(SHAPE, bool)
        mask[first : first + depth, corner[1] : corner[1] + 90, corner[0] : corner[0] + 90] = organ
        rois[f"organ {number}"] = RoiSpec(thinned(scan, mask, every))
    write_structures(folder / "RS.dcm", scan, rois)


def thinned(scan: Scan, mask: np.ndarray, every: int) -> list[np.ndarray]:
    return [points[::every] for points in mask_contours(scan, mask)]


def read_with_pydicom(folder: Path) -> None:
    for path in sorted((folder / "ct").iterdir()):
        content = pydicom.dcmread(path)
        content.pixel_array * float(content.RescaleSlope) + float(content.RescaleIntercept)


def read_with_itk(folder: Path) -> sitk.Image:
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder / "ct")))
    return reader.Execute()


def read_and_write_with_itk(folder: Path) -> None:
    image = read_with_itk(folder)
    with tempfile.TemporaryDirectory() as scratch:
        sitk.WriteImage(image, f"{scratch}/image.nii.gz", useCompression=True)
        sitk.WriteImage(image > 0, f"{scratch}/labels.nii.gz", useCompression=True)


def read_with_us(folder: Path) -> None:
    """Index, read the pixels, and draw all ROIs: all that `convert` does but values and writing."""
    rules = read_dicom_rules({}, "benchmark")
    expressions = [f"^organ {number}$" for number in range(ROIS)]
    (case,) = plan_cases(folder, rules, expressions).values()
    assert case.dicom is not None
    reader = DicomReader(case.dicom, [])
    reader.image()
    reader.labels(overlap=True)
    reader.mask()


def manifest_of_rois(folder: Path) -> Path:
    names = [f"organ {number}" for number in range(ROIS)]
    labels = "\n".join(f'"^{name}$" = "{name.replace(" ", "_")}"' for name in names)
    leaves = ", ".join(f'"{name.replace(" ", "_")}"' for name in ("background", *names))
    path = folder / "speed.toml"
    path.write_text(
        f'leaves = [{leaves}]\nchannels = ["CT"]\n[sources.clinic]\nkind = "dicom"\n'
        f'overlap = "last"\n[sources.clinic.labels]\n{labels}\n'
    )
    return path


def convert(out: Path, number: str, *arguments: str) -> None:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        target = ["convert", "-d", number, "-n", "Benchmark", "-o", str(out), "-np", "1"]
        if command([*target, *arguments]) != 0:
            raise SystemExit("the conversion failed")


def convert_series(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        manifest = manifest_of_rois(Path(scratch))
        convert(Path(scratch), "1", "-m", str(manifest), "--source", f"clinic={folder}")


MEMORY = """
import re
from pathlib import Path
from benchmarks import dicom
def megabytes(key): return int(re.search(key + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports (Linux)
before = megabytes("VmRSS")
dicom.{function}(Path({folder!r}))
print(megabytes("VmHWM") - before)
"""


def memory(function: Callable, folder: Path) -> float:
    """Return the peak megabytes of a process of its own beyond its imports."""
    script = MEMORY.format(function=function.__name__, folder=str(folder))
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return float(finished.stdout.split()[-1])


def seconds(function: Callable, folder: Path) -> float:
    """Return the seconds of the processor, workers included."""
    before = sum(os.times()[:4])
    function(folder)
    return sum(os.times()[:4]) - before


PAIRS = (
    (read_with_us, read_with_pydicom),
    (read_with_us, read_with_itk),
    (convert_series, read_with_pydicom),
    (convert_series, read_and_write_with_itk),
)


def measure_speed(repeats: int, every: int) -> dict:
    functions = list(dict.fromkeys(function for pair in PAIRS for function in pair))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "export"
        generate(folder, every)
        rounds = [
            {function: seconds(function, folder) for function in functions}
            for _ in range(repeats + 1)
        ][1:]  # the first one warms up caches and imports
        peaks = {function.__name__: memory(function, folder) for function in functions}
    results: dict = {"seconds": {}, "ratios": {}, "peak_mb": peaks}
    for function in functions:
        times = [turn[function] for turn in rounds]
        results["seconds"][function.__name__] = statistics.median(times)
        print(f"{function.__name__:26}{statistics.median(times):7.2f} s of the processor")
    for ours, theirs in PAIRS:
        ratios = [turn[ours] / turn[theirs] for turn in rounds]
        entry = [statistics.median(ratios), min(ratios), max(ratios)]
        results["ratios"][f"{ours.__name__} / {theirs.__name__}"] = entry
        print(
            f"{ours.__name__} / {theirs.__name__}: {entry[0]:.2f} [{entry[1]:.2f}, {entry[2]:.2f}]"
        )
    volume = np.prod(SHAPE) * 2 / 2**20
    for what, peak in peaks.items():
        print(f"{what:26}{peak:7.0f} MB = {peak / volume:.1f} volumes of {volume:.0f} MB")
    return results


MANIFEST = """
leaves = ["background", {leaves}]
channels = ["CT"]

[sources.files]
image = "{{case}}/ct.nii.gz"
label = "{{case}}/{{structure}}.nii.gz"
varies = [{leaves}]
overlap = "last"
[sources.files.labels]
{files}

[sources.dicom]
kind = "dicom"
overlap = "last"
[sources.dicom.labels]
{names}
"""


def write_openkbp_manifest(path: Path) -> None:
    path.write_text(
        MANIFEST.format(
            leaves=", ".join(f'"{organ}"' for organ in ORGANS),
            files="\n".join(f'{organ} = "{organ}"' for organ in ORGANS),
            names="\n".join(f'"^{organ}$" = "{organ}"' for organ in ORGANS),
        )
    )


def write_as_dicom(case: Path, folder: Path) -> None:
    image = sitk.ReadImage(str(case / "ct.nii.gz"))
    columns, rows, slices = image.GetSpacing()
    scan = Scan(
        shape=image.GetSize()[::-1],
        spacing=(slices, rows, columns),
        origin=image.GetOrigin(),
        axes=np.reshape(image.GetDirection(), (3, 3)).T,
        patient=case.name,
    )
    write_series(folder / "ct", sitk.GetArrayFromImage(image) // 2 * 2, scan)
    rois = {}
    for organ in ORGANS:
        if (case / f"{organ}.nii.gz").exists():
            mask = sitk.GetArrayFromImage(sitk.ReadImage(str(case / f"{organ}.nii.gz"))) > 0
            rois[organ] = RoiSpec(mask_contours(scan, mask))
    write_structures(folder / "RS.dcm", scan, rois)


def round_trip(data: Path) -> dict:
    cases = sorted(path for path in data.iterdir() if (path / "ct.nii.gz").exists())
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for case in cases:
            write_as_dicom(case, scratch / "dicom" / case.name)
        write_openkbp_manifest(scratch / "openkbp.toml")
        sources = {"1": f"files={data}", "2": f"dicom={scratch / 'dicom'}"}
        for number, source in sources.items():
            convert(scratch, number, "-m", str(scratch / "openkbp.toml"), "--source", source)
        datasets = [scratch / f"Dataset00{number}_Benchmark" for number in sources]
        return compare(datasets, [case.name for case in cases])


def compare(datasets: list[Path], cases: list[str]) -> dict:
    """Return what differs between two data sets of the same cases, and print it."""
    contracts = [contract_of(dataset) for dataset in datasets]
    coverage = [contract.coverage(cases) for contract in contracts]
    counts: dict[str, Counter[str]] = {organ: Counter() for organ in ORGANS}
    whole: Counter[str] = Counter()
    same = [
        case for case in cases if contracts[0].coverage([case]) == contracts[1].coverage([case])
    ]
    for case in cases:
        sets = [
            np.array([set_number(labels) for labels in contract.protocol(case).sets])[
                read_array(dataset / "labelsTr" / f"{case}.nii.gz")
            ]
            for contract, dataset in zip(contracts, datasets, strict=True)
        ]
        whole += Counter(voxels=sets[0].size, differ=int(np.count_nonzero(sets[0] != sets[1])))
        for number, organ in enumerate(ORGANS, 1):
            counts[organ] += Counter(difference(*(array == 1 << number for array in sets)))
    print(f"{len(same)} of {len(cases)} cases have the same coverage: {coverage[0]}")
    print(f"{whole['differ']} of {whole['voxels']} voxels have another label-set")
    print(f"{'':14}{'voxels':>9}{'differ':>8}{'':>8}{'not at the rim':>16}{'volume':>9}")
    for organ, count in counts.items():
        share, volume = count["differ"] / count["drawn"], count["converted"] / count["drawn"] - 1
        print(f"{organ:14}{count['drawn']:>9}{count['differ']:>8}{share:>8.2%}", end="")
        print(f"{count['inside']:>16}{volume:>+9.2%}")
    return {"cases": len(cases), "same_coverage": len(same), "whole": whole, "organs": counts}


def set_number(labels: frozenset[int]) -> int:
    return sum(1 << label for label in labels)


def difference(drawn: np.ndarray, converted: np.ndarray) -> dict[str, int]:
    """Return how many voxels differ, and how many of them are no voxels at the rim of a slice."""
    flat = np.ones((1, 3, 3), bool)
    rim = binary_dilation(drawn, flat) & ~binary_erosion(drawn, flat)
    differ = drawn != converted
    return {
        "drawn": int(np.count_nonzero(drawn)),
        "converted": int(np.count_nonzero(converted)),
        "differ": int(np.count_nonzero(differ)),
        "inside": int(np.count_nonzero(differ & ~rim)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["speed", "openkbp"])
    parser.add_argument("--data", type=Path, help="openkbp: a folder of case folders")
    parser.add_argument("--repeats", type=int, default=5, help="speed: (default %(default)s)")
    parser.add_argument(
        "--every",
        type=int,
        default=3,
        help="speed: keep every n-th point of the contours (default %(default)s: 2.5 mm apart)",
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.what == "openkbp" and args.data is None:
        parser.error("openkbp needs --data")
    results = (
        measure_speed(args.repeats, args.every) if args.what == "speed" else round_trip(args.data)
    )
    if args.json:
        args.json.write_text(json.dumps(results, indent=4) + "\n")


if __name__ == "__main__":
    main()
