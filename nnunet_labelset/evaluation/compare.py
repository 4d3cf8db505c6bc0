"""`nnunet_labelset compare`: result sets of the same cases side by side, as in the paper's Table 2, with tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.evaluate import METRICS
from nnunet_labelset.evaluation.evaluate import VERSION as EVALUATION_VERSION
from nnunet_labelset.evaluation.statistics import describe, holm, paired_test
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.text import some

VERSION = 1
HIGHER_IS_BETTER = {"dice": True, "hd95": False}
CELL_COLUMNS = ("method", "leaf", "metric", "n", "mean", "sd", "median", "best", "mark")
TEST_COLUMNS = (
    *("a", "b", "baseline", "leaf", "metric", "n_pairs", "n_zero", "mean_difference", "median_difference"),
    *("statistic", "p", "p_adjusted", "effect", "significant", "better"),
)


def comparison(
    results: Mapping[str, Mapping[str, Any]], baseline: str, alpha: float = 0.01, correct: bool = False
) -> dict[str, Any]:
    """Compare evaluations (contents of metrics.json, by method name); the layout is in docs/evaluation.md."""
    methods = list(results)
    leaves, cases = _check_same_leaves(results), _common_cases(results)
    metrics = [metric for metric in METRICS if metric != "hd95" or _settings(results, "hd95")]
    if len(set(map(repr, (result["settings"]["hd95_cap"] for result in results.values())))) > 1:
        caps = ", ".join(f"{name}: {result['settings']['hd95_cap']}" for name, result in results.items())
        raise LabelSetError(f"evaluated with different --cap ({caps}): their HD95 cannot be compared")
    scores = {method: {case["case"]: case["leaves"] for case in results[method]["cases"]} for method in methods}
    _check_same_references(scores, cases, leaves)

    def column(method: str, leaf: str, metric: str) -> list[float | None]:
        return [scores[method][case][leaf][metric] for case in cases]

    tests = []
    for metric in metrics:
        family = []
        for a, b in combinations(methods, 2):
            if b == baseline:
                a, b = b, a
            for leaf in leaves:
                result = paired_test(column(a, leaf, metric), column(b, leaf, metric))
                which = {"a": a, "b": b, "baseline": baseline in (a, b), "leaf": leaf, "metric": metric}
                family.append({**which, **result._asdict()})
        p_values = [test["p"] for test in family]
        for test, adjusted in zip(family, holm(p_values) if correct else p_values, strict=True):
            test["p_adjusted"] = adjusted
            test["significant"] = adjusted is not None and adjusted < alpha
            # The sign of the rank sum that the test itself looks at, which need not be that of the mean.
            up = test["effect"] or 0
            test["better"] = None if not up else test["b"] if (up > 0) == HIGHER_IS_BETTER[metric] else test["a"]
            tests.append({name: test[name] for name in TEST_COLUMNS})
    return {
        "version": VERSION,
        "methods": methods,
        "baseline": baseline,
        "alpha": alpha,
        "correction": "holm" if correct else "none",
        "hd95_cap": _settings(results, "hd95_cap"),
        "leaves": leaves,
        "metrics": metrics,
        "cases": cases,
        "left_out": {method: sorted(set(scores[method]) - set(cases)) for method in methods},
        "cells": [
            cell
            for metric in metrics
            for leaf in leaves
            for cell in _cells(
                {method: describe(column(method, leaf, metric)) for method in methods}, leaf, metric, tests
            )
        ],
        "tests": tests,
    }


def _cells(
    described: Mapping[str, Mapping[str, Any]], leaf: str, metric: str, tests: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    means = [found["mean"] for found in described.values() if found["mean"] is not None]
    best = (max if HIGHER_IS_BETTER[metric] else min)(means, default=None)
    marks = {
        test["b"]: "better" if test["better"] == test["b"] else "worse"
        for test in tests
        if test["baseline"] and test["significant"] and (test["leaf"], test["metric"]) == (leaf, metric)
    }
    return [
        {
            **{"method": method, "leaf": leaf, "metric": metric},
            **found,
            "best": best is not None and found["mean"] == best,
            "mark": marks.get(method, ""),
        }
        for method, found in described.items()
    ]


def _settings(results: Mapping[str, Mapping[str, Any]], name: str) -> Any:
    """A setting of all results; of yes and no, no."""
    values = [result["settings"][name] for result in results.values()]
    return all(values) if isinstance(values[0], bool) else values[0]


def _check_same_leaves(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    (first, expected), *others = ((method, result["leaves"]) for method, result in results.items())
    for method, leaves in others:
        if leaves != expected:
            raise LabelSetError(
                f"different labels: '{first}' has {some(expected, 20)}; '{method}' has {some(leaves, 20)}"
            )
    return list(expected)


def _common_cases(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    names = {method: {case["case"] for case in result["cases"]} for method, result in results.items()}
    common = sorted(set.intersection(*names.values()))
    if not common:
        examples = "; ".join(f"'{method}' has {some(sorted(cases), 2)}" for method, cases in names.items())
        raise LabelSetError(f"the result sets have no case in common: {examples}")
    if len(common) < 2:
        raise LabelSetError(
            f"the result sets have only the case '{common[0]}' in common: a comparison needs two or more"
        )
    return common


def _check_same_references(
    scores: Mapping[str, Mapping[str, Any]], cases: Sequence[str], leaves: Sequence[str]
) -> None:
    """The same reference under the same contract: its voxels were counted alike."""
    first, *others = scores
    for case in cases:
        for leaf in leaves:
            expected = scores[first][case][leaf]
            for method in others:
                found = scores[method][case][leaf]
                if (found["n_ref"], found["union"]) != (expected["n_ref"], expected["union"]):
                    raise LabelSetError(
                        f"case '{case}', {leaf}: '{first}' and '{method}' were scored against different references or "
                        f"protocols: evaluate both against the same folder"
                    )


def load_results(arguments: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Evaluations by method name, and where they are, from `NAME=PATH` or `PATH`."""
    results, sources = {}, {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or Path(argument).exists():
            name, path = "", argument
        file = find_metrics(path)
        name = name or (file.parent.parent if file.parent.name == "evaluation" else file.parent).absolute().name
        if name in results:
            raise LabelSetError(f"two result sets are called '{name}': name them: NAME={path}")
        content = read_json(file)
        if content.get("version") != EVALUATION_VERSION or not {"cases", "leaves", "settings"} <= set(content):
            raise LabelSetError(f"{file}: not a result of 'nnunet_labelset evaluate' (version {EVALUATION_VERSION})")
        results[name], sources[name] = content, str(file.absolute())
    return results, sources


def find_metrics(path: str | Path) -> Path:
    """metrics.json, given itself, its folder, or the folder of the predictions."""
    candidates = [Path(path), Path(path) / "metrics.json", Path(path) / "evaluation" / "metrics.json"]
    for file in candidates:
        if file.is_file():
            return file
    raise LabelSetError(f"{path}: no metrics.json there: run 'nnunet_labelset evaluate' first")
