"""The closing words of `convert` and `merge`: what was noticed, the coverage table, the next
command.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nnunet_labelset.dataset_conversion.dataset import Written
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.datasets.coverage import coverage_table, describe_label_sets, format_table
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.folders import preprocessed_copy
from nnunet_labelset.nnunet.names import RAW, dataset_words
from nnunet_labelset.nnunet.publish import NOTES
from nnunet_labelset.nnunet.raw import TEST, TRAINING
from nnunet_labelset.nnunet.recommendation import next_commands

MOST_LINES = 10  # of one kind; the table has them all


def closing_words(written: Written, folder: Path, remarks: Sequence[str] = ()) -> str:
    """Return what was written, what was noticed, the coverage table and the next commands."""
    if not written.added:
        lines = [f"{folder}: nothing to add", *_counts(written, folder)]
        return "\n".join(lines)
    number, _ = dataset_words(folder.name) or (folder.name, "")
    lines = [*_counts(written, folder), *_notes(written, folder, remarks)]
    lines += ["", _coverage(written).rstrip(), "", "next:"]
    if os.path.realpath(os.environ.get(RAW, "")) != os.path.realpath(folder.parent):
        lines.append(f"  export {RAW}={shlex.quote(str(folder.parent.resolve()))}")
    names = written.contract.leaf_names
    return "\n".join([*lines, *next_commands(number, folder, names, flat=written.is_flat)])


def _counts(written: Written, folder: Path) -> Iterator[str]:
    parts = list(written.parts.values())
    yield f"{folder}: {parts.count(TRAINING)} training and {parts.count(TEST)} test cases"
    if 0 < len(written.added) < len(parts):
        yield f"{len(written.added)} of them are new, the others stay as they were"
    if written.resumed:
        yield f"{written.resumed} of them were finished by an earlier run that was interrupted"
    yield from (f"skipped: {text}" for text in written.skipped)


def _notes(written: Written, folder: Path, remarks: Sequence[str]) -> Iterator[str]:
    yield from (f"note: {text}" for text in remarks)
    if len(written.added) < len(written.parts) and preprocessed_copy(folder) is not None:
        yield (
            "note: nnU-Net has preprocessed this data set without the new cases, and its folds do "
            "not have them: preprocess again and make new splits (splits --overwrite)"
        )
    if written.kept:
        yield f"note: kept from the data set that was replaced: {some(written.kept)}"
    yield from _note_lines(written.notes)
    yield from (f"note: {text}" for text in written.slips)
    if written.notes:
        yield f"note: all notes, case by case: {folder / NOTES}"
    unlabelled = [case for case in written.parts if case not in written.contract.cases]
    if unlabelled:
        yield f"note: test cases without label map: {some(unlabelled)}"


def _note_lines(notes: Iterable[tuple[str, Note]]) -> list[str]:
    """Return notes by kind and by what they are about, the most frequent first."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for case, note in notes:
        cases = kinds.setdefault(note.kind, {}).setdefault(note.about, [])
        cases.append(f"{note.detail} in {case}" if note.detail else case)
    lines = []
    for kind, things in kinds.items():
        ordered = sorted(things.items(), key=lambda item: -len(item[1]))
        for about, cases in ordered[:MOST_LINES]:
            lines.append(
                f"note: {kind}{': ' + about if about else ''}: {some(dict.fromkeys(cases))}"
            )
        if len(ordered) > MOST_LINES:
            lines.append(f"note: {kind}: {len(ordered) - MOST_LINES} more, see {NOTES}")
    return lines


def _coverage(written: Written) -> str:
    """Return in how many cases of each source every label is annotated, and the label-sets."""
    has_few = len(set(written.groups.values())) <= MOST_LINES
    groups = written.groups if has_few else dict.fromkeys(written.groups, "all sources")
    rows = []
    for part in (TRAINING, TEST):
        cases = [case for case in written.contract.cases if written.parts[case] == part]
        rows += coverage_table(written.contract, cases, groups, part) if cases else []
    sets = describe_label_sets(written.contract).splitlines()
    if len(sets) > 2 * MOST_LINES:
        sets[MOST_LINES:] = [f"  ... ({len(sets) - MOST_LINES} more: nnunet_labelset coverage)"]
    return "in how many cases each label is annotated:\n" + format_table(rows) + "\n".join(sets)
