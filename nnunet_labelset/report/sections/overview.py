"""The tables of a report: coverage, leaves, groups, cases and files."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from nnunet_labelset.contract import Contract
from nnunet_labelset.datasets.coverage import coverage_table, describe_label_sets
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.results import OUTCOMES, Summary
from nnunet_labelset.report.page import Cell, number, table, text
from nnunet_labelset.report.result import WIDE, Result, link, mean_dice, spoken, used_metrics
from nnunet_labelset.report.sections.comparison import description_cell, metric_cell


def coverage_section(contract: Contract, evaluated: Sequence[str]) -> str:
    """In how many cases each leaf is annotated: those that were evaluated, and the others, which trained."""
    known = [case for case in evaluated if case in contract.cases]
    others = [case for case in contract.cases if case not in set(evaluated)]
    rows = coverage_table(contract, others, part="not evaluated (training)") if others else []
    starts = [0, len(rows)]
    rows += coverage_table(contract, known, part="evaluated") if known else []
    leaves = contract.leaf_names[1:]
    if len(leaves) > WIDE:
        columns = ["leaf", *(f"{row.part}\n{row.group}\nn = {row.cases}" for row in rows)]
        cells = [[text(spoken(leaf)), *(_shaded(row.counts[leaf], row.cases) for row in rows)] for leaf in leaves]
        content = table("Coverage", columns, cells)
    else:
        columns = ["cases", "group", "n", *map(spoken, leaves)]
        cells = [
            [text(row.part, "text"), text(row.group, "text"), number(row.cases, 0)]
            + [_shaded(row.counts[leaf], row.cases) for leaf in leaves]
            for row in rows
        ]
        content = table("Coverage", columns, cells, 2, starts)
    heading, *sets = describe_label_sets(contract).splitlines() or [""]
    note = f'<p class="note">{escape(heading)} {escape("; ".join(map(str.strip, sets)))}</p>' if sets else ""
    intro = "<p>Number of cases in which each leaf is annotated, by protocol. Darker: a larger share of the group.</p>"
    return intro + content + note


def _shaded(count: int, of: int) -> Cell:
    share = count / of if of else 0
    return Cell(str(count), str(count), style=f"background:rgba(0,114,178,{0.45 * share:.2f})")


def groups_section(results: Sequence[Result]) -> str:
    """Mean (sd) of every group, method and metric; nothing if all cases are in one group."""
    parts = []
    leaves, metrics = results[0].evaluation.structures, used_metrics(results)
    for column in results[0].evaluation.group_columns:
        groups = sorted({name for result in results for name in result.evaluation.summary.groups.get(column, {})})
        if len(groups) < 2:
            continue
        rows: list[list[Cell]] = []
        starts = []
        for group in groups:
            starts.append(len(rows))
            found = {result.name: result.evaluation.summary.groups.get(column, {}).get(group) for result in results}
            name = text(group or "(not known)")
            if len(leaves) > WIDE:
                for leaf in leaves:
                    cells = [_plain(found[method], leaf, metric) for metric in metrics for method in found]
                    rows.append([name, text(spoken(leaf), "text"), *cells])
                continue
            for metric in metrics:
                for method, of in found.items():
                    cells = [_plain(of, leaf, metric) for leaf in leaves]
                    rows.append([name, text(method), metric_cell(metric), number(of.n_cases if of else 0, 0), *cells])
        if len(leaves) > WIDE:
            heads = [f"{result.name}\n{METRICS[metric].heading}" for metric in metrics for result in results]
            content = table(f"By {column}", ["group", "leaf", *heads], rows, 2, starts)
        else:
            heads = ["group", "method", "metric", "cases", *map(spoken, leaves)]
            content = table(f"By {column}", heads, rows, 3, starts)
        parts.append(f"<h3>By {escape(column)}</h3>{content}")
    return "".join(parts)


def _plain(summary: Summary | None, leaf: str, metric: str) -> Cell:
    """Mean (sd) without marks; empty if the group has no cases."""
    if summary is None:
        return number(None)
    return description_cell(METRICS[metric], summary.leaves[leaf].metrics[metric])


def summary_section(results: Sequence[Result]) -> str:
    """Scores of every method and leaf, and how often each outcome occurred (unannotated is not missed)."""
    metrics = used_metrics(results)
    rows: list[list[Cell]] = []
    starts = []
    for result in results:
        starts.append(len(rows))
        for leaf, found in result.evaluation.summary.overall.leaves.items():
            rows.append([text(result.name), text(spoken(leaf), "text")])
            for metric in metrics:
                median = found.metrics[metric].median
                rows[-1].append(_plain(result.evaluation.summary.overall, leaf, metric))
                rows[-1].append(number(None if median is None else METRICS[metric].scale * median))
            rows[-1] += [number(found.outcomes[outcome], 0) for outcome in OUTCOMES]
            rows[-1].append(number(found.union, 0))
    intro = (
        "<p>Scored: present in reference and prediction. Missed: not predicted. Absent in the reference: predicted "
        "where it is known not to be. Unannotated: nobody knows, so nothing is scored. Union: scored together with the "
        "leaves that the reference does not tell apart.</p>"
    )
    heads = [f"{METRICS[metric].heading}\n{what}" for metric in metrics for what in ("mean (sd)", "median")]
    counted = ["scored", "missed", "absent in\nreference", "absent\nin both", "unanno-\ntated", "union"]
    return intro + table("Summary", ["method", "leaf", *heads, *counted], rows, 2, starts)


def all_cases_section(results: Sequence[Result], folder: Path) -> str:
    """Every case with its mean Dice and its files."""
    columns = [*results[0].evaluation.group_columns]
    names = sorted({case for result in results for case in result.cases})
    rows = []
    for name in names:
        of = [result.cases.get(name) for result in results]
        known = next(case for case in of if case is not None)
        files = [link(known.reference_file, folder, "reference")]
        files += [
            link(case.prediction_file, folder, result.name) for case, result in zip(of, results, strict=True) if case
        ]
        rows.append(
            [
                text(name),
                *(text(known.groups.get(column, "")) for column in columns),
                *(number(mean_dice(case), shown=None) for case in of),
                Cell(", ".join(files), kind="name"),
            ]
        )
    heads = ["case", *columns, *(f"{result.name}\nmean Dice %" for result in results), "files"]
    return "<p>Mean Dice over the leaves that are scored in a case.</p>" + table("Cases", heads, rows, 1 + len(columns))


def files_section(results: Sequence[Result], folder: Path) -> str:
    items = []
    for result in results:
        names = ("metrics.json", "summary.json", "per_case.csv", "summary.csv")
        links = ", ".join(
            link(path, folder, path.name) for name in names if (path := result.file.parent / name).is_file()
        )
        settings = result.evaluation.settings
        items.append(
            f"<li>{escape(result.name)}: {links}; predictions: {link(settings.prediction_folder, folder)}</li>"
        )
    settings = results[0].evaluation.settings
    items.append(f"<li>references: {link(settings.reference_folder, folder)}</li>")
    items.append(f"<li>data set: {link(settings.dataset_json, folder)}</li>")
    return f"<ul>{''.join(items)}</ul>"
