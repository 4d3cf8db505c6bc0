"""What is annotated in which case, from a table instead of the contract in dataset.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract, LabelSet, Protocol
from nnunet_labelset.errors import LabelSetError, did_you_mean, near_miss
from nnunet_labelset.io.tables import TableRow, read_table
from nnunet_labelset.io.text import composed, plain_name, some

ALL = "all"
ANNOTATED = "annotated"
WRONG = "wrong"  # a column: labels that were drawn, but are not to be trusted
SLICES = "slices"  # a column: the first and the last one that were drawn
SCRIBBLES = "scribbles"  # a column: whether only strokes or parts were drawn
PROTOCOL = "protocol"
CHANNEL = re.compile(r"_\d{4}$")  # at the end of the name of an image
HINT = "hint"  # a column for people, which `annotate --suggest` writes
CASE_COLUMNS = (
    *("case", "case_id", "patient", "patient_id", "subject", "subject_id", "participant_id"),
    *("id", "name"),
)
OTHER_CASE_COLUMNS = (
    *("case_no", "case_number", "patient_no", "patient_number", "subject_no"),
    *("fall", "fall_nr", "fall_id", "fallnummer", "proband", "probanden_nr", "patienten_nr"),
    *("patienten_id", "patientennummer", "cas", "sujet", "caso", "paciente", "paziente"),
    *("image", "image_id", "file", "file_name", "filename", "scan", "scan_id", "study_id"),
    *("datei", "dateiname", "bild", "fichier", "archivo"),
)
RESERVED = frozenset({*CASE_COLUMNS, *OTHER_CASE_COLUMNS, ANNOTATED, PROTOCOL, HINT})
RESERVED |= {WRONG, SLICES, SCRIBBLES}
IMAGE_ENDINGS = (".nii.gz", ".nii", ".seg.nrrd", ".nrrd", ".mha", ".png", ".tif", ".tiff", ".bmp")
CROSSES = frozenset({"x", "✓", "✔", "☑"})
YES = CROSSES | {"1", "yes", "y", "true", "ja", "j", "wahr", "oui", "vrai", "si", "sí", "sì"}
YES |= {"1.0", "1,0", "100%", "+"}
NO = frozenset({"0", "no", "n", "false", "nein", "falsch", "non", "faux", "falso"})
NO |= {"0.0", "0,0", "0%"}
# Not annotated teaches nothing, so it is the safe reading of an answer that nobody has.
NOT_KNOWN = frozenset(
    {"-", "\N{EN DASH}", "\N{EM DASH}", "?", "??", "n/a", "na", "n.a.", "nan", "unknown", "unclear"}
)
NOT_KNOWN |= {"unsure", "unbekannt", "unklar", "k.a."}


@dataclass(frozen=True)
class AnnotatedTable:
    """The foreground labels that are annotated in each case, and the line that says so.

    `wrong` are labels whose drawing is not to be trusted, `slices` the first and the last one that
    were drawn (from 0), `scribbles` cases in which only parts were drawn. `notes` say what was
    understood that the table does not state.
    """

    path: str | Path
    annotated: Mapping[str, LabelSet]
    lines: Mapping[str, str]
    wrong: Mapping[str, LabelSet] = field(default_factory=dict)
    slices: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    scribbles: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


class LabelColumns:
    """The columns of a table that are called as labels, with yes or no in every row."""

    def __init__(
        self, rows: Sequence[TableRow], leaf_names: Sequence[str], table: str | Path
    ) -> None:
        self.leaf_names = leaf_names
        by_label = {
            label: _label_column(rows[0], label, leaf_names, table) for label in leaf_names[1:]
        }
        self.columns = {label: column for label, column in by_label.items() if column is not None}
        self.missing = [label for label in by_label if label not in self.columns]
        words = {_word(row[column]) for row in rows for column in self.columns.values()}
        has_crosses_only = bool(words & CROSSES) and words <= CROSSES | NOT_KNOWN | {""}
        self.no_words = NO | NOT_KNOWN | ({""} if has_crosses_only else set())
        self.not_known = sorted(words & NOT_KNOWN)

    def annotated(self, row: TableRow) -> LabelSet:
        """Return the labels with a yes; an empty cell means no where the others are crosses."""
        ticked = set()
        for label, column in self.columns.items():
            word = _word(row[column])
            if word in YES:
                ticked.add(self.leaf_names.index(label))
            elif word not in self.no_words:
                raise LabelSetError(
                    f"{row.where}: column '{column}': expected yes or no (1 or 0), but got "
                    f"'{row[column]}': write no if unsure, it teaches nothing wrong; delete lines "
                    f"that are not about a case"
                )
        return frozenset(ticked)

    @property
    def notes(self) -> list[str]:
        if not self.not_known:
            return []
        return [f"read as no (not annotated): {', '.join(map(repr, self.not_known))}"]

    def says_nothing(self, row: TableRow) -> bool:
        """Tell whether all cells are empty, and an empty one does not mean no."""
        return "" not in self.no_words and not any(row[name] for name in self.columns.values())


def _label_column(
    names: Iterable[str], label: str, leaf_names: Sequence[str], table: str | Path
) -> str | None:
    """Return the column that is called as a label; two of them are an error."""
    candidates = [name for name in names if name == label or name not in leaf_names]
    alike = [name for name in candidates if name and plain_name(name) == plain_name(label)]
    if len(alike) > 1:
        raise LabelSetError(
            f"{table}: {some(map(repr, alike))} are the same label: keep one column"
        )
    return alike[0] if alike else None


def _word(cell: str) -> str:
    return cell.lower().replace(" ", "")


@dataclass(frozen=True)
class _Columns:
    """Which column of a table names the case, and which ones say what was drawn."""

    case: str
    annotated: str | None = None
    ignored: tuple[str, ...] = ()
    wrong: str | None = None
    slices: str | None = None
    scribbles: str | None = None


def contract_with_list(dataset_json: Mapping[str, Any], table: str | Path) -> Contract:
    """Return a contract whose cases come from a table.

    The table has a column `protocol` that names one, or is as in `read_annotated`.
    """
    rows = read_table(table, names_columns(Contract.of_labels(dataset_json).leaf_names))
    protocol_column = find_column(rows[0], [PROTOCOL])
    if protocol_column is None:
        return _contract_of_labels(dataset_json, table)
    case = case_column(rows[0], table)
    if find_column(rows[0], [ANNOTATED]) is not None:
        raise LabelSetError(f"{table}: columns 'annotated' and 'protocol': keep one of them")
    contract = Contract.from_dataset_json(dataset_json, Path(table))
    cases = {case: row[protocol_column] for case, row in _rows_by_case(rows, case).items()}
    for case, protocol in cases.items():
        if protocol not in contract.protocols:
            hint = did_you_mean(protocol, contract.protocols)
            raise LabelSetError(f"{table}: case '{case}': unknown protocol '{protocol}'{hint}")
    return replace(contract, cases=cases)


def _contract_of_labels(dataset_json: Mapping[str, Any], table: str | Path) -> Contract:
    labels = Contract.of_labels(dataset_json)
    listed = read_annotated(table, labels)
    if listed.slices or listed.scribbles:
        raise LabelSetError(
            f"{table}: columns '{SLICES}' and '{SCRIBBLES}' are for 'nnunet_labelset annotate', "
            f"which has to be called on the data set first"
        )
    annotated = listed.annotated
    full = labels.full_set - {0}
    names = {}
    for case, leaves in annotated.items():
        listed_names = ";".join(labels.leaf_names[leaf] for leaf in sorted(leaves))
        names[case] = ALL if leaves == full else listed_names
    protocols = {names[case]: _protocol(labels, leaves) for case, leaves in annotated.items()}
    return replace(labels, protocols=protocols, cases=names)


def _protocol(labels: Contract, annotated: LabelSet) -> Protocol:
    """Return the protocol of a case in which these labels are annotated.

    A label that is not listed may be hidden in the background. Its own value says no more than the
    background: part of it may have been drawn, but nobody vouches for that. `ignore` stays
    "anything".
    """
    uncertain = labels.full_set - annotated
    values = [
        frozenset([leaf]) if leaf in annotated else uncertain for leaf in range(labels.num_leaves)
    ]
    sets = (*values, labels.full_set) if labels.has_ignore else tuple(values)
    return Protocol(sets, labels.num_leaves)


def read_annotated(table: str | Path, labels: Contract) -> AnnotatedTable:
    """Return the foreground labels that are annotated in each case.

    The table has a column for the case (`case`, `patient`, `id`, ...) and either `annotated`, which
    lists labels (`liver;spleen`, commas do as well) or says `all`, or one column for every label
    with yes or no in English, German, French, Italian or Spanish, 1 or 0, or crosses and empty
    cells. Capitals do not matter. A column `wrong` lists labels that were drawn wrongly, `slices`
    has the first and the last one that were drawn, and `scribbles` yes where only parts were.
    """
    rows = read_table(table, names_columns(labels.leaf_names))
    ticks = LabelColumns(rows, labels.leaf_names, table)
    columns = _find_columns(rows[0], ticks, table)
    by_case = _rows_by_case(rows, columns.case)
    annotated = {}
    for case, row in by_case.items():
        if columns.annotated is not None:
            where = f"{row.where}: case '{case}'"
            annotated[case] = listed_leaves(row[columns.annotated], labels.leaf_names, where) - {0}
        else:
            annotated[case] = ticks.annotated(row)
    wrong = {case: _wrong_labels(row, columns, labels) for case, row in by_case.items()}
    for case, row in by_case.items():
        for leaf in sorted(annotated[case] & wrong[case]):
            raise LabelSetError(
                f"{row.where}: case '{case}': '{labels.leaf_names[leaf]}' is both annotated and "
                f"wrong: choose one"
            )
    return AnnotatedTable(
        path=table,
        annotated=annotated,
        lines={case: row.where for case, row in by_case.items()},
        wrong=wrong,
        slices=_drawn_slices(by_case, columns),
        scribbles=_scribbled(by_case, columns),
        notes=(*ignored_note(columns.ignored), *ticks.notes),
    )


def _drawn_slices(by_case: Mapping[str, TableRow], columns: _Columns) -> dict[str, tuple[int, int]]:
    cells = {case: row[columns.slices] if columns.slices else "" for case, row in by_case.items()}
    return {
        case: slice_range(text, f"{by_case[case].where}: column '{columns.slices}': {text}")
        for case, text in cells.items()
        if text
    }


def slice_range(text: str, where: str) -> tuple[int, int]:
    """Return the first and the last slice that were drawn, from a text such as `20-60`."""
    match = re.fullmatch(r"(\d+)\s*[-\N{EN DASH}]\s*(\d+)", text)
    if not match or int(match[1]) > int(match[2]):
        raise LabelSetError(
            f"{where}: expected the first and the last slice that were drawn, counted from 0, such "
            f"as 20-60"
        )
    return int(match[1]), int(match[2])


def _scribbled(by_case: Mapping[str, TableRow], columns: _Columns) -> frozenset[str]:
    found = set()
    for case, row in by_case.items() if columns.scribbles else ():
        word = _word(row[columns.scribbles or ""])
        if word in YES:
            found.add(case)
        elif word not in NO | {""}:
            raise LabelSetError(
                f"{row.where}: column '{columns.scribbles}': expected yes or no, but got '{word}'"
            )
    return frozenset(found)


def ignored_note(columns: Sequence[str]) -> list[str]:
    return [f"ignored columns: {', '.join(columns)}"] if columns else []


def names_columns(leaf_names: Sequence[str]) -> Callable[[list[str]], bool]:
    """Return a test for the line of a table that names the columns: one for the case, and one that
    is about labels.
    """

    def is_header(cells: list[str]) -> bool:
        has_case = find_column(cells, (*CASE_COLUMNS, *OTHER_CASE_COLUMNS)) is not None
        about = (ANNOTATED, PROTOCOL, *leaf_names[1:])
        return has_case and find_column(cells, about) is not None

    return is_header


def _find_columns(names: Iterable[str], ticks: LabelColumns, table: str | Path) -> _Columns:
    names = [name for name in names if name]
    case = case_column(names, table)
    annotated = find_column(names, [ANNOTATED])
    label_columns = ticks.columns.values()
    further = {
        word: None if word in ticks.columns else find_column(names, [word])
        for word in (WRONG, SLICES, SCRIBBLES)
    }
    others = [case, *filter(None, further.values())]
    refuse_two_ways(annotated, ticks, table)
    if annotated is not None and ticks.missing:
        return _Columns(case, annotated, _others(names, annotated, *others), **further)
    require_all_labels(ticks, names, table)
    return _Columns(case, None, _others(names, *label_columns, *others), **further)


def refuse_two_ways(annotated: str | None, ticks: LabelColumns, table: str | Path) -> None:
    """Fail if a list of labels and a column for every label both say what is annotated."""
    columns = ticks.columns.values()
    if annotated is not None and annotated not in columns and not ticks.missing:
        raise LabelSetError(
            f"{table}: the column '{annotated}' and the columns {some(columns)} both say what is "
            f"annotated: remove one of the two"
        )


def require_all_labels(ticks: LabelColumns, names: Sequence[str], table: str | Path) -> None:
    """Fail if some label has no column."""
    if ticks.missing:
        near = _rename_hint(ticks.missing[0], _others(names, *ticks.columns.values()))
        raise LabelSetError(
            f"{table}: no column for {some(ticks.missing)}{near}: expected a column 'annotated', "
            f"or one for every label with yes or no; found the columns {', '.join(names)}"
        )


def _rename_hint(label: str, columns: Iterable[str]) -> str:
    """Return the column that is probably about a label."""
    for column in columns:
        if plain_name(label) in plain_name(column) or near_miss(label, [column]):
            return f" (rename '{column}' to '{label}' if that is it)"
    return ""


def _others(names: Iterable[str], *used: str) -> tuple[str, ...]:
    return tuple(name for name in names if name not in used and name.lower() != HINT)


def case_column(names: Iterable[str], table: str | Path) -> str:
    column = find_column(names, (*CASE_COLUMNS, *OTHER_CASE_COLUMNS))
    if column is None:
        raise LabelSetError(
            f"{table}: no column that names the case: expected {some(CASE_COLUMNS, 20)}; found the "
            f"columns {', '.join(filter(None, names))}"
        )
    return column


def find_column(names: Iterable[str], words: Iterable[str]) -> str | None:
    """Return the column that is called by one of the words; the first word wins."""
    names = list(names)
    for word in words:
        if word in names:
            return word
        alike = [name for name in names if name and plain_name(name) == plain_name(word)]
        if len(alike) == 1:
            return alike[0]
    return None


def _rows_by_case(rows: Sequence[TableRow], column: str) -> dict[str, TableRow]:
    by_case: dict[str, TableRow] = {}
    for row in rows:
        case = row[column]
        if not case:
            raise LabelSetError(f"{row.where}: no case name")
        case = without_ending(case)
        if case in by_case:
            raise LabelSetError(f"{row.where}: listed more than once: {case}")
        by_case[case] = row
    return by_case


def without_ending(case: str) -> str:
    """Return the name of a case for which a table gives a file, such as `labelsTr/p1.nii.gz`."""
    ending = next((text for text in IMAGE_ENDINGS if case.lower().endswith(text)), "")
    if not ending:
        return case
    return re.split(r"[/\\]", case[: len(case) - len(ending)])[-1]


def with_names_of_cases(table: AnnotatedTable, cases: Collection[str]) -> AnnotatedTable:
    """Return the table with the cases as the data set calls them.

    What a spreadsheet or a list of files changes in a name is undone where one case only can be
    meant: capitals, zeros in front (`7` for `007`), and the channel at the end (`p1_0000`).
    """
    renamed = {}
    taken = set(table.annotated) & set(cases)
    by_plain_name: dict[str, list[str]] = {}
    for case in cases:
        by_plain_name.setdefault(_plain_case(case), []).append(case)
    for name in table.annotated:
        alike = by_plain_name.get(_plain_case(name)) or by_plain_name.get(
            _plain_case(CHANNEL.sub("", name)), []
        )
        if name not in taken and len(alike) == 1 and alike[0] not in taken:
            renamed[name] = alike[0]
            taken.add(alike[0])
    if not renamed:
        return table
    shown = some((f"'{name}' is '{case}'" for name, case in renamed.items()), 3)
    return replace(
        table,
        annotated={renamed.get(name, name): each for name, each in table.annotated.items()},
        lines={renamed.get(name, name): each for name, each in table.lines.items()},
        wrong={renamed.get(name, name): each for name, each in table.wrong.items()},
        slices={renamed.get(name, name): each for name, each in table.slices.items()},
        scribbles=frozenset(renamed.get(name, name) for name in table.scribbles),
        notes=(*table.notes, f"names of cases: {shown}"),
    )


def _plain_case(name: str) -> str:
    return composed(name.lstrip("0") or "0" if name.isdigit() else name).casefold()


def _wrong_labels(row: TableRow, columns: _Columns, labels: Contract) -> LabelSet:
    if columns.wrong is None:
        return frozenset()
    where = f"{row.where}: column '{columns.wrong}'"
    return listed_leaves(row[columns.wrong], labels.leaf_names, where) - {0}


def refuse_unknown(
    table: str | Path, listed: Iterable[str], cases: Collection[str], where: str
) -> None:
    """Fail if the table is about cases that do not exist: a slip in a name would leave the case
    itself undeclared.
    """
    if unknown := [name for name in listed if name not in cases]:
        shown = some(f"'{name}'" for name in unknown)
        raise LabelSetError(f"{table}: no case {shown} {where}{did_you_mean(unknown[0], cases)}")


def listed_leaves(text: str, leaf_names: Sequence[str], where: str) -> LabelSet:
    """Return the labels of a list: `all`, or names between `;` or, where no label has them in its
    name, between `,` or `|`. Capitals do not matter.

    `kidney+tumour` and `kidney/tumour` are refused: they may mean labels that were drawn as one.
    """
    in_names = set("".join(leaf_names))
    separators = ";" + "".join(each for each in ",|" if each not in in_names)
    known = [*leaf_names, ALL]
    names = set()
    for name in filter(None, map(str.strip, re.split(f"[{re.escape(separators)}]", text))):
        label = find_column(known, [name])
        if label is None:
            hint = did_you_mean(name, known)
            raise LabelSetError(
                f"{where}: unknown label '{name}'{hint}; separate labels by ';' (drawn as one: "
                f"see docs/how-to/merged_labels.md)"
            )
        names.add(label)
    return frozenset(
        number for number, leaf in enumerate(leaf_names) if ALL in names or leaf in names
    )
