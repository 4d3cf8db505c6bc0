"""Time of every verb on thousands of cases with many labels, each case with its own protocol.

    python benchmarks/scale.py    # 2,000 cases, 117 labels; about 1 GB in a temporary folder
    python benchmarks/scale.py --cases 500 --repeats 1 --json scale.json

The peers do with SimpleITK, in as many processes, what the files alone ask for: `read` reads all
images and label maps, `read + write` also writes what the verb writes (label maps, and images where
they are copied).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.cli import main
from nnunet_labelset.contract import Contract, Protocol
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.nnunet.raw import RawCase, raw_cases

READ, READ_WRITE, READ_WRITE_LABELS = "read", "read + write", "read + write label maps"


def write_case(job: tuple[int, tuple[int, ...]], folder: Path, leaves: int, size: int) -> None:
    """A volume of noise and blocks of labels, of which three labels are left out."""
    number, missing = job
    rng = np.random.default_rng(number)
    labels = np.kron(rng.integers(0, leaves, (8, 8, 8)), np.ones((size // 8,) * 3)).astype(np.uint8)
    labels[np.isin(labels, missing)] = 0
    image = rng.integers(0, 999, labels.shape, np.int16)
    origin = rng.normal(0, 100, 3).tolist()
    for array, path in (
        (image, f"imagesTr/case_{number:05d}_0000.nii.gz"),
        (labels, f"labelsTr/case_{number:05d}.nii.gz"),
    ):
        volume = sitk.GetImageFromArray(array)
        volume.SetOrigin(origin)  # no two scans lie at the same place
        sitk.WriteImage(volume, str(folder / path), useCompression=True)


def missing_labels(cases: int, leaves: int) -> list[tuple[int, ...]]:
    """Return three labels for every case; no two cases lack the same three."""
    rng = np.random.default_rng(0)
    triples: dict[tuple[int, ...], None] = {}
    while len(triples) < cases:
        chosen = 1 + rng.choice(leaves - 1, 3, replace=False)
        triples[tuple(sorted(chosen.tolist()))] = None
    return list(triples)


def write_data(root: Path, cases: int, leaves: int, size: int, processes: int) -> Path:
    """A data set with its contract and, for `convert`, a manifest and a case list that say the
    same.
    """
    folder = root / "Dataset001_Scale"
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True)
    names = ["background", *(f"organ_{leaf}" for leaf in range(1, leaves))]
    missing = dict(enumerate(missing_labels(cases, leaves)))
    list(
        map_parallel(
            partial(write_case, folder=folder, leaves=leaves, size=size),
            list(missing.items()),
            processes,
            "writing",
        )
    )
    singletons = [frozenset([leaf]) for leaf in range(1, leaves)]
    protocols = {
        f"p{number}": Protocol((frozenset([0, *labels]), *singletons), leaves)
        for number, labels in missing.items()
    }
    contract = Contract(
        tuple(names), protocols, {f"case_{n:05d}": f"p{n}" for n in missing}, has_ignore=False
    )
    content = {"channel_names": {"0": "CT"}, "numTraining": cases, "file_ending": ".nii.gz"}
    write_json(folder / "dataset.json", {**content, **contract.to_dataset_json()})
    meanings = "\n".join(f'{value} = "{name}"' for value, name in enumerate(names) if value)
    (root / "scale.toml").write_text(
        f'leaves = {names!r}\nchannels = ["CT"]\n[sources.scale]\nfolder = "{folder}"\n'
        f'image = "imagesTr/{{case}}_0000.nii.gz"\nlabel = "labelsTr/{{case}}.nii.gz"\n'
        f"[sources.scale.labels]\n{meanings}\n"
    )
    with open(root / "annotated.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["case", "annotated"])
        for number, labels in missing.items():
            annotated = [names[leaf] for leaf in range(1, leaves) if leaf not in labels]
            table.writerow([f"case_{number:05d}", ";".join(annotated)])
    return folder


def peer(case: RawCase, written: tuple[str, ...], out: Path) -> None:
    """Read image and label map of a case; write the `written` ones of them."""
    for kind, path in (("image", case.images[0]), ("label", case.label)):
        image = sitk.ReadImage(str(path))
        if kind in written:
            sitk.WriteImage(image, str(out / f"{kind}_{case.name}.nii.gz"), useCompression=True)


def run_peer(cases: list[RawCase], written: tuple[str, ...], root: Path, processes: int) -> None:
    out = root / "peer"
    out.mkdir()
    list(map_parallel(partial(peer, written=written, out=out), cases, processes, "peer"))


def run_verb(arguments: list[str]) -> int:
    """Returns how many characters were printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if main(arguments):
            raise SystemExit(f"{' '.join(arguments)} failed: {printed.getvalue()[-2000:]}")
    return len(printed.getvalue())


