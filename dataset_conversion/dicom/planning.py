"""From an index of DICOM files to cases: which image, which structure set, which ROI is a label."""

from __future__ import annotations

import filecmp
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nnunet_labelset.dataset_conversion.dicom.drawing import DicomCase
from nnunet_labelset.dataset_conversion.dicom.index import (
    NAMING_KEYWORDS,
    Drawing,
    DrawingKind,
    Index,
    Series,
    read_index,
)
from nnunet_labelset.dataset_conversion.dicom.stack import Stack, sorted_stack
from nnunet_labelset.dataset_conversion.dicom.structure_set import (
    EXTERNAL,
    Roi,
    read_structure_set,
)
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.sources.dicom_rules import (
    DicomRules,
    SeveralSets,
)
from nnunet_labelset.dataset_conversion.sources.names import Matching, match_names
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.text import some

UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")


@dataclass
class PlannedCase:
    """What is known of a case before pixels and contours are read."""

    images: list[Path] = field(default_factory=list)
    dicom: DicomCase | None = None
    matching: Matching | None = None
    original_name: str = ""  # before characters that no file name should have were replaced
    notes: list[Note] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def plan_cases(
    folder: Path, rules: DicomRules, structures: Sequence[str], exclude: Sequence[re.Pattern] = ()
) -> dict[str, PlannedCase]:
    """Return the cases below a folder, but for files whose relative path `exclude` matches.
    `structures` are regular expressions of ROI names.
    """
    index = read_index(folder, exclude)
    descriptions = [series.names["SeriesDescription"] for series in index.series.values()]
    _check_matches("series", rules.series, descriptions, folder)
    _check_matches(
        "structure_set", rules.structure_set, [found.label for found in index.drawings], folder
    )
    patterns = [re.compile(text) for text in structures]
    drawings = _drawings_by_series(index, rules)
    drawn = {found.names["PatientID"] for group in drawings.values() for found in group}
    chosen = [
        series for series in index.series.values() if _is_wanted(series, drawings, drawn, rules)
    ]
    strays = _strays(index, drawings, rules)
    left_out = _left_out(index, chosen, strays, rules)
    cases: dict[str, PlannedCase] = {}
    for series in chosen:
        planned = _plan_case(series, drawings.get(series.uid, []), rules, patterns)
        planned.notes += left_out.get(series.names["PatientID"], [])
        planned.problems += _unreadable(index, {image.path.parent for image in series.slices})
        name = _named(series, planned, rules.case)
        if name in cases:
            cases[name].problems.append(_taken(name, series, planned, cases[name]))
        else:
            cases[name] = planned
    lost = [drawing for drawing in strays if drawing.names["PatientID"] not in drawn - {""}]
    for name, problem in _left_over(index, chosen, lost, rules):
        cases.setdefault(name, PlannedCase()).problems.append(problem)
    return dict(sorted(cases.items()))


def _check_matches(key: str, pattern: re.Pattern, texts: Sequence[str], folder: Path) -> None:
    """Fail if an expression leaves out everything that there is."""
    if texts and not any(map(pattern.search, texts)):
        found = some(dict.fromkeys(repr(text) for text in texts))
        raise LabelSetError(f"{folder}: {key} = '{pattern.pattern}' matches none of {found}")


def _taken(name: str, series: Series, planned: PlannedCase, first: PlannedCase) -> str:
    """Return why a series cannot have its name, which the case `first` has."""
    about = f"{series.folder}: {series} is case '{name}' too"
    if planned.original_name != first.original_name:
        about += f" ('{first.original_name}' and '{planned.original_name}' as a file name)"
    return (
        f'{about}: choose a series (series = "REGEX"), or name cases apart, e.g. case = '
        '"{PatientID}_{StudyDate}"'
    )


def _named(series: Series, planned: PlannedCase, template: str) -> str:
    """Return the name of a case; note where it is not what the attributes say."""
    name = case_name(series, template)
    if not name:
        return _unnamed(series, planned, template)
    planned.original_name = template.format_map(series.names)
    if planned.original_name != name:
        about = f"'{planned.original_name}' is '{name}'"
        planned.notes.append(Note("case renamed for a safe file name", about))
    return name


