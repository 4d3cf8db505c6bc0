"""The keys of a manifest for a source of DICOM files. Knows no DICOM library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.toml import get_choice, get_rule, get_text

SEVERAL_ROIS = "several_rois"
KEYS = {
    "series",
    "structure_set",
    "structure_sets",
    SEVERAL_ROIS,
    "empty_rois",
    "irregular",
    "match",
}


class SeveralSets(Enum):
    """Which of several structure sets of one image counts."""

    ERROR = "error"
    NEWEST = "newest"
    APPROVED = "approved"


class SeveralRois(Enum):
    """What several ROIs that match one label are."""

    ERROR = "error"
    UNION = "union"


@dataclass(frozen=True)
class DicomRules:
    """How images, structure sets and cases of a DICOM source are chosen."""

    case: str  # a template such as {PatientID}_{StudyDate}
    series: re.Pattern[str]  # of the series description
    structure_set: re.Pattern[str]  # of its label
    structure_sets: SeveralSets
    several_rois: SeveralRois
    empty_is_drawn: bool  # else ROIs without contours are left over from a template
    resample_irregular: bool
    match_by_folder: bool
    use_external: bool


def read_dicom_rules(entry: Mapping[str, Any], where: str) -> DicomRules:
    """Return the rules of a source of kind "dicom"."""
    mask = get_text(entry, "mask", where, "external")
    if mask not in ("external", "none"):
        raise LabelSetError(f"{where}: mask: expected 'external' or 'none', but got '{mask}'")
    return DicomRules(
        case=get_text(entry, "case", where, "{PatientID}"),
        series=_regex(entry, "series", where),
        structure_set=_regex(entry, "structure_set", where),
        structure_sets=get_rule(entry, "structure_sets", where, SeveralSets),
        several_rois=get_rule(entry, SEVERAL_ROIS, where, SeveralRois),
        empty_is_drawn=get_choice(entry, "empty_rois", where, ("absent", "unknown")) == "absent",
        resample_irregular=get_choice(entry, "irregular", where, ("error", "resample"))
        == "resample",
        match_by_folder=get_choice(entry, "match", where, ("uid", "folder")) == "folder",
        use_external=mask == "external",
    )


def _regex(entry: Mapping[str, Any], key: str, where: str) -> re.Pattern[str]:
    return compile_regex(get_text(entry, key, where, ".*"), f"{where}: {key}")


def compile_regex(text: str, where: str) -> re.Pattern[str]:
    """Return a regular expression that is searched for in a name."""
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise LabelSetError(f"{where}: not a regular expression: {error}") from None
