"""What is annotated in which case, from a table instead of the contract in dataset.json."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract, LabelSet, Protocol
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.tables import Row, read_table
from nnunet_labelset.io.text import some

ALL = "all"
COLUMNS = "expected the columns 'case' and either 'annotated' or 'protocol', or 'case' and one for every leaf"
HINT = "hint"  # a column for people
YES, NO = ("1", "yes", "y", "true", "x"), ("0", "no", "n", "false")


def contract_with_list(dataset_json: Mapping[str, Any], table: str | Path) -> Contract:
    """A contract whose cases come from a table: a column `protocol` that names one, or as in
    `read_annotated`.
    """
    rows = read_table(table)
    if "protocol" not in rows[0]:
        labels = Contract.of_labels(dataset_json)
        annotated = read_annotated(table, labels)
        full = labels.full_set - {0}
        names = {
            case: ALL
            if leaves == full
            else ";".join(labels.leaf_names[leaf] for leaf in sorted(leaves))
            for case, leaves in annotated.items()
        }
        protocols = {names[case]: _protocol(labels, leaves) for case, leaves in annotated.items()}
        return replace(labels, protocols=protocols, cases=names)
    _check_columns(rows, table)
    contract = Contract.from_dataset_json(dataset_json, Path(table))
    cases = {row["case"]: row["protocol"] for row in rows}
    for case, protocol in cases.items():
        if protocol not in contract.protocols:
            hint = did_you_mean(protocol, contract.protocols)
            raise LabelSetError(f"{table}: case '{case}': unknown protocol '{protocol}'{hint}")
    return replace(contract, cases=cases)


def read_annotated(table: str | Path, labels: Contract) -> dict[str, LabelSet]:
    """The foreground leaves that are annotated in each case, from a table with the column `case`
    and either

    `annotated`, which lists leaves (`liver;spleen`, commas do as well) or says `all`, or one column
    for every foreground leaf, which says yes or no (1/0, true/false).
    """
    rows = read_table(table)
    _check_columns(rows, table)
    foreground = labels.leaf_names[1:]
    columns = [column for column in rows[0] if column and column not in ("case", HINT)]
    if columns == ["annotated"]:
        found = {}
        for row in rows:
            where = f"{row.where}: case '{row['case']}'"
            found[row["case"]] = listed_leaves(row["annotated"], labels.leaf_names, where) - {0}
        return found
    if not set(columns) & set(foreground):
        raise LabelSetError(f"{table}: {COLUMNS}")
    for column in columns:
        if column not in foreground:
            known = ["annotated", *foreground]
            raise LabelSetError(
                f"{table}: column '{column}' is no leaf{did_you_mean(column, known)}"
            )
    if missing := [leaf for leaf in foreground if leaf not in columns]:
        raise LabelSetError(
            f"{table}: expected a column 'annotated', or one for every leaf with yes or no: no column {some(missing)}"
        )
    annotated = {}
    for row in rows:
        for leaf in foreground:
            if row[leaf].lower() not in YES + NO:
                raise LabelSetError(
                    f"{row.where}: column '{leaf}': expected yes or no (1 or 0), but got '{row[leaf]}'"
                )
        annotated[row["case"]] = frozenset(
            n for n, leaf in enumerate(foreground, 1) if row[leaf].lower() in YES
        )
    return annotated


def refuse_unknown(
    table: str | Path, listed: Iterable[str], cases: Collection[str], where: str
) -> None:
    """Fail if the table is about cases that are not there: a slip in a name would leave the case
    itself undeclared.
    """
    if unknown := [name for name in listed if name not in cases]:
        shown = some(f"'{name}'" for name in unknown)
        raise LabelSetError(f"{table}: no case {shown} {where}{did_you_mean(unknown[0], cases)}")


def _check_columns(rows: list[Row], table: str | Path) -> None:
    if "case" not in rows[0] or ("annotated" in rows[0] and "protocol" in rows[0]):
        raise LabelSetError(f"{table}: {COLUMNS}")
    listed = set()
    for row in rows:
        if not row["case"]:
            raise LabelSetError(f"{row.where}: no case name")
        if row["case"] in listed:
            raise LabelSetError(f"{row.where}: listed more than once: {row['case']}")
        listed.add(row["case"])


def listed_leaves(text: str, leaf_names: Sequence[str], where: str) -> LabelSet:
    """`all`, or names between `;` or, where no leaf has one in its name, between commas."""
    separator = ";" if any("," in leaf for leaf in leaf_names) else "[;,]"
    names = {name.strip() for name in re.split(separator, text)} - {""}
    known = [*leaf_names, ALL]
    for name in sorted(names - set(known)):
        raise LabelSetError(f"{where}: unknown leaf '{name}'{did_you_mean(name, known)}")
    return frozenset(
        number for number, leaf in enumerate(leaf_names) if ALL in names or leaf in names
    )


def _protocol(labels: Contract, annotated: LabelSet) -> Protocol:
    """A leaf that is not listed may be hidden in the background and, where the data set has it,
    under `ignore`.

    Its own value says no more than the background: part of it may have been drawn, but nobody
    vouches for that.
    """
    uncertain = labels.full_set - annotated
    every_leaf_is_listed = len(uncertain) == 1
    values = [
        frozenset([leaf]) if leaf in annotated else uncertain for leaf in range(labels.num_leaves)
    ]
    ignore = labels.full_set if every_leaf_is_listed else uncertain
    sets = (*values, ignore) if labels.has_ignore else tuple(values)
    return Protocol(sets, labels.num_leaves)
