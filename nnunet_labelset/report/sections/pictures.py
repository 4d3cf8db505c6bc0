"""Cases with slices: the worst, the median, and those on which the methods disagree most."""

from __future__ import annotations

from statistics import mean, median

from markupsafe import Markup

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.results import Outcome
from nnunet_labelset.io.progress import progress
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.colours import CONTOUR_COLOURS, ERROR_COLOURS, LEAF_COLOURS, leaf_colour
from nnunet_labelset.report.overlays import DrawnCase, find_image
from nnunet_labelset.report.page import (
    figure,
    header,
    join,
    legend,
    link,
    number,
    paragraph,
    plots,
    table,
)
from nnunet_labelset.report.painting import Painter
from nnunet_labelset.report.report import WIDE, Report

TITLE = "Drawn cases"
ERROR_WORDS = {
    "missed": "missed: background predicted where it cannot be",
    "invented": "invented: predicted on background",
    "wrong label": "wrong label",
}


def body(report: Report) -> Markup:
    contract = report.contract
    if contract is None:
        return paragraph(f"No pictures: {report.no_contract}", "note")
    chosen = choose_cases(report)
    if not chosen:
        return Markup("")
    parts = []
    for place, (case, why) in enumerate(progress(chosen.items(), "drawing")):
        heading = Markup("<h3>{} &ndash; {}</h3>").format(case, ", ".join(why))
        try:
            content = _case(report, contract, case, f"case{place}")
        except LabelSetError as error:  # files may have been moved since they were evaluated
            content = paragraph(f"No pictures: {error}", "note")
        parts.append(Markup('<div class="case">{}{}</div>').format(heading, content))
    return join([_intro(report), _legends(contract), *parts])


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
    """Cases from worst to best: the mean, over their scored leaves and unions, of Dice minus the
    leaf's median.

    A case in which only an easy leaf is annotated is not good for that, nor is one bad whose leaves
    are all hard.
    """
    differences: dict[str, list[float]] = {}
    for leaf in report.structures:
        scores = {case: report.value(method, case, leaf, "dice") for case in report.cases}
        known = {case: score for case, score in scores.items() if score is not None}
        middle = median(known.values()) if known else 0.0
        for case, score in known.items():
            differences.setdefault(case, []).append(score - middle)
    ranks = {case: mean(of) for case, of in differences.items()}
    return sorted(ranks, key=lambda case: (ranks[case], case))


def most_disputed(report: Report) -> str | None:
    """The case with the largest range of Dice between methods, on average over its leaves and
    unions.
    """
    ranges: dict[str, float] = {}
    for case in report.cases:
        found = []
        for leaf in report.structures:
            scores = [report.value(method, case, leaf, "dice") for method in report.methods]
            known = [score for score in scores if score is not None]
            if len(known) > 1:
                found.append(max(known) - min(known))
        if found:
            ranges[case] = mean(found)
    return max(ranges, key=lambda case: (ranges[case], case)) if any(ranges.values()) else None


def _intro(report: Report) -> Markup:
    words = (
        "Each view is the slice with the most errors among those through the bulk of what is "
        "drawn, cropped to what the reference labels. Reference and errors are hatched where the "
        "reference allows several labels; there, only what is known to be wrong is an error."
    )
    if not report.wanted_cases:
        best = ", the method with the best mean Dice" if len(report.methods) > 1 else ""
        by = "ranked by the mean difference of a label's Dice from its median over all cases"
        words = f"Worst and median cases of {report.best_method}{best}, {by}. {words}"
    return paragraph(words)


def _legends(contract: Contract) -> Markup:
    numbered = contract.num_leaves - 1 > len(LEAF_COLOURS)
    leaves = [
        (leaf_colour(leaf), f"{leaf} {spoken(name)}" if numbered else spoken(name))
        for leaf, name in enumerate(contract.leaf_names)
        if leaf
    ]
    errors = [(f"pattern: {kind.split()[0]}", ERROR_WORDS[kind]) for kind in ERROR_COLOURS]
    lines = [(colour, f"contour: {which}") for which, colour in CONTOUR_COLOURS.items()]
    names = legend([*leaves, ("hatch", "not (completely) annotated")])
    return Markup('<div class="legends">{}{}</div>').format(names, legend([*errors, *lines]))


def _case(report: Report, contract: Contract, case: str, name: str) -> Markup:
    first = report.first.by_case[case]
    files = [result.by_case[case].prediction_file for result in report.results.values()]
    image = find_image(first.reference_file, case, report.first.settings.file_ending)
    drawn = DrawnCase(first.reference_file, files, contract.protocol(case), image)
    painter = Painter(drawn, name)
    reference = link(first.reference_file, report.folder, "reference")
    seen = link(image, report.folder, "image") if image else "no image beside the references"
    rows = [
        [
            figure(
                f"{case} image",
                painter.picture(f"Image of case {case}" if image else f"No image of {case}"),
                seen,
            ),
            figure(
                f"{case} reference",
                painter.picture(f"Reference of case {case}", painter.reference()),
                reference,
            ),
        ]
    ]
    for number_, method in enumerate(report.methods):
        dice = report.case_mean(method, case)
        words = "" if dice is None else f", mean Dice {METRICS['dice'].show(dice)} %"
        named = Markup("{}{}").format(link(files[number_], report.folder, method), words)
        errors = ", ".join(
            f"{count:,} voxels {kind}" for kind, count in drawn.error_counts[number_].items()
        )
        if drawn.errors_outside[number_]:
            errors += f" ({drawn.errors_outside[number_]:,} of them outside of the pictures)"
        rows.append([])
        for kind, layer, caption in (
            ("prediction", painter.prediction(number_), named),
            ("contours", painter.contours(number_), f"{method}: contours"),
            ("errors", painter.errors(number_), f"{method}: {errors}"),
        ):
            picture = painter.picture(
                f"{method} on case {case}: {errors if kind == 'errors' else kind}", layer
            )
            rows[-1].append(figure(f"{case} {method} {kind}", picture, caption))
    groups = ", ".join(
        f"{column}: {value}" for column, value in report.first.groups_of(case).items() if value
    )
    return join(
        [
            paragraph(groups, "note"),
            _scores(report, case),
            painter.slider(),
            painter.definitions(),
            *(plots(figures, "pictures") for figures in rows),
        ]
    )


def _scores(report: Report, case: str) -> Markup:
    """The Dice of all leaves of a case that have one."""
    found = report.first.by_case[case].leaves
    leaves = [leaf for leaf, score in found.items() if score.outcome is not Outcome.NOT_ANNOTATED]
    heads = [spoken(leaf) for leaf in leaves]
    dice = METRICS["dice"]
    rows = []
    for method in report.methods:
        values = [report.value(method, case, leaf, dice.name) for leaf in leaves]
        rows.append([header(method), *(number(value, shown=dice.show(value)) for value in values)])
    if len(leaves) > WIDE:
        _, *columns = zip(*rows, strict=True)
        heads, rows = (
            report.methods,
            [[header(name), *column] for name, column in zip(heads, columns, strict=True)],
        )
    return table(f"Dice of {case}", [dice.heading, *heads], [rows])
