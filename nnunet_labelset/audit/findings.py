"""Findings: where a prediction contradicts what the contract claims, ranked by how unusual that is.

A network is never perfect, and worse on some labels than on others. How well drawing and prediction
agree is therefore compared with the other cases: a finding is an agreement far below what is usual
for the label. The unit is the usual spread of the label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

import numpy as np

from nnunet_labelset.audit.evidence import Evidence
from nnunet_labelset.io.tables import csv_text

DOUBT = 4.0  # spreads below the usual agreement from which a label is listed
SMALLEST_SPREAD = 0.03  # of agreement; otherwise labels on which all agree would list trifles
SMALL = 0.25  # of the usual volume of a label: smaller disagreements count less
MOST = 2 / 3  # of the drawn labels of a case: if so many contradict, the image is in doubt
FEW = 5  # cases with a label, from which "usual" means something


class Reason(str, Enum):
    """Why a label of a case is listed."""

    FORGOTTEN = "forgotten"
    PART = "a part is missing"
    LABELS = "swapped labels"
    SIDES = "swapped sides"
    CONTOUR = "drawn elsewhere"
    IMAGE = "wrong image"
    GAP = "would be there in a gap"


@dataclass(frozen=True)
class Finding:
    """Labels of a case that are probably wrong, or (`Reason.GAP`) that a gap seems to hold.

    doubt: spreads below the usual agreement. volume: of the disagreement in ml. confidence: mean
    probability of what is predicted there; None for predictions without probabilities.
    """

    case: str
    labels: tuple[int, ...]
    reason: Reason
    doubt: float
    volume: float
    confidence: float | None


def agreement(evidence: Evidence, usual: np.ndarray) -> np.ndarray:
    """Return how well drawing and prediction agree on each label `(C,)`, 1 at best.

    This is Dice over the voxels of which both are sure, with a quarter of the usual volume added
    above and below the line: a few voxels where nothing was drawn are no contradiction.
    """
    tp, fp, fn, _ = evidence.counts
    allowance = SMALL * usual
    total = 2 * tp + fp + fn + allowance
    return np.divide(2 * tp + allowance, total, out=np.ones(len(usual)), where=total > 0)


def usual_volumes(cases: Iterable[Evidence], num_labels: int) -> np.ndarray:
    """Return the median volume of each label in ml, over the cases that show it `(C,)`."""
    volumes: list[list[float]] = [[] for _ in range(num_labels)]
    for evidence in cases:
        for label in np.flatnonzero(evidence.drawn):
            volumes[label].append(evidence.drawn[label] * evidence.millilitres)
    return np.array([np.median(known) if known else 0.0 for known in volumes])


def find(cases: Mapping[str, Evidence], pairs: Sequence[tuple[int, int]] = ()) -> list[Finding]:
    """Return all findings, the most doubtful first; gaps stand last, because they are no faults.

    pairs: the labels that differ by side.
    """
    if not cases:
        return []
    num_labels = next(iter(cases.values())).protocol.num_leaves
    volumes = usual_volumes(cases.values(), num_labels)
    doubts = _doubts(cases, volumes)
    findings: list[Finding] = []
    for case, evidence in cases.items():
        findings += _case_findings(case, evidence, doubts[case], volumes, pairs)
    return sorted(findings, key=lambda each: (each.reason is Reason.GAP, -each.doubt, each.case))


def blind_labels(cases: Mapping[str, Evidence]) -> list[int]:
    """Return the labels about which an empty list says nothing, of those that cases annotate.

    Even a drawing that lies entirely elsewhere would not be listed: too few cases annotate the
    label, or the model is too rarely sure of it or right about it.
    """
    num_labels = next(iter(cases.values())).protocol.num_leaves
    volumes = usual_volumes(cases.values(), num_labels)
    middle, spread = _usual(_agreements(cases, volumes))
    predicted = np.zeros(num_labels)  # ml
    for label in range(1, num_labels):
        known = [case for case in cases.values() if label in case.protocol.annotated]
        sure = [(case.counts.tp + case.counts.fp)[label] * case.millilitres for case in known]
        predicted[label] = np.median(sure) if sure else 0
    allowance = SMALL * volumes
    total = predicted + allowance
    elsewhere = np.divide(allowance, total, out=np.ones(num_labels), where=total > 0)
    is_seen = middle - elsewhere >= DOUBT * spread  # not where nothing is usual
    annotated = frozenset[int]().union(*(case.protocol.annotated for case in cases.values()))
    return [label for label in sorted(annotated - {0}) if not is_seen[label]]


def _doubts(cases: Mapping[str, Evidence], volumes: np.ndarray) -> dict[str, np.ndarray]:
    """Return how many spreads each label of each case is below the usual agreement `(C,)`; 0 where
    the case does not annotate it.
    """
    table = _agreements(cases, volumes)
    middle, spread = _usual(table)
    return dict(zip(cases, np.nan_to_num((middle - table) / spread), strict=True))


def _agreements(cases: Mapping[str, Evidence], volumes: np.ndarray) -> np.ndarray:
    """Return the agreement of each label in each case, NaN where it is not annotated: `(N, C)`."""
    table = np.full((len(cases), len(volumes)), np.nan)
    for row, evidence in zip(table, cases.values(), strict=True):
        annotated = sorted(evidence.protocol.annotated - {0})
        row[annotated] = agreement(evidence, volumes / evidence.millilitres)[annotated]
    return table


def _usual(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the usual agreement of each label and its spread `(C,)`, NaN where cases are few."""
    middle, spread = np.full((2, table.shape[1]), np.nan)
    for label in range(1, table.shape[1]):
        known = table[:, label][np.isfinite(table[:, label])]
        if len(known) >= FEW:
            middle[label] = np.median(known)
            deviation = 1.4826 * np.median(np.abs(known - middle[label]))
            spread[label] = max(SMALLEST_SPREAD, deviation)
    return middle, spread


