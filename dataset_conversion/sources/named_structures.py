"""Cases whose structures are found by the names that people gave them: DICOM and 3D Slicer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from nnunet_labelset.dataset_conversion.slicer import read_segments
from nnunet_labelset.dataset_conversion.sources.cases import SourceCase
from nnunet_labelset.dataset_conversion.sources.manifest import Manifest, Source
from nnunet_labelset.dataset_conversion.sources.names import match_names
from nnunet_labelset.dataset_conversion.sources.patterns import LABEL, MASK, Kind, Role
from nnunet_labelset.errors import LabelSetError


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
    for name, planned in plan_cases(source.folder, source.dicom, tuple(source.labels)).items():
        files = {Role(Kind.IMAGE, manifest.channels[0]): path for path in planned.images}
        if planned.dicom is not None and planned.dicom.drawing is not None:
            drawing = planned.dicom.drawing.path
            for number, structure in enumerate(source.labels, start=1):
                if number in planned.dicom.structures:
                    files[Role(Kind.LABEL, structure)] = drawing
            if planned.dicom.external:
                files[MASK] = drawing
        yield SourceCase(
            source=source,
            name=name,
            files=files,
            notes=tuple(planned.notes),
            problems=tuple(planned.problems),
            dicom=planned,
            matching=planned.matching,
        )