def _unnamed(series: Series, planned: PlannedCase, template: str) -> str:
    planned.problems.append(
        f"{series.folder}: {series} has {_missing(series, template)} for case = '{template}': name "
        'cases after another attribute, e.g. case = "{StudyInstanceUID}"'
    )
    return f"unnamed_{series.uid}"


def _missing(series: Series, template: str) -> str:
    empty = [word for word in re.findall(r"\{(\w*)\}", template) if not series.names[word]]
    return f"no {some(empty)}" if empty else "no letters or digits"


def _left_over(
    index: Index, chosen: Sequence[Series], lost: Sequence[Drawing], rules: DicomRules
) -> Iterator[tuple[str, str]]:
    """Yield files that belong to no image: a name for their case, and the problem."""
    for drawing in lost:
        yield (
            case_name(drawing, rules.case) or f"unnamed_{drawing.path.stem}",
            f"{drawing.path}: refers to images that are not below {index.folder}: if UIDs were "
            "replaced, 'match = \"folder\"' pairs it with the series beside it",
        )
    known = {image.path.parent for series in chosen for image in series.slices}
    # Perhaps structure sets: whose, they cannot say.
    for problem in _unreadable(index, {path.parent for path in index.unreadable} - known):
        yield "unreadable", problem


def _is_wanted(
    series: Series,
    drawings: Mapping[str, list[Drawing]],
    drawn: Collection[str],
    rules: DicomRules,
) -> bool:
    """Whether a series is a case: those that were drawn on are, if any of its patient was."""
    if not rules.series.search(series.names["SeriesDescription"]):
        return False
    if series.uid in drawings:
        return True
    is_localiser = all(image.localiser for image in series.slices)
    return series.names["PatientID"] not in drawn and not is_localiser


def _left_out(
    index: Index, chosen: Sequence[Series], strays: Sequence[Drawing], rules: DicomRules
) -> dict[str, list[Note]]:
    """Return notes, by patient, about series that match but are no case, and about drawings on
    images that are not there.
    """
    uids = {series.uid for series in chosen}
    notes: dict[str, list[Note]] = {}
    for series in index.series.values():
        matches = rules.series.search(series.names["SeriesDescription"])
        if matches and series.uid not in uids:
            note = Note("series without structures left out", str(series))
            notes.setdefault(series.names["PatientID"], []).append(note)
    for drawing in strays:
        note = Note("structure sets of images that are not there left out", drawing.path.name)
        notes.setdefault(drawing.names["PatientID"], []).append(note)
    return notes


def _drawings_by_series(index: Index, rules: DicomRules) -> dict[str, list[Drawing]]:
    """Return the drawings of every series that they refer to."""
    result: dict[str, list[Drawing]] = {}
    for drawing in index.drawings:
        if not rules.structure_set.search(drawing.label):
            continue
        for uid in _series_of(drawing, index, rules):
            result.setdefault(uid, []).append(drawing)
    return result


def _series_of(drawing: Drawing, index: Index, rules: DicomRules) -> list[str]:
    if rules.match_by_folder:
        return [
            uid
            for uid, series in index.series.items()
            if series.folder in (drawing.path.parent, *drawing.path.parent.parents[:1])
        ]
    named = [uid for uid in drawing.series if uid in index.series]
    if named:
        return named
    if not drawing.series and not drawing.slices:
        frames = drawing.frames_of_reference
        return [uid for uid, found in index.series.items() if found.frame_of_reference in frames]
    return [
        uid
        for uid, series in index.series.items()
        if any(image.uid in drawing.slices for image in series.slices)
    ]


def _strays(
    index: Index, drawings: Mapping[str, list[Drawing]], rules: DicomRules
) -> list[Drawing]:
    """Return drawings that match, on images that are not there."""
    used = {drawing.path for group in drawings.values() for drawing in group}
    return [
        drawing
        for drawing in index.drawings
        if drawing.path not in used and rules.structure_set.search(drawing.label)
    ]


def _unreadable(index: Index, folders: Collection[Path]) -> Iterator[str]:
    """Yield what is unreadable in these folders, a line for each."""
    for folder in sorted(folders):
        found = [path for path in index.unreadable if path.parent == folder]
        more = f", and {len(found) - 1} more there" if len(found) > 1 else ""
        for path in found[:1]:
            yield f"{path}: not readable as DICOM: {index.unreadable[path]}{more}"