def _case_findings(
    case: str,
    evidence: Evidence,
    doubts: np.ndarray,
    volumes: np.ndarray,
    pairs: Sequence[tuple[int, int]],
) -> Iterator[Finding]:
    doubtful = set(np.flatnonzero(doubts >= DOUBT).tolist())
    for reason, labels in _reasons(evidence, doubtful, pairs):
        yield _finding(case, labels, reason, evidence, float(max(doubts[list(labels)])))
    least = SMALL * volumes / evidence.millilitres  # voxels
    annotated = evidence.protocol.annotated
    for label in np.flatnonzero(volumes[1:]) + 1:
        is_separate = evidence.separate[label] >= least[label]
        if label in annotated and label not in doubtful and is_separate:
            reason = Reason.PART if evidence.drawn[label] else Reason.FORGOTTEN
            doubt = max(0.0, float(doubts[label]))
            yield _finding(case, (int(label),), reason, evidence, doubt)
        if label not in annotated and evidence.in_gaps[label] >= least[label]:
            yield _gap(case, int(label), evidence)


def _reasons(
    evidence: Evidence, doubtful: set[int], pairs: Sequence[tuple[int, int]]
) -> Iterator[tuple[Reason, tuple[int, ...]]]:
    """Yield the most likely reasons for which labels of a case are doubtful, each label once."""
    left = set(doubtful)
    for swapped in combinations(sorted(doubtful), 2):
        if left.issuperset(swapped) and _swapped(evidence, *swapped):
            is_side = swapped in pairs or swapped[::-1] in pairs
            yield Reason.SIDES if is_side else Reason.LABELS, swapped
            left -= set(swapped)
    drawn = {label for label in np.flatnonzero(evidence.drawn).tolist() if label}
    misplaced = left & drawn
    if len(misplaced) >= 2 and len(misplaced) >= MOST * len(drawn):
        # What is not drawn there is not known to be absent either.
        claimed = drawn | (evidence.protocol.annotated - {0})
        yield Reason.IMAGE, tuple(sorted(claimed))
        left -= claimed
    for label in sorted(left):
        yield Reason.CONTOUR if label in drawn else Reason.FORGOTTEN, (label,)


def _swapped(evidence: Evidence, first: int, second: int) -> bool:
    """Tell whether each of two labels is predicted as the other one more than as itself."""
    overlap = evidence.overlap
    return bool(
        overlap[first, second] > overlap[first, first]
        and overlap[second, first] > overlap[second, second]
    )


def _finding(
    case: str, labels: tuple[int, ...], reason: Reason, evidence: Evidence, doubt: float
) -> Finding:
    chosen = list(labels)
    sizes = evidence.counts.fp[chosen] + evidence.counts.fn[chosen]
    confidence = None
    if evidence.confidence is not None:
        confidence = float(np.average(evidence.confidence[chosen], weights=np.maximum(1, sizes)))
    return Finding(
        case=case,
        labels=labels,
        reason=reason,
        doubt=doubt,
        volume=float(sizes.sum() * evidence.millilitres),
        confidence=confidence,
    )


def _gap(case: str, label: int, evidence: Evidence) -> Finding:
    confidence = evidence.gap_confidence
    return Finding(
        case=case,
        labels=(label,),
        reason=Reason.GAP,
        doubt=0.0,
        volume=float(evidence.in_gaps[label] * evidence.millilitres),
        confidence=None if confidence is None else float(confidence[label]),
    )


def findings_table(findings: Sequence[Finding], label_names: Sequence[str]) -> str:
    """Return the findings as CSV, in their order."""
    columns = ["rank", "case", "labels", "why", "doubt", "volume_ml", "confidence"]
    rows = []
    for rank, finding in enumerate(findings, 1):
        names = ";".join(label_names[label] for label in finding.labels)
        confidence = None if finding.confidence is None else round(finding.confidence, 3)
        numbers = [round(finding.doubt, 2), round(finding.volume, 3), confidence]
        rows.append([rank, finding.case, names, finding.reason.value, *numbers])
    return csv_text(columns, rows)
