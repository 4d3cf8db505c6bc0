"""Cases whose structures are found by the names that people gave them: DICOM and 3D Slicer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.slicer import read_segments
from nnunet_labelset.dataset_conversion.sources.cases import SourceCase, pattern_regex
from nnunet_labelset.dataset_conversion.sources.manifest import (
    LABEL,
    MASK,
    Kind,
    Manifest,
    Role,
    Source,
)
from nnunet_labelset.dataset_conversion.sources.names import match_names
from nnunet_labelset.errors import LabelSetError

if TYPE_CHECKING:  # pydicom is an extra
    from nnunet_labelset.dataset_conversion.dicom.drawing import DicomCase

CT = "CT"  # modality, and the name of a channel that nnU-Net normalises in a way of its own


def with_segments(case: SourceCase) -> SourceCase:
    """Return a case of 3D Slicer, in which the file of every structure is the segmentation."""
    path = case.files.get(LABEL)
    several = case.source.several_segments
    if path is None or several is None:
        return case
    names = tuple(case.source.labels)
    try:
        segments = [segment.name for segment in read_segments(path)]
    except LabelSetError as error:
        return replace(case, problems=(*case.problems, str(error)))
    matching = match_names(segments, list(map(re.compile, names)), several, str(path))
    roles = {Role(Kind.LABEL, names[number - 1]): path for number in matching.structures}
    return replace(
        case,
        files={**case.files, **roles},
        notes=case.notes + matching.notes,
        problems=case.problems + matching.problems,
        matching=matching,
    )


def dicom_cases(source: Source, manifest: Manifest) -> Iterator[SourceCase]:
    """Yield DICOM cases; the file of a role is the one that holds it."""
    try:
        from nnunet_labelset.dataset_conversion.dicom.planning import plan_cases
    except ModuleNotFoundError as error:
        raise LabelSetError(
            f"{source.folder}: {error.name} is needed: pip install 'nnunet_labelset[dicom]'"
        ) from None
    assert source.folder is not None
    assert source.dicom is not None
    structures = tuple(source.labels)
    exclude = [pattern_regex(pattern) for pattern in source.exclude]
    cases = plan_cases(source.folder, source.dicom, structures, exclude)
    for name, planned in cases.items():
        images = {Role(Kind.IMAGE, manifest.channels[0]): path for path in planned.images}
        yield SourceCase(
            source=source,
            name=name,
            files={**images, **_drawn_files(planned.dicom, list(source.labels))},
            notes=(*planned.notes, *_channel_notes(planned.dicom, manifest.channels[0])),
            problems=tuple(planned.problems),
            dicom=planned,
            matching=planned.matching,
        )


def _channel_notes(case: DicomCase | None, channel: str) -> Iterator[Note]:
    """Yield that a channel is named after another modality: nnU-Net normalises by that name."""
    modality = case.stack.modality if case is not None else ""
    if modality and (modality == CT) != (channel.upper() == CT):
        yield Note(f"{modality} series in channel '{channel}', by whose name nnU-Net normalises")


def _drawn_files(case: DicomCase | None, structures: Sequence[str]) -> dict[Role, Path]:
    """Return the file with the drawings, once for everything that is drawn in it."""
    if case is None or case.drawing is None:
        return {}
    numbers = sorted(case.structures)
    roles = [Role(Kind.LABEL, structures[number - 1]) for number in numbers]
    if case.external:
        roles.append(MASK)
    return dict.fromkeys(roles, case.drawing.path)
