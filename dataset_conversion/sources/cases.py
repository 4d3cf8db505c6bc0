"""The cases of a source: what lies in a folder, or stands in a case list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.sources.case_list import CaseRow, read_case_list
from nnunet_labelset.dataset_conversion.sources.manifest import Manifest, Source
from nnunet_labelset.dataset_conversion.sources.names import Matching
from nnunet_labelset.dataset_conversion.sources.patterns import Role, find_cases
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.text import some

if TYPE_CHECKING:  # pydicom is an extra
    from nnunet_labelset.dataset_conversion.dicom.planning import PlannedCase


@dataclass(frozen=True)
class SourceCase:
    """The files of one case of a source, and its row of a case list, if there is one."""

    source: Source
    name: str  # in the source
    files: Mapping[Role, Path]
    row: CaseRow | None = None
    notes: tuple[Note, ...] = ()
    problems: tuple[str, ...] = ()
    dicom: PlannedCase | None = None
    matching: Matching | None = None

    @property
    def where(self) -> str:
        return f"{self.source.name} ({self.source.folder or self.source.cases})"

    @property
    def part(self) -> str:
        return (self.row.part if self.row else "") or self.source.part

    @property
    def chosen_name(self) -> str:
        """The name that a row gives the case, if any does."""
        return self.row.name if self.row else ""

    @property
    def is_declared(self) -> bool:
        return self.row is not None and self.row.annotated is not None


def cases_in_folder(source: Source) -> Iterator[SourceCase]:
    """Yield the cases of a folder, each with the preferred file of every role."""
    assert source.folder is not None
    cases = find_cases(source.folder, source.patterns, source.case, source.exclude)
    if not cases:
        examples = some(next(iter(patterns)) for patterns in source.patterns.values())
        raise LabelSetError(
            f"{source.folder}: no case of source '{source.name}' found: "
            f"expected files like {examples}"
        )
    for name, candidates in cases.items():
        kinds = dict.fromkeys(
            role.kind.value for role, groups in candidates.items() if len(groups) > 1
        )
        yield SourceCase(
            source=source,
            name=name,
            files={role: groups[0][0] for role, groups in candidates.items()},
            notes=tuple(Note("several files, the preferred one taken", kind) for kind in kinds),
            problems=tuple(_ambiguities(name, candidates)),
        )


def _ambiguities(name: str, candidates: Mapping[Role, Sequence[Sequence[Path]]]) -> Iterator[str]:
    for role, groups in candidates.items():
        if len(groups[0]) > 1:
            yield f"several files for {role} of case '{name}': {some(groups[0])}"


def listed_cases(source: Source, manifest: Manifest) -> Iterator[SourceCase]:
    """Yield the cases of a list, each with the files that its row names."""
    assert source.cases is not None
    for row in read_case_list(
        source.cases, manifest.leaves, manifest.channels, source.folder
    ).values():
        yield SourceCase(source, row.case, row.files, row)
