"""Small files with the scores of all runs of a study: what the tables are made of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.methods import METHODS
from benchmarks.accuracy.studies import PAROTIDS, STUDIES
from nnunet_labelset.io.files import read_json, write_text


def collect(runs: Path, results: Path) -> list[Path]:
    """Copy every finished run to `results`, a file per study and training length, a line per run.

    Runs that are in the file already stay there unless they were repeated.
    """
    by_file: dict[Path, dict[tuple[str, int], dict[str, Any]]] = {}
    for mark in sorted(runs.glob("*/runs/*/*/run.json")):
        run = read_json(mark)
        path = results / f"{run['study']}_{run['regime']}_{run['steps']}.jsonl"
        if path not in by_file:
            by_file[path] = {(old["method"], old["seed"]): old for old in read_lines(path)}
        by_file[path][run["method"], run["seed"]] = run
    for path, content in by_file.items():
        lines = [json.dumps(content[key], separators=(",", ":")) for key in sorted(content)]
        write_text(path, "\n".join(lines) + "\n")
    return sorted(by_file)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        yield from map(json.loads, path.read_text().splitlines())


@dataclass
class Results:
    """Runs of one study and length: `{method: {seed: run}}`."""

    study: str
    regime: str
    steps: int
    runs: dict[str, dict[int, dict[str, Any]]]

    @classmethod
    def read(cls, path: Path) -> Results:
        runs: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in METHODS}
        for run in read_lines(path):
            runs[run["method"]][run["seed"]] = run
        by_method = {name: by_seed for name, by_seed in runs.items() if by_seed}
        return cls(run["study"], run["regime"], run["steps"], by_method)

    @property
    def labels(self) -> tuple[str, ...]:
        return STUDIES[self.study].leaves

    @property
    def groups(self) -> dict[str, str]:
        """The group of every test case, sorted by case."""
        run = next(iter(next(iter(self.runs.values())).values()))
        return {case: run["cases"][case]["group"] for case in sorted(run["cases"])}

    @property
    def counts_confusion(self) -> bool:
        """A study of sides counts the voxels that were given to the other one."""
        return self.labels == PAROTIDS

    def scores(self, method: str, metric: str) -> np.ndarray:
        """Return `(seeds, cases, labels)`; a label that nobody predicted or drew is NaN."""
        rows = []
        for _, run in sorted(self.runs[method].items()):
            by_case = [run["cases"][case]["scores"] for case in self.groups]
            rows.append([[case[label][metric] for label in self.labels] for case in by_case])
        return np.array(rows, float)
