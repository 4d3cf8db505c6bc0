"""`nnunet_labelset evaluate`: scores of predictions against partially annotated references."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.scores import OUTCOMES, Pair, score_pair
from nnunet_labelset.evaluation.statistics import describe
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.io.parallel import map_parallel

VERSION = 1
METRICS = ("dice", "hd95")
COUNTS = ("tp", "fp", "fn", "tn", "n_ref", "n_pred", "volume_ref", "volume_pred")
SCORE_COLUMNS = ("case", "leaf", "outcome", "union", "dice", "iou", "hd95", *COUNTS)


def score_folder(pairs: Sequence[Pair], cache: Path, processes: int) -> list[dict[str, Any]]:
    """The scores of all pairs, sorted by case; each is kept in `cache` as soon as it is ready."""
    keys = {pair.case: _cache_key(pair) for pair in pairs}
    results = {pair.case: found for pair in pairs if (found := _from_cache(cache, pair, keys[pair.case]))}
    if results:
        print(f"{len(results)} of {len(pairs)} cases are already scored in {cache}")
    todo = [pair for pair in pairs if pair.case not in results]
    for pair, result in map_parallel(score_pair, todo, processes, "Evaluating"):
        results[pair.case] = result
        write_json(cache / f"{pair.case}.json", {"key": keys[pair.case], "result": result})
    return [results[case] for case in sorted(results)]


def _cache_key(pair: Pair) -> dict[str, Any]:
    """What a result depends on: the files by size and time, and the meaning of their values."""
    files = [Path(path).stat() for path in (pair.reference_file, pair.prediction_file)]
    key = {**asdict(pair), "version": VERSION, "files": [[file.st_size, file.st_mtime_ns] for file in files]}
    return json.loads(json.dumps(key, default=sorted))  # as it comes back from the file; label-sets become lists


def _from_cache(cache: Path, pair: Pair, key: Mapping[str, Any]) -> dict[str, Any] | None:
    file = cache / f"{pair.case}.json"
    if not file.is_file():
        return None
    try:
        content = read_json(file)
    except LabelSetError:
        return None
    return content.get("result") if content.get("key") == key else None


def cap_hd95(cases: Iterable[Mapping[str, Any]], cap: float | None) -> None:
    """Limit HD95 to `cap`, which is also the distance where only one of reference and prediction has the leaf."""
    for case in cases:
        for score in case["leaves"].values():
            if cap is not None and score["outcome"] in ("missed", "absent_in_reference"):
                score["hd95"] = cap
            elif cap is not None and score["hd95"] is not None:
                score["hd95"] = min(score["hd95"], cap)


def summarise(cases: Sequence[Mapping[str, Any]], leaves: Sequence[str]) -> dict[str, Any]:
    """n, mean, standard deviation and median per leaf, and how often each outcome occurred."""
    summary: dict[str, Any] = {"n_cases": len(cases), "leaves": {}, "mean": {}}
    for leaf in leaves:
        scores = [case["leaves"][leaf] for case in cases]
        summary["leaves"][leaf] = {
            **{metric: describe(score[metric] for score in scores) for metric in METRICS},
            "outcomes": {outcome: sum(score["outcome"] == outcome for score in scores) for outcome in OUTCOMES},
            "union": sum(score["union"] is not None for score in scores),
        }
    for metric in METRICS:
        summary["mean"][metric] = describe(summary["leaves"][leaf][metric]["mean"] for leaf in leaves)["mean"]
    return summary


def evaluation(
    cases: Sequence[dict[str, Any]],
    contract: Contract,
    groups: Mapping[str, Mapping[str, str]],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The content of metrics.json (docs/evaluation.md) but for missing and extra predictions."""
    leaves = contract.leaf_names[1:]
    columns = ["protocol", *groups]
    for case in cases:
        known = {column: of_case.get(case["case"], "") for column, of_case in groups.items()}
        case["groups"] = {"protocol": case["protocol"], **known}
    by_group: dict[str, dict[str, Any]] = {}
    for column in columns:
        members: dict[str, list[Mapping[str, Any]]] = {}
        for case in cases:
            members.setdefault(case["groups"][column], []).append(case)
        by_group[column] = {group: summarise(members[group], leaves) for group in sorted(members)}
    return {
        "version": VERSION,
        "settings": dict(settings),
        "labels": {leaf: value for value, leaf in enumerate(contract.leaf_names) if value},
        "leaves": list(leaves),
        "group_columns": columns,
        "cases": list(cases),
        "summary": {"overall": summarise(cases, leaves), "groups": by_group},
    }


def per_case_csv(metrics: Mapping[str, Any]) -> str:
    first, *others = SCORE_COLUMNS
    columns = [first, *metrics["group_columns"], *others]
    rows = []
    for case in metrics["cases"]:
        for leaf, score in case["leaves"].items():
            row = {
                **score,
                **case["groups"],
                "case": case["case"],
                "leaf": leaf,
                "union": "+".join(score["union"] or ()),
            }
            rows.append([row[column] for column in columns])
    return csv_text(columns, rows)


def summary_csv(metrics: Mapping[str, Any]) -> str:
    columns = ["group_column", "group", "leaf", "metric", "n", "mean", "sd", "median", *OUTCOMES, "union"]
    parts = [("", "", metrics["summary"]["overall"])]
    parts += [(column, name, part) for column, of in metrics["summary"]["groups"].items() for name, part in of.items()]
    rows = []
    for column, name, part in parts:
        for leaf, found in part["leaves"].items():
            counted = [*found["outcomes"].values(), found["union"]]
            rows += [[column, name, leaf, metric, *found[metric].values(), *counted] for metric in METRICS]
    return csv_text(columns, rows)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A CSV file; None is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([f"{field:.7g}" if isinstance(field, float) else field for field in row])
    return text.getvalue()


def screen_table(summary: Mapping[str, Any]) -> str:
    """A summary, overall or of a group: a line per leaf."""
    rows = [["leaf", "Dice %", "n", "HD95 mm", "n", *(outcome.replace("_", " ") for outcome in OUTCOMES), "union"]]
    for leaf, found in summary["leaves"].items():
        dice, distance = found["dice"], found["hd95"]
        scores = [mean_sd(dice, 100), dice["n"], mean_sd(distance), distance["n"]]
        rows.append([leaf, *map(str, [*scores, *found["outcomes"].values(), found["union"]])])
    mean = {metric: {"mean": value, "sd": None} for metric, value in summary["mean"].items()}
    rows.append(["mean", mean_sd(mean["dice"], 100), "", mean_sd(mean["hd95"])])
    widths = [max(len(row[column]) for row in rows[:-1]) for column in range(len(rows[0]))]
    lines = [[field.rjust(width) for field, width in zip(row, widths, strict=False)] for row in rows]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *line[1:]]) for row, line in zip(rows, lines, strict=True))


def mean_sd(found: Mapping[str, Any], scale: float = 1, digits: int = 1) -> str:
    """`91.5 (6.7)`, `91.5` where a single value has no deviation, `-` where there is none."""
    if found["mean"] is None:
        return "-"
    sd = "" if found["sd"] is None else f" ({scale * found['sd']:.{digits}f})"
    return f"{scale * found['mean']:.{digits}f}{sd}"