def case_name(source: Series | Drawing, template: str) -> str:
    """Return the name of a case: the template with DICOM attributes in it.

    Empty if there is nothing in them, or no PatientID: all such patients would be one.
    """
    for keyword in re.findall(r"\{(\w*)\}", template):
        if keyword not in NAMING_KEYWORDS:
            raise LabelSetError(
                f"case = '{template}': no attribute '{keyword}'"
                f"{did_you_mean(keyword, NAMING_KEYWORDS)}"
            )
    if "{PatientID}" in template and not source.names["PatientID"]:
        return ""
    return UNSAFE.sub("_", template.format_map(source.names)).strip("_.+-")


def _plan_case(
    series: Series, drawings: Sequence[Drawing], rules: DicomRules, patterns: Sequence[re.Pattern]
) -> PlannedCase:
    planned = PlannedCase(images=[series.slices[0].path])
    try:
        stack = sorted_stack(series)
        planned.images = [stack.slices[0].path]
        _check_regular(stack, series, rules)
        drawings = _without_copies(drawings, planned)
        drawing = _choose(series, drawings, rules)
        frame_of_reference = "" if rules.match_by_folder else series.frame_of_reference
        planned.dicom = DicomCase(stack, drawing, frame_of_reference=frame_of_reference)
        if drawing is not None:
            if rules.match_by_folder:
                about = f"{drawing.path.name} and {series}"
                planned.notes.append(Note("paired by folder, not by UIDs", about))
            rois = _drawn_on(planned, series)
            _add_structures(planned, rois, rules, patterns)
            others = [other for other in drawings if other is not drawing]
            planned.notes += _other_sets(others, rois, rules, patterns)
    except LabelSetError as error:
        planned.problems.append(str(error))
    return planned


def _check_regular(stack: Stack, series: Series, rules: DicomRules) -> None:
    if stack.is_irregular and not rules.resample_irregular:
        raise LabelSetError(
            f"{series.folder}: {series}: {stack.describe_gaps()}: add what is missing, or "
            "'irregular = \"resample\"' makes them equal"
        )


def _without_copies(drawings: Sequence[Drawing], planned: PlannedCase) -> list[Drawing]:
    """Leave out files with the UID and the content of another one, and tell so."""
    distinct: list[Drawing] = []
    for drawing in drawings:
        alike = [other.path for other in distinct if other.uid == drawing.uid]
        if any(filecmp.cmp(drawing.path, path, shallow=False) for path in alike):
            planned.notes.append(Note("duplicate files left out", drawing.path.name))
        else:
            distinct.append(drawing)
    return distinct


def _other_sets(
    drawings: Sequence[Drawing],
    rois: Sequence[Roi],
    rules: DicomRules,
    patterns: Sequence[re.Pattern],
) -> Iterator[Note]:
    """Yield what is left out with other structure sets than the one with these ROIs."""
    drawn = [roi.name for roi in rois if not roi.is_empty]
    missing = [pattern for pattern in patterns if not any(map(pattern.search, drawn))]
    for drawing in drawings:
        date = "" if drawing.date else ", without a date"
        about = f"{drawing.path.name} ('{drawing.label}'{date})"
        chosen_by = f'structure_sets = "{rules.structure_sets.value}"'
        yield Note(f"structure sets left out by {chosen_by}", about)
        yield from _lost(drawing, about, missing)


def _lost(drawing: Drawing, about: str, missing: Sequence[re.Pattern]) -> Iterator[Note]:
    """Yield which ROIs of missing labels are drawn in a structure set that is left out."""
    try:
        names = [roi.name for roi in _read_rois(drawing) if not roi.is_empty]
    except LabelSetError as error:
        yield Note("structure sets left out, not readable", str(error))
        return
    lost = [name for name in names if any(pattern.search(name) for pattern in missing)]
    if lost:
        kind = "labels drawn only in a structure set that was left out"
        yield Note(kind, f"{some(lost)} in {about}")


