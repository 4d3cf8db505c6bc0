"""What is annotated in which case, from a table instead of the contract in dataset.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract, LabelSet
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.tables import read_table
from nnunet_labelset.io.text import some

SEPARATOR = ";"
ALL = "all"


def contract_with_list(dataset_json: Mapping[str, Any], table: str | Path) -> Contract:
    """A contract whose cases come from a table with the column `case` and either `annotated` or `protocol`.

    `protocol` names a protocol of dataset.json. `annotated` lists leaves, separated by `;`, or says `all`.
    """
    rows = read_table(table)
    columns = set(rows[0])
    if "case" not in columns or len(columns & {"annotated", "protocol"}) != 1:
        raise LabelSetError(f"{table}: expected the columns 'case' and either 'annotated' or 'protocol'")
    counts = Counter(row["case"].strip() for row in rows)
    if twice := [case for case, count in counts.items() if count > 1]:
        raise LabelSetError(f"{table}: listed more than once: {some(twice)}")
    if "protocol" in columns:
        contract = Contract.from_dataset_json(dataset_json)
        cases = {row["case"].strip(): row["protocol"].strip() for row in rows}
        for case, protocol in cases.items():
            if protocol not in contract.protocols:
                hint = did_you_mean(protocol, contract.protocols)
                raise LabelSetError(f"{table}: case '{case}': unknown protocol '{protocol}'{hint}")
        return replace(contract, cases=cases)
    labels = Contract.of_labels(dataset_json)
    protocols, cases = {}, {}
    for row in rows:
        case, listed = row["case"].strip(), {name.strip() for name in row["annotated"].split(SEPARATOR)} - {""}
        for name in sorted(listed - {*labels.leaf_names, ALL}):
            hint = did_you_mean(name, [*labels.leaf_names, ALL])
            raise LabelSetError(f"{table}: case '{case}': unknown leaf '{name}'{hint}")
        foreground = labels.leaf_names[1:]
        names = foreground if ALL in listed else tuple(leaf for leaf in foreground if leaf in listed)
        cases[case] = ALL if names == foreground else SEPARATOR.join(names)
        protocols[cases[case]] = _sets(labels, frozenset(labels.leaf_names.index(name) for name in names))
    return replace(labels, protocols=protocols, cases=cases)


def _sets(labels: Contract, annotated: LabelSet) -> tuple[LabelSet, ...]:
    """A leaf that is not listed may be hidden in the background and, where the data set has it, under `ignore`.

    Its own value says no more than the background: part of it may have been drawn, but nobody vouches for that.
    """
    uncertain = labels.full_set - annotated
    every_leaf_is_listed = len(uncertain) == 1
    values = [frozenset([leaf]) if leaf in annotated else uncertain for leaf in range(labels.num_leaves)]
    ignore = labels.full_set if every_leaf_is_listed else uncertain
    return (*values, ignore) if labels.has_ignore else tuple(values)
