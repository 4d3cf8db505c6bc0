"""The cases of a source: files that match patterns in a folder, or rows of a case list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.contract.annotated_table import (
    CASE_COLUMNS,
    LabelColumns,
    case_column,
    find_column,
    ignored_note,
    listed_leaves,
    names_columns,
    refuse_two_ways,
    require_all_labels,
    without_ending,
)
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.sources.manifest import (
    LABEL,
    MASK,
    Kind,
    Manifest,
    Role,
    Source,
)
from nnunet_labelset.dataset_conversion.sources.names import Matching
from nnunet_labelset.errors import LabelSetError, did_you_mean, near_miss
from nnunet_labelset.io.files import list_files
from nnunet_labelset.io.tables import TableRow, read_table
from nnunet_labelset.io.text import composed, some
from nnunet_labelset.nnunet.raw import TEST, TRAINING

if TYPE_CHECKING:  # pydicom is an extra
    from nnunet_labelset.dataset_conversion.dicom.planning import PlannedCase

MOST_NEAR_MISSES = 1000
COLUMNS = ("case", "name", "source", "part", "annotated")
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
    listed = read_case_list(source.cases, manifest.leaves, manifest.channels, source.folder)
    notes = tuple(Note("case list", note) for note in listed.notes)
    for row in listed.rows.values():
        yield SourceCase(source, row.case, row.files, row, notes)


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


@dataclass(frozen=True)
class CaseRow:
    """One case; what a cell leaves empty follows the source."""

    case: str
    where: str
    name: str  # of the case in the data set
    source: str
    part: str
    annotated: LabelSet | None
    files: dict[Role, Path]


@dataclass(frozen=True)
class AnnotatedList:
    """The rows of a table of `convert --annotated`; `notes` say what was ignored or understood."""

    rows: Mapping[tuple[str, str], CaseRow]
    notes: tuple[str, ...] = ()


def read_annotated_list(path: Path, leaves: tuple[str, ...]) -> AnnotatedList:
    """Return what a table says about the cases of sources.

    As in the table of `annotate`, the labels of a case are listed in a column `annotated`, or have
    a column each, with yes or no.
    """
    table = read_table(path, names_columns(leaves))
    names = [name for name in table[0] if name]
    ticks = LabelColumns(table, leaves, path)
    case = case_column(names, path)
    has_list = "annotated" in names
    refuse_two_ways("annotated" if has_list else None, ticks, path)
    known = {case, *COLUMNS, *(() if has_list else ticks.columns.values())}
    ignored = tuple(name for name in names if name not in known)
    for name in ignored:
        if hint := near_miss(name.lower(), COLUMNS):
            raise LabelSetError(f"{path}: unknown column '{name}'{hint}")
    if not has_list and (ticks.columns or not set(names) & set(COLUMNS[1:])):
        require_all_labels(ticks, names, path)
    for line in table:
        line["case"] = without_ending(line[case])
    notes = (*ignored_note(ignored), *(() if has_list else ticks.notes))
    return AnnotatedList(_rows(table, COLUMNS, leaves, ticks), notes)


def read_case_list(
    path: Path, leaves: tuple[str, ...], channels: tuple[str, ...], folder: Path | None = None
) -> AnnotatedList:
    """Return the rows of a case list with its files, by (source, case).

    Capitals of column names do not matter, and columns of other names are ignored.
    """
    table = read_table(path, lambda names: find_column(names, ("image", "label")) is not None)
    names = [name for name in table[0] if name]
    images = _image_columns(channels, find_column(names, ["image"]) is not None)
    ticks = LabelColumns(table, leaves, path)
    known = [*COLUMNS, *images, "label", "mask"]
    columns = {word: find_column(names, [word]) for word in known[1:]}
    columns["case"] = find_column(names, CASE_COLUMNS)
    used = {*columns.values(), *ticks.columns.values()}
    ignored = [name for name in names if name not in used]
    _check_columns(columns, ignored, ["case", *images], path)
    refuse_two_ways(columns["annotated"], ticks, path)
    if ticks.columns and columns["annotated"] is None:
        require_all_labels(ticks, names, path)
    for line in table:
        line |= {word: line[column] for word, column in columns.items() if column is not None}
    rows = _rows(table, known, leaves, ticks)
    base = folder or path.parent
    lines = {(line.get("source", ""), line["case"]): line for line in table}
    rows = {key: replace(row, files=_files(lines[key], images, base)) for key, row in rows.items()}
    return AnnotatedList(rows, (*ignored_note(ignored), *ticks.notes))


def _files(line: TableRow, images: Mapping[str, str], base: Path) -> dict[Role, Path]:
    files = {Role(Kind.IMAGE, channel): line[column] for column, channel in images.items()}
    files |= {role: line.get(role.kind.value, "") for role in (LABEL, MASK)}
    return {role: base / name for role, name in files.items() if name}


def _rows(
    table: Sequence[TableRow], known: Sequence[str], leaves: tuple[str, ...], ticks: LabelColumns
) -> dict[tuple[str, str], CaseRow]:
    has_list = "annotated" in table[0]
    rows: dict[tuple[str, str], CaseRow] = {}
    for line in table:
        row = _read_row(dict.fromkeys(known, "") | line, line.where, leaves)
        if not has_list and ticks.columns and not ticks.says_nothing(line):
            row = replace(row, annotated=ticks.annotated(line))
        if rows.setdefault((row.source, row.case), row) is not row:
            raise LabelSetError(f"{line.where}: case '{row.case}' was listed before")
    return rows


def _image_columns(channels: tuple[str, ...], in_one_file: bool) -> dict[str, str]:
    """Return the channel of each column with image files; "" means all, as colours of a picture."""
    if len(channels) == 1:
        return {"image": channels[0]}
    if channels and in_one_file:
        return {"image": ""}
    return {f"image_{channel}": channel for channel in channels}


def _check_columns(
    columns: Mapping[str, str | None], ignored: Sequence[str], needed: Sequence[str], path: Path
) -> None:
    for column in ignored:
        if hint := near_miss(column.lower(), columns):
            raise LabelSetError(f"{path}: unknown column '{column}'{hint}")
    if missing := [column for column in needed if columns[column] is None]:
        present = [*filter(None, columns.values()), *ignored]
        raise LabelSetError(
            f"{path}: no column called {some(missing)}: found the columns {', '.join(present)}"
        )


def _read_row(cells: Mapping[str, str], where: str, leaves: tuple[str, ...]) -> CaseRow:
    if not cells["case"]:
        raise LabelSetError(f"{where}: no case name")
    if cells["part"] not in ("", TRAINING, TEST):
        raise LabelSetError(
            f"{where}: part: expected '{TRAINING}' or '{TEST}', but got '{cells['part']}'"
        )
    annotated = None
    if cells["annotated"]:
        annotated = listed_leaves(cells["annotated"], leaves, f"{where}: annotated")
    return CaseRow(
        case=cells["case"],
        where=where,
        name=cells["name"],
        source=cells["source"],
        part=cells["part"],
        annotated=annotated,
        files={},
    )


class CaseRows:
    """The rows of a case list, each of which is about one case.

    With `lost_zeros`, a row `1` is also about a case `001`: spreadsheets drop the zeros.
    """

    def __init__(self, rows: Mapping[tuple[str, str], CaseRow], lost_zeros: bool = False) -> None:
        self.rows = {(source, composed(case)): row for (source, case), row in rows.items()}
        self.lost_zeros = lost_zeros
        # The cases that each row is about, with their sources.
        self.users: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.without_zeros: dict[str, str] = {}  # names of cases, as spreadsheets write them
        self.rivals: list[tuple[str, str]] = []  # cases with several rows, and what to say

    def find(self, source: str, *names: str) -> CaseRow | None:
        """Return the row of a case, which the list may call by any of its names.

        The first name is the one in the data set. A row of its source comes first.
        """
        exact = dict.fromkeys(composed(name) for name in names)
        stripped = {_without_zeros(name): name for name in exact}
        self.without_zeros |= stripped
        for row_source in (source, ""):
            for spellings in (exact, stripped) if self.lost_zeros else (exact,):
                row = self._find_one(row_source, spellings, (source, names[0]))
                if row is not None:
                    return row
        return None

    def _find_one(
        self, row_source: str, spellings: Iterable[str], user: tuple[str, str]
    ) -> CaseRow | None:
        keys = [(row_source, name) for name in spellings if (row_source, name) in self.rows]
        for key in keys:
            self.users.setdefault(key, []).append(user)
        if len(keys) > 1:
            places = " and ".join(self.rows[key].where for key in keys)
            self.rivals.append((user[1], f"{places}: both are about case '{user[1]}'"))
        return self.rows[keys[0]] if keys else None

    def problems(
        self, sources: set[str], other_sources: set[str], cases: Sequence[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield rows that are about several cases, or about a source or case that does not exist.

        Rows about `other_sources` wait for another run.
        """
        yield from self.rivals
        known = sorted(sources | other_sources)
        # The search for near misses takes time.
        near_cases = cases if len(cases) < MOST_NEAR_MISSES else ()
        for key, row in self.rows.items():
            users = self.users.get(key, [])
            if len(users) > 1:
                text = _shared_text(row, users)
                yield from ((case, text) for _, case in users)
            elif row.source and row.source not in known:
                hint = did_you_mean(row.source, known)
                yield row.case, f"{row.where}: no such source: '{row.source}'{hint}"
            elif not users and (not row.source or row.source in sources):
                hint = self.zeros_hint(row.case) or near_miss(row.case, near_cases)
                yield row.case, f"{row.where}: no source has a case '{row.case}'{hint}"

    def zeros_hint(self, name: str) -> str:
        """Return how a row `1` is read as `001`, if there is such a case."""
        if self.lost_zeros or name not in self.without_zeros:
            return ""
        return f" ('{self.without_zeros[name]}'? With --safe-names, '{name}' means it, too)"


def _shared_text(row: CaseRow, users: Sequence[tuple[str, str]]) -> str:
    shown = [f"'{case}' of {source}" for source, case in users]
    return (
        f"{row.where}: case '{row.case}' could be {some(shown)}: "
        "name its source in a column 'source'"
    )


def _without_zeros(name: str) -> str:
    return name.lstrip("0") or "0" if name.isdigit() else name
