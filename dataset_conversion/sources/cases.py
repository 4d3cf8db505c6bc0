"""The cases of a source: what lies in a folder, or stands in a case list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.sources.case_list import CaseRow, read_case_list
from nnunet_labelset.dataset_conversion.sources.manifest import Manifest, Role, Source
from nnunet_labelset.dataset_conversion.sources.names import Matching
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import list_files
from nnunet_labelset.io.text import some

if TYPE_CHECKING:  # pydicom is an extra
    from nnunet_labelset.dataset_conversion.dicom.planning import PlannedCase

TOKENS = re.compile(r"(\{case\}|\{structure\}|\*\*/|\*)")


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


def find_cases(
    folder: Path,
    roles: Mapping[Role, Sequence[str]],
    case: str = "[^/]+",
    exclude: Iterable[str] = (),
) -> dict[str, dict[Role, list[list[Path]]]]:
    """Return files by case and role: one list of files for every pattern of the role that matches
    some, preferred ones first.

    A pattern with `{structure}` finds one role for every structure.
    """
    files = _candidates(folder, [pattern for chosen in roles.values() for pattern in chosen])
    for regex in map(pattern_regex, exclude):
        files = [name for name in files if not regex.fullmatch(name)]
    cases: dict[str, dict[Role, list[list[Path]]]] = {}
    for role, patterns in roles.items():
        for pattern in patterns:
            groups = _matching_files(folder, files, pattern_regex(pattern, case), role)
            for (name, matched_role), paths in groups.items():
                cases.setdefault(name, {}).setdefault(matched_role, []).append(paths)
    return dict(sorted(cases.items()))


def _candidates(folder: Path, patterns: Sequence[str]) -> list[str]:
    """Return the files of a folder that lie deep enough for some pattern, and no deeper."""
    is_deep = any("**" in pattern for pattern in patterns)
    return list_files(folder, None if is_deep else max(text.count("/") for text in patterns))


def _matching_files(
    folder: Path, files: Iterable[str], regex: re.Pattern[str], role: Role
) -> dict[tuple[str, Role], list[Path]]:
    """Return the files that match a pattern, by case and role."""
    groups: dict[tuple[str, Role], list[Path]] = {}
    for match in filter(None, map(regex.fullmatch, files)):
        structure = match.groupdict().get("structure")
        key = match["case"], Role(role.kind, structure) if structure else role
        groups.setdefault(key, []).append(folder / match.string)
    return groups


def pattern_regex(pattern: str, case: str = "[^/]+") -> re.Pattern[str]:
    """A pattern of relative paths as a regular expression with the groups `case` and `structure`.

    `*` stands for any part of a name, `**/` for any number of folders. A placeholder that is
    repeated must repeat.
    """
    groups = {"{case}": f"(?P<case>{case})", "{structure}": "(?P<structure>[^/]+)"}
    wildcards = {"*": "[^/]*", "**/": "(?:[^/]+/)*"}
    pieces, seen = [], set()
    for token in TOKENS.split(pattern):
        if token in groups:
            pieces.append(f"(?P={token[1:-1]})" if token in seen else groups[token])
            seen.add(token)
        else:
            pieces.append(wildcards.get(token) or re.escape(token))
    return re.compile("".join(pieces))
