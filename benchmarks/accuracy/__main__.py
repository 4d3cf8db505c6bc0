"""Train methods on a partially annotated data set, and make tables and curves of their scores.

    python -m benchmarks.accuracy train hippocampus_2d --data hippocampus/ -o runs/ --steps 4000
    python -m benchmarks.accuracy train sites_2d -o runs/ --methods ours background --seeds 0
    python -m benchmarks.accuracy collect runs/ benchmarks/results/accuracy
    python -m benchmarks.accuracy tables benchmarks/results/accuracy --page docs/accuracy.md
    python -m benchmarks.accuracy curves benchmarks/results/accuracy -o docs/images

All methods have the same network, optimiser, number of steps and seeds; an optimiser is nnU-Net's
own (SGD) unless `--regime adamw` asks for the one of the short trainers. Two trainings run side by
side, a thread each. Trainings that were ended go on where they were saved; more methods, seeds or
steps add to the tables.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from benchmarks.accuracy.curves import draw
from benchmarks.accuracy.methods import METHODS
from benchmarks.accuracy.prepare import prepare, set_environment
from benchmarks.accuracy.recipes import Job, run
from benchmarks.accuracy.results import Results, collect
from benchmarks.accuracy.studies import STUDIES
from benchmarks.accuracy.tables import dead_labels, filled, plateau, table
from benchmarks.accuracy.training import REGIMES
from nnunet_labelset.io.files import write_text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train", help="train and score methods")
    train.add_argument("study", choices=STUDIES)
    train.add_argument("--data", type=Path, help="folder of the data set; phantoms have none")
    train.add_argument("-o", type=Path, required=True, metavar="FOLDER", help="keep the runs here")
    train.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    train.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    train.add_argument("--steps", type=int, default=4000, help="default: %(default)s")
    train.add_argument("--regime", choices=REGIMES, default="sgd", help="default: %(default)s")
    train.add_argument("--together", type=int, default=2, help="side by side; default: %(default)s")
    copy = verbs.add_parser("collect", help="copy the scores of finished runs")
    copy.add_argument("runs", type=Path, help="-o of 'train'")
    copy.add_argument("results", type=Path, help="folder of the .jsonl files")
    tables = verbs.add_parser("tables", help="print the tables of the documentation")
    tables.add_argument("results", type=Path)
    tables.add_argument("--page", type=Path, help="replace the tables of this page instead")
    pictures = verbs.add_parser("curves", help="draw the learning curves")
    pictures.add_argument("results", type=Path)
    pictures.add_argument("-o", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args()
    if args.verb == "train":
        do_train(args, parser)
    elif args.verb == "collect":
        print("\n".join(map(str, collect(args.runs, args.results))))
    elif args.verb == "tables":
        print_tables(args.results, args.page)
    else:
        for path in sorted(args.results.glob("*.jsonl")):
            draw(Results.read(path), args.o / f"curves_{path.stem}.svg")


def print_tables(folder: Path, page: Path | None) -> None:
    if page is not None:
        write_text(page, filled(page.read_text(), folder))
        return
    for path in sorted(folder.glob("*.jsonl")):
        results = Results.read(path)
        print(f"## {results.study}, {results.regime}, {results.steps} steps\n")
        print(table(results))
        print("Below 1 %:", "; ".join(dead_labels(results)) or "no label", "\n")
        print("Last fifth:", plateau(results), "\n")


def do_train(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    epochs = REGIMES[args.regime].epochs
    if args.steps % epochs or args.steps < epochs:
        parser.error(f"--steps {args.steps}: a training has {epochs} epochs, expected a multiple")
    folder = (args.o / args.study).resolve()
    set_environment(folder)
    prepare(STUDIES[args.study], args.data, folder)
    jobs = []
    for seed in args.seeds:  # all methods of a seed first: a table can be made early
        for method in args.methods:
            job = Job(args.study, method, seed, args.steps, args.regime, folder)
            if not job.is_done:
                jobs.append(job)
    work(jobs, args.together)


def work(jobs: list[Job], together: int) -> None:
    """Run every job in a process of its own, forked from this one: imports are done."""
    context = multiprocessing.get_context("fork")
    running: list = []
    waiting = jobs[::-1]
    failed = []
    while waiting or running:
        while waiting and len(running) < together:
            job = waiting.pop()
            process = context.Process(target=run, args=(job,))
            process.start()
            running.append((process, job, time.monotonic()))
        for entry in list(running):
            process, job, begin = entry
            if not process.is_alive():
                running.remove(entry)
                seconds = time.monotonic() - begin
                state = "FAILED" if process.exitcode else "done"
                print(
                    f"{job.folder.name}: {state}, {seconds:.0f} s, {len(waiting)} waiting",
                    flush=True,
                )
                if process.exitcode:
                    failed.append(job.folder / "log.txt")
        time.sleep(0.5)
    if failed:
        sys.exit("failed: " + ", ".join(map(str, failed)))


if __name__ == "__main__":
    main()
