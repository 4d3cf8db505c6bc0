"""The cases: drawn with their slices, listed as failures, with links to their files; in how many of
them each label is annotated; the curves of the folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from markupsafe import Markup, escape
from tqdm import tqdm

from nnunet_labelset.contract import Contract
from nnunet_labelset.datasets.coverage import CoverageRow, coverage_table, describe_label_sets
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.metric import KNOWN_WRONG, METRICS
from nnunet_labelset.evaluation.results import Outcome
from nnunet_labelset.evaluation.score_folder import FAILURE, Failure, failures
from nnunet_labelset.io.text import spoken
from nnunet_labelset.nnunet.names import SUMMARY
from nnunet_labelset.report.page import (
    WIDE,
    Cell,
    Report,
    bullets,
    details,
    figure,
    header,
    join,
    legend,
    link,
    number,
    paragraph,
    plots,
    scroll,
    table,
    text,
)
from nnunet_labelset.report.painting import DrawnCase, Painter, find_image
from nnunet_labelset.report.plots import ERROR_KINDS, label_colour, line_plot, method_colour

ERROR_WORDS = {
    "missed": "missed: background predicted where it cannot be",
    "invented": "invented: predicted on background",
    "wrong label": "wrong label",
}


def pictures_section(report: Report) -> Markup:
    contract = report.contract
    if contract is None:
        return paragraph(f"No pictures: {report.no_contract}", "note")
    anchors = case_anchors(report)
    if not anchors:
        return Markup("")
    reasons = choose_cases(report)
    parts = []
    for case, anchor in tqdm(anchors.items(), desc="Drawing", unit="case", disable=None):
        heading = Markup("<h3>{} &ndash; {}</h3>").format(case, ", ".join(reasons[case]))
        try:
            content = _case(report, contract, case, anchor)
        except (LabelSetError, OSError) as error:  # moved or closed since they were evaluated
            content = paragraph(f"No pictures: {error}", "note")
        block = Markup('<div class="case" id="{}">{}{}</div>')
        parts.append(block.format(anchor, heading, content))
    return join([_intro(report), _legends(report, contract), *parts])


def case_anchors(report: Report) -> dict[str, str]:
    """Return where a drawn case stands in the page, for links."""
    if report.contract is None:
        return {}
    return {case: f"case{place}" for place, case in enumerate(choose_cases(report))}


def choose_cases(report: Report) -> dict[str, list[str]]:
    """Cases to draw, and why: those that were named, or the worst, the median and the most disputed
    ones.
    """
    if report.wanted_cases:
        return {case: ["asked for"] for case in report.wanted_cases}
    if not report.worst:
        return {}
    chosen: dict[str, list[str]] = {}
    ranked = rank_cases(report, report.best_method)
    for place, case in enumerate(ranked[: report.worst], 1):
        chosen.setdefault(case, []).append("worst case" if place == 1 else f"worst case {place}")
    if ranked:
        chosen.setdefault(ranked[len(ranked) // 2], []).append("median case")
    if disputed := most_disputed(report):
        chosen.setdefault(disputed, []).append("largest disagreement between methods")
    return chosen


def rank_cases(report: Report, method: str) -> list[str]:
    """Return cases from worst to best: the mean, over their scored labels and unions, of Dice minus
    the label's median.

    A case in which only an easy label is annotated is not good for that, nor is one bad whose
    labels are all hard.
    """
    differences: dict[str, list[float]] = {}
    for label in report.structures:
        scores = {case: report.value(method, case, label, "dice") for case in report.cases}
        known = {case: score for case, score in scores.items() if score is not None}
        middle = median(known.values()) if known else 0.0
        for case, score in known.items():
            differences.setdefault(case, []).append(score - middle)
    ranks = {case: mean(values) for case, values in differences.items()}
    return sorted(ranks, key=lambda case: (ranks[case], case))


def most_disputed(report: Report) -> str | None:
    """Return the case with the largest range of Dice between methods, on average over its labels
    and unions.
    """
    ranges = {case: _dice_ranges(report, case) for case in report.cases}
    means = {case: mean(values) for case, values in ranges.items() if values}
    if not any(means.values()):
        return None
    return max(means, key=lambda case: (means[case], case))


def _dice_ranges(report: Report, case: str) -> list[float]:
    """Return the range of Dice between methods, for every label that two or more have scored."""
    ranges = []
    for label in report.structures:
        scores = [report.value(method, case, label, "dice") for method in report.methods]
        known = [score for score in scores if score is not None]
        if len(known) > 1:
            ranges.append(max(known) - min(known))
    return ranges


def _intro(report: Report) -> Markup:
    words = (
        "Each view is the slice with the most errors among those through the bulk of what is "
        "drawn, cropped to what the reference labels. Reference and errors are hatched where the "
        "reference leaves several labels possible; there, only what is known to be wrong is an "
        "error."
    )
    if not report.wanted_cases:
        best = ", the method with the best mean Dice" if len(report.methods) > 1 else ""
        rule = "ranked by the mean difference of a label's Dice from its median over all cases"
        words = f"Worst and median cases of {report.best_method}{best}, {rule}. {words}"
    return paragraph(words)


def _legends(report: Report, contract: Contract) -> Markup:
    """Return what stays in view above the pictures; the names of many labels are folded."""
    names = [
        (label_colour(label), f"{label} {spoken(name)}")
        for label, name in enumerate(contract.leaf_names)
        if label
    ]
    signs = [(f"pattern: {kind.split()[0]}", ERROR_WORDS[kind]) for kind in ERROR_KINDS]
    signs += [("hatch", "not (completely) annotated"), ("contour:solid #fff", "reference")]
    for place, method in enumerate(report.methods):
        signs.append((f"contour:dashed {method_colour(place)}", method))
    labels = legend(names)
    if len(names) > WIDE:
        labels = details(f"Numbers of the {len(names)} labels", labels)
    content = Markup("{}{}").format(legend(signs), labels)
    return Markup('<div class="legends">{}</div>').format(scroll("Legend of the pictures", content))


def _case(report: Report, contract: Contract, case: str, anchor: str) -> Markup:
    first = report.first.by_case[case]
    files = [result.by_case[case].prediction_file for result in report.results.values()]
    image = find_image(first.reference_file, case, report.first.settings.file_ending)
    drawn = DrawnCase(first.reference_file, files, contract.protocol(case), image)
    painter = Painter(drawn, anchor)
    figures = [_given_figures(report, painter, case, image)]
    for place, method in enumerate(report.methods):
        dice = report.case_mean(method, case)
        score = "" if dice is None else f", mean Dice {METRICS['dice'].show(dice)} %"
        caption = Markup("{}{}").format(link(files[place], report.folder, method), score)
        figures.append(_method_figures(painter, place, case, method, caption))
    groups = report.first.groups_of(case)
    known = [f"{column}: {value}" for column, value in groups.items() if value]
    rows = [plots(row, "pictures") for row in figures]
    scores = _dice_table(report, case)
    head = [paragraph(", ".join(known), "note"), scores, painter.slider(), painter.definitions()]
    return join([*head, *rows])


def _given_figures(report: Report, painter: Painter, case: str, image: Path | None) -> list[Markup]:
    """Return image and reference."""
    reference_file = report.first.by_case[case].reference_file
    seen: object = "no image beside the references"
    if image is not None:
        seen = link(image, report.folder, "image")
    image_label = f"Image of case {case}" if image else f"No image of {case}"
    drawn_image = painter.picture(image_label)
    drawn_reference = painter.picture(f"Reference of case {case}", painter.reference())
    return [
        figure(f"{case} image", drawn_image, seen),
        figure(
            f"{case} reference", drawn_reference, link(reference_file, report.folder, "reference")
        ),
    ]


def _method_figures(
    painter: Painter, place: int, case: str, method: str, caption: Markup
) -> list[Markup]:
    """Return prediction, contours and errors of a method."""
    drawn = painter.case
    counts = drawn.error_counts[place].items()
    errors = ", ".join(f"{count:,} voxels {kind}" for kind, count in counts)
    if drawn.errors_outside[place]:
        errors += f" ({drawn.errors_outside[place]:,} of them outside of the pictures)"
    figures = []
    for kind, layer, words, shown in (
        ("prediction", painter.prediction(place), "prediction", caption),
        ("contours", painter.contours(place), "contours", f"{method}: contours"),
        ("errors", painter.errors(place), errors, f"{method}: {errors}"),
    ):
        picture = painter.picture(f"{method} on case {case}: {words}", layer)
        figures.append(figure(f"{case} {method} {kind}", picture, shown))
    return figures


def _dice_table(report: Report, case: str) -> Markup:
    """Return the Dice of all labels that a case has; many of them stand in rows and are folded."""
    scores = report.first.by_case[case].leaves
    labels = [name for name, score in scores.items() if score.outcome is not Outcome.NOT_ANNOTATED]
    dice = METRICS["dice"]

    def cell(method: str, label: str) -> Cell:
        value = report.value(method, case, label, dice.name)
        return number(value, shown=dice.show(value))

    if len(labels) > WIDE:
        rows = []
        for label in labels:
            rows.append([header(spoken(label)), *(cell(each, label) for each in report.methods)])
        content = table(f"Dice of {case}", [dice.heading, *report.methods], [rows])
        return details(f"Dice of {len(labels)} labels", content)
    rows = []
    for method in report.methods:
        rows.append([header(method), *(cell(method, label) for label in labels)])
    return table(f"Dice of {case}", [dice.heading, *map(spoken, labels)], [rows])


DICE = METRICS["dice"]
MOST = 50  # that are listed


def failures_section(report: Report) -> Markup:
    entries: list[tuple[str, Failure]] = []
    for method, result in report.results.items():
        entries += [(method, failure) for failure in failures(result, FAILURE)]
    below = f"Dice below {100 * FAILURE:g} %"
    if not entries:
        return paragraph(f"No label of any case has a {below}.")
    entries.sort(key=lambda entry: entry[1].dice)
    anchors = case_anchors(report)
    rows = [_failure_row(method, failure, anchors) for method, failure in entries[:MOST]]
    words = f"{len(entries)} with a {below}, the worst first."
    if len(entries) > MOST:
        words += f" The first {MOST} are listed; all are in failures.csv."
    if not set(anchors) >= {failure.case for _, failure in entries}:
        words += " A case without a link was not drawn: --cases or --worst draws it."
    heads = ["case", report.unit, "method", "outcome", DICE.heading]
    return paragraph(words) + table("Failures", heads, [rows], 4)


def _failure_row(method: str, failure: Failure, anchors: Mapping[str, str]) -> list[Cell]:
    name: object = failure.case
    if failure.case in anchors:
        name = Markup('<a href="#{}">{}</a>').format(anchors[failure.case], failure.case)
    return [
        header(name),
        text(spoken(failure.label)),
        text(method, "name"),
        text(failure.outcome.value),
        number(failure.dice, shown=DICE.show(failure.dice)),
    ]


WRITTEN = ("metrics.json", SUMMARY, "per_case.csv", "averages.csv", "failures.csv")


def source_files_section(report: Report) -> Markup:
    columns = list(report.first.group_columns)
    names: set[str] = set()
    for result in report.results.values():
        names |= result.by_case.keys()
    rows = [_case_row(report, name, columns) for name in sorted(names)]
    heads = ["case", *columns, *(f"{method}\nmean {DICE.heading}" for method in report.methods)]
    heads += [*(f"{method}\n{KNOWN_WRONG.heading.lower()}" for method in report.methods), "files"]
    intro = paragraph("Mean Dice over the labels that are scored in a case.")
    return intro + table("Cases", heads, [rows], 1 + len(columns)) + _files(report)


def _case_row(report: Report, name: str, columns: Sequence[str]) -> list[Cell]:
    groups = report.first.groups_of(name)
    row = [header(name), *(text(groups[column], "name") for column in columns)]
    dice: list[Cell] = []
    wrong: list[Cell] = []
    links: list[Markup] = []
    for method, result in report.results.items():
        case = result.by_case.get(name)
        if case is None:
            dice.append(number(None))
            wrong.append(number(None))
            continue
        mean, share = report.case_mean(method, name), case.known_wrong_share
        dice.append(number(mean, shown=DICE.show(mean)))
        wrong.append(number(share, shown=KNOWN_WRONG.show(share)))
        if not links:
            links.append(link(case.reference_file, report.folder, "reference"))
        links.append(link(case.prediction_file, report.folder, method))
    return [*row, *dice, *wrong, Cell(join(links, ", "), kind="name")]


def _files(report: Report) -> Markup:
    lines = []
    for method, result in report.results.items():
        folder = Path(report.sources[method]).parent
        written = [folder / name for name in WRITTEN if (folder / name).is_file()]
        links = [link(path, report.folder, path.name) for path in written]
        predictions = link(result.settings.prediction_folder, report.folder)
        lines.append(
            Markup("{}: {}; predictions: {}").format(method, join(links, ", "), predictions)
        )
    lines.append(
        Markup("references: {}").format(link(report.first.settings.reference_folder, report.folder))
    )
    lines.append(
        Markup("data set: {}").format(link(report.first.settings.dataset_json, report.folder))
    )
    return bullets(lines)


COVERAGE_NOTE = (
    "Number of cases in which each label is annotated, by protocol. Darker: a larger share of the "
    "group."
)


def coverage_section(report: Report) -> Markup:
    contract = report.contract
    if contract is None:
        return Markup("")
    evaluated = set(report.cases)
    parts: dict[str, list[str]] = {"not evaluated (training)": [], "evaluated": []}
    for case in contract.cases:
        parts["evaluated" if case in evaluated else "not evaluated (training)"].append(case)
    groups = [coverage_table(contract, cases, part=part) for part, cases in parts.items() if cases]
    labels = list(groups[0][0].counts)  # with the regions
    if len(labels) > WIDE:
        content = details(f"{len(labels)} labels", _rows_by_label(groups, labels))
    else:
        content = _rows_by_group(groups, labels)
    return paragraph(COVERAGE_NOTE) + content + _label_sets(contract)


def _rows_by_label(groups: Sequence[Sequence[CoverageRow]], labels: Sequence[str]) -> Markup:
    rows = [row for group in groups for row in group]
    columns = [f"{row.part}\n{row.group}\nn = {row.cases}" for row in rows]
    lines = []
    for label in labels:
        counts = [_shaded(row.counts[label], row.cases) for row in rows]
        lines.append([header(spoken(label)), *counts])
    return table("Coverage", ["label", *columns], [lines])


def _rows_by_group(groups: Sequence[Sequence[CoverageRow]], labels: Sequence[str]) -> Markup:
    def cells(row: CoverageRow) -> list[Cell]:
        counts = [_shaded(row.counts[label], row.cases) for label in labels]
        return [header(row.part), text(row.group), number(row.cases, 0), *counts]

    bodies = [list(map(cells, rows)) for rows in groups]
    return table("Coverage", ["cases", "group", "n", *map(spoken, labels)], bodies, 2)


def _label_sets(contract: Contract) -> Markup:
    """Return what values stand for that may be several labels."""
    heading, *sets = describe_label_sets(contract).splitlines() or [""]
    if not sets:
        return Markup("")
    return paragraph(f"{heading} {'; '.join(map(str.strip, sets))}", "note")


def _shaded(count: int, cases: int) -> Cell:
    share = count / cases if cases else 0
    style = f"background:rgba(110,119,129,{0.4 * share:.2f})"
    return Cell(escape(count), str(count), style=style)


LINES = (
    ("line:solid", "training loss, pseudo-Dice"),
    ("line:dashed", "validation loss"),
)


def training_section(report: Report) -> Markup:
    parts = []
    for name, folds in report.models.items():
        losses = [
            (f"fold {fold.fold}, {kind}", style, values)
            for fold in folds
            for kind, style, values in (
                ("training", "train", fold.train_loss),
                ("validation", "val", fold.val_loss),
            )
        ]
        pseudo = [(f"fold {fold.fold}", "pseudo", fold.pseudo_dice) for fold in folds]
        drawn = (
            line_plot("Loss", losses, "loss"),
            line_plot("Pseudo-Dice", pseudo, "mean over labels", (0.0, 1.0)),
        )
        figures = [
            figure(f"{name} curves {number}", plot) for number, plot in enumerate(drawn) if plot
        ]
        parts.append(
            Markup("<h3>{}: {} fold(s)</h3>{}").format(
                name, len(folds), plots(figures, "plots two")
            )
        )
    if not parts:
        return Markup("")
    intro = "One line per fold, from nnU-Net's training logs. Point at a line for its fold."
    return paragraph(intro) + legend(LINES) + join(parts)
