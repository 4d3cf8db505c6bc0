"""Case lists: tables with one row per case, for what differs from case to case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.contract.annotated_table import listed_leaves
from nnunet_labelset.dataset_conversion.sources.patterns import LABEL, MASK, Kind, Role
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.tables import read_table
from nnunet_labelset.nnunet.raw import TEST, TRAINING

COLUMNS = ("case", "name", "source", "part", "annotated")


@dataclass(frozen=True)
class Row:
    """One case; what a cell leaves empty follows the source."""

    case: str
    where: str
    name: str  # the case is called so in the data set
    source: str
    part: str
    annotated: LabelSet | None
    files: dict[Role, Path]


def read_case_list(
    path: Path, leaves: tuple[str, ...], channels: tuple[str, ...] = (), folder: Path | None = None
) -> dict[tuple[str, str], Row]:
    """Rows of a case list by (source, case); with `channels`, the columns image, label and mask are
    read as well.
    """
    table = read_table(path)
    columns = list(table[0])
    images = (
        {"image": channels[0]}
        if len(channels) == 1
        else {f"image_{channel}": channel for channel in channels}
    )
    known = [*COLUMNS, *images, *(("label", "mask") if channels else ())]
    for column in columns:
        if column not in known:
            raise LabelSetError(f"{path}: unknown column '{column}'{did_you_mean(column, known)}")
    for column in ["case", *images]:
        if column not in columns:
            raise LabelSetError(
                f"{path}: expected a column '{column}' in the first line, but got {', '.join(columns)}"
            )
    rows: dict[tuple[str, str], Row] = {}
    for line in table:
        where = line.where
        cells = dict.fromkeys(known, "") | line
        if not cells["case"]:
            raise LabelSetError(f"{where}: no case name")
        if cells["part"] not in ("", TRAINING, TEST):
            raise LabelSetError(
                f"{where}: part: expected '{TRAINING}' or '{TEST}', but got '{cells['part']}'"
            )
        annotated = (
            listed_leaves(cells["annotated"], leaves, f"{where}: annotated")
            if cells["annotated"]
            else None
        )
        files = {Role(Kind.IMAGE, channel): cells[column] for column, channel in images.items()}
        files |= {role: cells[role.kind.value] for role in (LABEL, MASK) if channels}
        paths = {role: (folder or path.parent) / name for role, name in files.items() if name}
        row = Row(
            cells["case"], where, cells["name"], cells["source"], cells["part"], annotated, paths
        )
        if rows.setdefault((row.source, row.case), row) is not row:
            raise LabelSetError(f"{where}: case '{row.case}' was listed before")
    return rows
