"""`nnunet_labelset explain`: what every value of a case may be, and why a label counts as
annotated.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nnunet_labelset.contract import Contract, LabelSet, Protocol
from nnunet_labelset.contract.completed import originals
from nnunet_labelset.datasets.annotate.history import recorded_reasons
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.tables import read_table
from nnunet_labelset.io.text import aligned, some
from nnunet_labelset.nnunet.names import DATASET
from nnunet_labelset.nnunet.publish import PROVENANCE

WIDTH = 100
UNKNOWN_REASON = "dataset.json (no record of how it was declared)"


def explain_case(folder: Path, contract: Contract, case: str) -> str:
    """Return every value of a case with the labels that it may be, and the reasons."""
    name = contract.protocol_name(case)
    protocol = contract.protocols[name]
    recorded = {**_converted_reasons(folder), **recorded_reasons(folder)}
    reason = recorded.get(case) or UNKNOWN_REASON
    original = originals(read_json(folder / DATASET)).get(case)
    if original is not None:
        reason = f"predictions: a completed copy of '{original}', for training only"
    rows = [("value", "called", "may be")]
    for value, leaves in enumerate(protocol.sets):
        rows.append((str(value), contract.value_names[value], contract.words(leaves)))
    lines = [
        f"{case}: protocol '{name}', declared by {reason}",
        "",
        *aligned(rows, names=len(rows[0])),
        "",
    ]
    lines += _label_lines(contract, protocol)
    return "\n".join(lines)


def _converted_reasons(folder: Path) -> dict[str, str]:
    """Return why each case is declared as it is, as `convert` or `merge` has recorded it."""
    with suppress(LabelSetError):
        return {row["case"]: row.get("declared_by", "") for row in read_table(folder / PROVENANCE)}
    return {}


def explain_groups(contract: Contract) -> str:
    """Return what every protocol annotates, in how many cases."""
    numbers = Counter(contract.cases.values())
    lines = []
    for name, protocol in contract.protocols.items():
        annotated = protocol.annotated - {0}
        missing = protocol.full_set - annotated - {0}
        lines.append(f"{name} ({numbers[name]} case(s))")
        lines += _wrapped("annotated:     ", _names(contract, annotated) or "-")
        lines += _wrapped("not annotated: ", _names(contract, missing) or "-")
    return "\n".join(lines)


def _wrapped(title: str, words: str) -> list[str]:
    start = f"  {title}"
    return textwrap.wrap(words, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))


def _label_lines(contract: Contract, protocol: Protocol) -> Iterator[str]:
    for leaf, label in enumerate(contract.leaf_names):
        if leaf in protocol.annotated:
            vouched = " (vouched for, although some voxels are disputed)"
            yield f"{label}: annotated{vouched if leaf in protocol.vouched else ''}"
        else:
            yield f"{label}: not annotated, {_why_not(contract, protocol, leaf)}"


def _why_not(contract: Contract, protocol: Protocol, leaf: int) -> str:
    """Return which values hide a label, or that no value stands for it."""
    values = [
        contract.value_names[value]
        for value, leaves in protocol.stated_sets.items()
        if leaf in leaves and len(leaves) > 1
    ]
    if values:
        return f"because voxels with the value {some(values)} may be it"
    return "because no value stands for it alone"


def _names(contract: Contract, leaves: LabelSet) -> str:
    return some([contract.leaf_names[leaf] for leaf in sorted(leaves)], 8)
