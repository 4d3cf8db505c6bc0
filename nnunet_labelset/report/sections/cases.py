"""The worst and the median cases of a report, with slices."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median

from tqdm import tqdm

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.results import UNANNOTATED
from nnunet_labelset.report.overlays import ERROR_COLOURS, CaseSlices, find_image, leaf_colour
from nnunet_labelset.report.page import legend, number, table, text
from nnunet_labelset.report.result import WIDE, Result, link, mean_dice, spoken

ERROR_WORDS = {
    "missed": "missed: background predicted where it cannot be",
    "invented": "invented: predicted on background",
    "wrong leaf": "wrong leaf",
}


def rank_cases(result: Result, cases: Sequence[str]) -> list[str]:
    """Cases from worst to best: the mean, over their scored leaves, of Dice minus the leaf's median.

    A case in which only an easy leaf is annotated is not good for that, nor is one bad whose leaves are all hard.
    """
    leaves = result.evaluation.leaves
    scores = {leaf: {case: result.cases[case].leaves[leaf].values["dice"] for case in cases} for leaf in leaves}
    medians = {leaf: median(known) for leaf in leaves if (known := [v for v in scores[leaf].values() if v is not None])}
    ranks = {}
    for case in cases:
        differences = [dice - medians[leaf] for leaf in medians if (dice := scores[leaf][case]) is not None]
        if differences:
            ranks[case] = sum(differences) / len(differences)
    return sorted(ranks, key=lambda case: (ranks[case], case))


def choose_cases(ranked: Sequence[str], worst: int) -> list[tuple[str, str]]:
    """`(why, case)`: the worst cases, then the median one if it is not among them."""
    chosen = [
        (f"worst case {number}" if number > 1 else "worst case", case) for number, case in enumerate(ranked[:worst], 1)
    ]
    middle = ranked[len(ranked) // 2] if ranked else None
    if middle is not None and middle not in ranked[:worst]:
        chosen.append(("median case", middle))
    return chosen


def cases_section(
    results: Sequence[Result], contract: Contract, common: Sequence[str], worst: int, folder: Path
) -> str:
    """Pictures of the worst and the median cases of the best method, with all methods on the same slices."""
    best = max(results, key=lambda result: result.evaluation.summary.overall.mean["dice"] or 0)
    chosen = choose_cases(rank_cases(best, common), worst)
    if not chosen:
        return "<p>No case has a score.</p>"
    parts = []
    for why, case in tqdm(chosen, desc="Drawing", unit="case", disable=None):
        heading = f"<h3>{escape(case)} &ndash; {why}</h3>"
        try:
            body = _case(results, contract, case, folder)
        except LabelSetError as error:  # files may have been moved since they were evaluated
            body = f'<p class="note">No pictures: {escape(str(error))}</p>'
        parts.append(f'<div class="case">{heading}{body}</div>')
    chosen_by = f" of {escape(best.name)}, the method with the best mean Dice" if len(results) > 1 else ""
    intro = (
        f"<p>Worst and median cases{chosen_by}, ranked by the mean difference of a leaf's Dice from its median over "
        "all cases. Each view is the slice with the most errors among those through the bulk of what is drawn. "
        "Reference and errors are hatched where the reference leaves several leaves possible; there, only what is "
        "known to be wrong is an error.</p>"
    )
    leaves = [(leaf_colour(leaf), spoken(name)) for leaf, name in enumerate(contract.leaf_names) if leaf]
    errors = [(f"#{colour}", ERROR_WORDS[kind]) for kind, colour in ERROR_COLOURS.items()]
    return intro + legend([*leaves, ("hatch", "not (completely) annotated")]) + legend(errors) + "".join(parts)


def _case(results: Sequence[Result], contract: Contract, case: str, folder: Path) -> str:
    first = results[0].cases[case]
    ending = results[0].evaluation.settings.file_ending
    files = [result.cases[case].prediction_file for result in results]
    image = find_image(first.reference_file, case, ending)
    slices = CaseSlices(first.reference_file, files, contract.sets_of(case), contract.num_leaves, image)
    views = ", ".join(slices.views)
    groups = ", ".join(f"{column}: {value}" for column, value in first.groups.items() if value)
    figures = [
        _figure(
            slices.picture_of_reference(),
            f"Reference of case {case}, {views}",
            link(first.reference_file, folder, "reference"),
        ),
        _figure(
            slices.picture_of_image(),
            f"Image of case {case}, {views}" if image else f"No image of case {case} found",
            link(image, folder, "image") if image else "no image beside the references",
        ),
    ]
    for method, result in enumerate(results):
        errors = slices.error_counts(method)
        words = ", ".join(f"{count} voxels {kind}" for kind, count in errors.items())
        name = link(files[method], folder, result.name)
        scores = mean_dice(result.cases[case])
        dice = "" if scores is None else f", mean Dice {scores:.1f} %"
        figures.append(
            _figure(slices.picture_of_prediction(method), f"{result.name} on case {case}, {views}", f"{name}{dice}")
        )
        figures.append(
            _figure(
                slices.picture_of_errors(method), f"Errors of {result.name} on case {case}: {words}", f"errors: {words}"
            )
        )
    return (
        f'<p class="note">{escape(groups)}</p>'
        + _scores(results, case)
        + f'<div class="pictures">{"".join(figures)}</div>'
    )


def _figure(source: str, alt: str, caption: str) -> str:
    """A picture; `caption` is HTML, `alt` is text."""
    return f'<figure><img src="{source}" alt="{escape(alt)}"><figcaption>{caption}</figcaption></figure>'


def _scores(results: Sequence[Result], case: str) -> str:
    """The Dice of all leaves of a case that have one."""
    leaves = [leaf for leaf, score in results[0].cases[case].leaves.items() if score.outcome != UNANNOTATED]
    scores = {
        leaf: [
            number(None if (dice := result.cases[case].leaves[leaf].values["dice"]) is None else 100 * dice)
            for result in results
        ]
        for leaf in leaves
    }
    if len(leaves) > WIDE:
        rows = [[text(spoken(leaf)), *scores[leaf]] for leaf in leaves]
        return table(f"Dice of {case}", ["Dice %", *(result.name for result in results)], rows)
    rows = [[text(result.name), *(scores[leaf][row] for leaf in leaves)] for row, result in enumerate(results)]
    return table(f"Dice of {case}", ["Dice %", *map(spoken, leaves)], rows)