def _choose(series: Series, drawings: Sequence[Drawing], rules: DicomRules) -> Drawing | None:
    """Return the drawing that counts for an image."""
    names = some(f"{drawing.path.name} ('{drawing.label}')" for drawing in drawings)
    several = f"{series.folder}: {len(drawings)} structure sets for one image: {names}"
    if len(drawings) < 2:
        return drawings[0] if drawings else None
    if rules.structure_sets is SeveralSets.APPROVED:
        drawings = [drawing for drawing in drawings if drawing.approved]
        if not drawings:
            raise LabelSetError(f"{several}: none is approved")
    if rules.structure_sets is SeveralSets.NEWEST:
        newest = max(drawing.date for drawing in drawings)
        drawings = [drawing for drawing in drawings if drawing.date == newest and newest]
    if len(drawings) == 1:
        return drawings[0]
    why = _why_no_newest(drawings, rules)
    raise LabelSetError(
        f'{several}: {why}choose with structure_set = "REGEX" of its label, or '
        'structure_sets = "newest" or "approved"'
    )


def _why_no_newest(newest: Sequence[Drawing], rules: DicomRules) -> str:
    if rules.structure_sets is not SeveralSets.NEWEST:
        return ""
    return "the newest have one date: " if newest else "none has a date: "


def _drawn_on(planned: PlannedCase, series: Series) -> list[Roi]:
    """Return the ROIs that were drawn in the coordinates of the image."""
    assert planned.dicom is not None
    assert planned.dicom.drawing is not None
    frame, drawing = planned.dicom.frame_of_reference, planned.dicom.drawing
    rois = _read_rois(drawing)
    here = [roi for roi in rois if roi.lies_in(frame)]
    named = drawing.frames_of_reference
    if (frame and named and frame not in named) or (rois and not here):
        raise LabelSetError(
            f"{drawing.path}: its frame of reference is not that of the image "
            f"({series.folder}): it was drawn in other coordinates"
        )
    if len(here) < len(rois):
        others = some(roi.name for roi in rois if not roi.lies_in(frame))
        planned.notes.append(Note("ROIs in another frame of reference left out", others))
    return here


def _add_structures(
    planned: PlannedCase, rois: Sequence[Roi], rules: DicomRules, patterns: Sequence[re.Pattern]
) -> None:
    """Find the ROIs of every label, and the EXTERNAL one."""
    assert planned.dicom is not None
    assert planned.dicom.drawing is not None
    path = planned.dicom.drawing.path
    drawn = [roi for roi in rois if _counts(roi, rules)]
    external = [roi.name for roi in drawn if roi.interpreted_type == EXTERNAL and roi.contours]
    names = [roi.name for roi in drawn]
    matching = match_names(names, patterns, rules.several_rois, str(path), external)
    empty = _empty(rois, patterns)
    absent = tuple(roi.name for roi in empty if _counts(roi, rules))
    undrawn = tuple(roi.name for roi in empty if not _counts(roi, rules))
    planned.matching = replace(matching, absent=absent, undrawn=undrawn)
    planned.problems += matching.problems
    planned.notes += [*matching.notes, *_empty_notes(empty, rules)]
    planned.dicom = replace(
        planned.dicom,
        structures=matching.structures,
        external=tuple(external) if rules.use_external else (),
    )


def _counts(roi: Roi, rules: DicomRules) -> bool:
    """Whether an ROI says anything about its structure."""
    return not roi.is_empty or (roi.is_drawn and rules.empty_is_drawn)


def _empty(rois: Sequence[Roi], patterns: Sequence[re.Pattern]) -> list[Roi]:
    """Return the ROIs of labels that have no closed contour."""
    empty = [roi for roi in rois if roi.is_empty]
    return [roi for roi in empty if any(pattern.search(roi.name) for pattern in patterns)]


def _empty_notes(rois: Sequence[Roi], rules: DicomRules) -> Iterator[Note]:
    empty = "taken as absent" if rules.empty_is_drawn else "not annotated"
    for roi in rois:
        if roi.skipped:
            yield Note("points or open contours only, not annotated", roi.name)
        else:
            yield Note(f"ROI without contours, {empty}", roi.name)


def _read_rois(drawing: Drawing) -> list[Roi]:
    if drawing.kind is DrawingKind.RTSTRUCT:
        return read_structure_set(drawing.path, with_points=False)
    from nnunet_labelset.dataset_conversion.dicom.segmentation import segment_names

    return [Roi(name, "", "", is_segment=True) for name in segment_names(drawing.path)]
