"""What is annotated in which case, from a table instead of the contract in dataset.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, IGNORE, VERSION, Contract
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.tables import read_table

SEPARATOR = ";"
ALL = "all"


def contract_with_list(dataset_json: Mapping[str, Any], table: str | Path) -> Contract:
    """A contract whose cases come from a table with the column `case` and either `annotated` or `protocol`.

    `protocol` names a protocol of dataset.json. `annotated` lists leaves, separated by `;`, or says `all`. Leaves that
    are not listed may be hidden in the background and, where the data set has it, under `ignore`.
    """
    rows = read_table(table)
    columns = set(rows[0])
    if "case" not in columns or len(columns & {"annotated", "protocol"}) != 1:
        raise LabelSetError(f"{table}: expected the columns 'case' and either 'annotated' or 'protocol'")
    block = dataset_json.get(BLOCK, {})
    if "protocol" in columns:
        cases = {row["case"].strip(): row["protocol"].strip() for row in rows}
        return Contract.from_dataset_json({**dataset_json, BLOCK: {**block, "cases": cases}})
    names = list(dataset_json.get("labels", {}))
    leaves = [name for name in names if name != IGNORE]
    protocols, cases = {}, {}
    for row in rows:
        listed = [name.strip() for name in row["annotated"].split(SEPARATOR) if name.strip()]
        for name in listed:
            if name not in (*leaves, ALL):
                hint = did_you_mean(name, [*leaves, ALL])
                raise LabelSetError(f"{table}: case '{row['case']}': unknown leaf '{name}'{hint}")
        hidden = [] if ALL in listed else [leaf for leaf in leaves[1:] if leaf not in listed]
        name = SEPARATOR.join(leaf for leaf in leaves[1:] if leaf not in hidden) if hidden else ALL
        uncertain = [leaves[0], *hidden] if hidden else []
        protocols[name] = {value: uncertain for value in (leaves[0], IGNORE) if uncertain and value in names}
        cases[row["case"].strip()] = name
    return Contract.from_dataset_json(
        {**dataset_json, BLOCK: {"version": VERSION, "protocols": protocols, "cases": cases}}
    )