def measure(
    root: Path, cases: int, leaves: int, size: int, processes: int, repeats: int
) -> list[dict[str, object]]:
    folder = write_data(root, cases, leaves, size, processes)
    os.environ["nnUNet_raw"], os.environ["nnUNet_preprocessed"] = (
        str(root),
        str(root / "preprocessed"),
    )
    files = raw_cases(folder, read_json(folder / "dataset.json"))
    workers = ["-np", str(processes)]
    source = ["-m", str(root / "scale.toml"), "--annotated", str(root / "annotated.csv")]
    peers: dict[str, tuple[str, ...]] = {
        READ: (),
        READ_WRITE: ("image", "label"),
        READ_WRITE_LABELS: ("label",),
    }
    verbs = {  # with the peer that they are measured by
        "convert": (["convert", "-d", "3", "-n", "Converted", *source, *workers], READ_WRITE),
        "merge": (["merge", "-d", "2", "-n", "Merged", "1", *workers], READ_WRITE_LABELS),
        "verify": (["verify", "-d", "1", *workers], READ),
        "coverage": (["coverage", "-d", "1"], READ),
        "splits": (["splits", "-d", "1", "--overwrite"], READ),
        "splits --random 10": (["splits", "-d", "1", "--random", "10", "--overwrite"], READ),
    }
    actions: dict[str, Callable[[], object]] = {
        **{
            name: partial(run_peer, files, written, root, processes)
            for name, written in peers.items()
        },
        **{name: partial(run_verb, arguments) for name, (arguments, _) in verbs.items()},
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    printed = {}
    for _ in range(repeats):
        for name, action in actions.items():
            for written in (
                *root.glob("Dataset002_*"),
                *root.glob("Dataset003_*"),
                *root.glob("peer"),
            ):
                shutil.rmtree(written)
            os.sync()  # what was written and removed before is not for this one to wait for
            start, cpu = time.perf_counter(), sum(os.times()[:4])
            printed[name] = action() or 0
            times[name].append((time.perf_counter() - start, sum(os.times()[:4]) - cpu))
    clock, processor = (
        {name: statistics.median(t[i] for t in found) for name, found in times.items()}
        for i in (0, 1)
    )
    rows = []
    for name in actions:
        base = verbs[name][1] if name in verbs else name
        rows.append(
            {
                "what": name,
                "seconds": clock[name],
                "peer": base,
                "ratio": clock[name] / clock[base],
                "cpu_ratio": processor[name]
                / processor[base],  # hardly depends on other users of the machine
                "ratio_to_read": clock[name] / clock[READ],
                "printed_characters": printed[name],
            }
        )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--leaves", type=int, default=117)
    parser.add_argument(
        "--size",
        type=int,
        default=48,
        help="edge of a volume, a multiple of 8 (default %(default)s)",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-np", type=int, default=2)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = measure(Path(temporary), args.cases, args.leaves, args.size, args.np, args.repeats)
    print(
        f"{args.cases} cases of {args.size}^3 voxels, {args.leaves} leaves, each case its own "
        f"protocol, -np {args.np}"
    )
    print(
        f"{'':24}{'seconds':>9}{'ratio':>7}{'cpu':>6}  "
        f"{'to':24}{'to read':>8}{'characters printed':>20}"
    )
    for row in rows:
        print(
            f"{row['what']:24}{row['seconds']:>9.2f}{row['ratio']:>7.2f}{row['cpu_ratio']:>6.2f}  "
            f"{row['peer']:24}",
            end="",
        )
        print(f"{row['ratio_to_read']:>8.2f}{row['printed_characters']:>20}")
    if args.json:
        write_json(
            args.json, {"rows": rows, "arguments": vars(args), "python": platform.python_version()}
        )
