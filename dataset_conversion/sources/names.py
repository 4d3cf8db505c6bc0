"""Names that people gave to structures (ROIs, segments), matched with regular expressions."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.sources.dicom_rules import SeveralRois
from nnunet_labelset.io.text import some


@dataclass(frozen=True)
class Matching:
    """Which names are which structure; structures are counted from 1, as in `labels`."""

    structures: Mapping[int, tuple[str, ...]]
    unmatched: tuple[str, ...]
    several: tuple[str, ...]  # expressions that match several names
    notes: tuple[Note, ...]
    problems: tuple[str, ...]
    absent: tuple[str, ...] = ()  # names that match, of structures that were drawn empty
    undrawn: tuple[str, ...] = ()  # names that match, of structures whose drawing says nothing


def match_names(
    names: Sequence[str],
    patterns: Sequence[re.Pattern],
    several: SeveralRois,
    where: str,
    known: Collection[str] = (),
) -> Matching:
    """Return the structures of names; `known` names need no expression."""
    matches = {
        pattern.pattern: [name for name in names if pattern.search(name)] for pattern in patterns
    }
    numbered = enumerate(matches.values(), 1)
    structures = {number: tuple(dict.fromkeys(found)) for number, found in numbered if found}
    ambiguous = {pattern: found for pattern, found in matches.items() if len(found) > 1}
    matched = Counter(itertools.chain.from_iterable(structures.values()))
    unite = several is SeveralRois.UNION
    return Matching(
        structures=structures,
        unmatched=_others(names, {*matched, *known}),
        several=tuple(ambiguous),
        notes=_united(ambiguous) if unite else (),
        problems=tuple(_problems(names, matched, {} if unite else ambiguous, where)),
    )


def _others(names: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in known)


def _united(ambiguous: Mapping[str, Sequence[str]]) -> tuple[Note, ...]:
    return tuple(Note("several structures united", some(found)) for found in ambiguous.values())


def _problems(
    names: Sequence[str],
    matched: Mapping[str, int],
    ambiguous: Mapping[str, Sequence[str]],
    where: str,
) -> Iterator[str]:
    for expression, found in ambiguous.items():
        yield (
            f"{where}: {len(found)} structures match '{expression}': {some(found)}: make it "
            "stricter, or 'several_rois = \"union\"'"
        )
    for name, count in matched.items():
        if count > 1:
            yield f"{where}: '{name}' matches {count} entries of 'labels': make them stricter"
    if not matched:
        yield f"{where}: no structure matches a label; it has {some(names, 10) or 'none'}"
