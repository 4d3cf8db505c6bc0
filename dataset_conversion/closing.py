"""The closing words of `convert` and `merge`: what was noticed, the coverage table, the next
command.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from nnunet_labelset.dataset_conversion.dataset import Written
from nnunet_labelset.dataset_conversion.notes import MOST_LINES, note_lines
from nnunet_labelset.datasets.coverage import coverage_table, describe_label_sets, format_table
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.names import RAW, dataset_words
from nnunet_labelset.nnunet.publish import NOTES
from nnunet_labelset.nnunet.raw import TEST, TRAINING
from nnunet_labelset.nnunet.recommendation import next_commands

BACKGROUND = "background"


def closing_words(written: Written, folder: Path, remarks: Sequence[str] = ()) -> str:
    parts = [job.part for job in written.jobs.values()]
    lines = [f"{folder}: {parts.count(TRAINING)} training and {parts.count(TEST)} test cases"]
    if written.resumed:
        lines.append(
            f"{written.resumed} of them were already there from a run that had been stopped"
        )
    lines += [f"skipped: {text}" for text in written.skipped]
    lines += [f"note: {text}" for text in remarks]
    if written.kept:
        lines.append(f"note: kept from the data set that was replaced: {some(written.kept)}")
    lines += note_lines(written.notes)
    if written.notes:
        lines.append(f"note: all notes, case by case: {folder / NOTES}")
    unlabelled = [case for case in written.jobs if case not in written.contract.cases]
    if unlabelled:
        lines.append(f"note: test cases without label map: {some(unlabelled)}")
    training = [case for case in written.contract.cases if written.jobs[case].part == TRAINING]
    never = [
        leaf
        for leaf, count in written.contract.coverage(training).items()
        if not count and leaf != BACKGROUND
    ]
    if never:
        lines.append(f"note: annotated in no training case: {', '.join(never)}")
    number, _ = dataset_words(folder.name) or (folder.name, "")
    lines += ["", _coverage(written).rstrip(), "", "next:"]
    if os.path.realpath(os.environ.get(RAW, "")) != os.path.realpath(folder.parent):
        lines.append(f"  export {RAW}={shlex.quote(str(folder.parent.resolve()))}")
    names = written.contract.leaf_names
    return "\n".join([*lines, *next_commands(number, folder, names, flat=written.is_flat)])


def _coverage(written: Written) -> str:
    """The paper's Table 1 by part and source, and what the label-sets are; the verb `coverage`
    shows all of it.
    """
    few = len({job.source for job in written.jobs.values()}) <= MOST_LINES
    groups = {case: job.source if few else "all sources" for case, job in written.jobs.items()}
    rows = []
    for part in (TRAINING, TEST):
        cases = [case for case in written.contract.cases if written.jobs[case].part == part]
        rows += coverage_table(written.contract, cases, groups, part) if cases else []
    sets = describe_label_sets(written.contract).splitlines()
    if len(sets) > 2 * MOST_LINES:
        sets[MOST_LINES:] = [f"  ... ({len(sets) - MOST_LINES} more: nnunet_labelset coverage)"]
    return "in how many cases each label is annotated:\n" + format_table(rows) + "\n".join(sets)
