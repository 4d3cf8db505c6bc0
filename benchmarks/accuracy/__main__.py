"""Train every method on a partially annotated data set, score the test cases, and write the tables.

    python -m benchmarks.accuracy hippocampus --data hippocampus/ -o results/
    python -m benchmarks.accuracy openkbp --data openkbp/ -o results/ --seeds 0 1 2 --steps 600
    python -m benchmarks.accuracy fetal --data spina_bifida_atlas/ -o results/
    python -m benchmarks.accuracy phantom -o results/ --steps 800

All methods have the same network, optimiser, number of steps and seeds. Two trainings run side by
side, a thread each. A second call goes on where the first one ended; more methods, seeds or steps
add to the tables.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from benchmarks.accuracy.methods import ALL, METHODS
from benchmarks.accuracy.prepare import DATASETS, prepare, set_environment
from benchmarks.accuracy.studies import STUDIES
from benchmarks.accuracy.tables import collect, markdown
from benchmarks.accuracy.training import EPOCHS, run
from nnunet_labelset.cli import main as nnunet_labelset
from nnunet_labelset.io.files import write_json
from nnunet_labelset.io.tables import read_table

METRICS = {"dice": 100.0, "nsd": 100.0}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--data", type=Path, help="folder of the data set; the phantom has none")
    parser.add_argument(
        "-o", type=Path, required=True, metavar="FOLDER", help="keep everything here"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=ALL, default=list(METHODS), metavar="METHOD"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=600, help="default: %(default)s")
    parser.add_argument(
        "--together", type=int, default=2, help="trainings side by side; default: %(default)s"
    )
    args = parser.parse_args()
    if args.data is None and args.study != "phantom":
        parser.error(f"{args.study} needs --data, the folder of the data set")

    if args.steps % EPOCHS or args.steps < EPOCHS:
        parser.error(
            f"--steps {args.steps}: a training has {EPOCHS} epochs, so that it must be a multiple of it"
        )

    study, folder = STUDIES[args.study], (args.o / args.study).resolve()
    set_environment(folder)
    prepare(study, args.data, folder)
    runs = []
    for seed in args.seeds:  # all methods of a seed first: a table can be made early
        for name in args.methods:
            target = folder / "runs" / f"{args.steps}_steps" / f"{name}, seed {seed}"
            if not (target / "run.json").is_file():
                runs.append((study, folder, name, seed, args.steps, target))
    work(runs, args.together)
    raw = folder / "nnUNet_raw" / DATASETS["label-sets"]
    for mark in sorted(folder.glob("runs/*/*/run.json")):
        if not (mark.parent / "evaluation" / "metrics.json").is_file():
            table = ["--table", str(raw / "groups.tsv"), "--group-by", "group"]
            options = [
                "-djfile",
                str(raw / "dataset.json"),
                *table,
                "--tolerance",
                str(study.tolerance),
                "-np",
                "1",
            ]
            if nnunet_labelset(["evaluate", str(raw / "labelsTs"), str(mark.parent), *options]):
                sys.exit(f"{mark.parent}: its predictions could not be scored")
    results = collect(folder / "runs")
    write_json(folder / "results.json", results)
    groups = {row["case"]: row["group"] for row in read_table(raw / "groups.tsv")}
    (folder / "results.md").write_text(markdown(args.study, results, groups, METRICS))
    print((folder / "results.md").read_text())


def work(runs: list[tuple], together: int) -> None:
    """Every run in a process of its own, forked from this one: imports are done."""
    context = multiprocessing.get_context("fork")
    running: list = []
    waiting = runs[::-1]
    while waiting or running:
        while waiting and len(running) < together:
            arguments = waiting.pop()
            process = context.Process(target=run, args=arguments)
            process.start()
            running.append((process, arguments, time.monotonic()))
        for process, arguments, begin in list(running):
            if not process.is_alive():
                running.remove((process, arguments, begin))
                print(
                    f"{arguments[-1].name}: {time.monotonic() - begin:.0f} s, {len(waiting)} waiting",
                    flush=True,
                )
                if process.exitcode:
                    sys.exit(f"failed: {arguments[-1] / 'log.txt'}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
