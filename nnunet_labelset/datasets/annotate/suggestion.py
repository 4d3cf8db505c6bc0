"""`annotate --suggest`: a table of what occurs where, to be corrected by a person."""

from __future__ import annotations

from collections import Counter

from nnunet_labelset.contract.annotated_table import ANNOTATED, HINT, RESERVED
from nnunet_labelset.datasets.annotate.labelled import LabelledDataset, Values
from nnunet_labelset.io.tables import csv_text
from nnunet_labelset.io.text import plain_name

SUSPICIOUS = 0.5  # a label that so many of the cases have is missed where it is absent


def suggestion(data: LabelledDataset, values: Values, separator: str = ",") -> str:
    """Return a table of which label has voxels in which case, with hints at suspicious gaps."""
    labels = dict(enumerate(data.labels.leaf_names[1:], start=1))
    occurrences = Counter(leaf for name in data.names for leaf in values[name])
    one_column_each = _are_good_columns(list(labels.values()))
    rows = []
    for name in data.names:
        cells = ["yes" if leaf in values[name] else "no" for leaf in labels]
        if not one_column_each:
            cells = [";".join(label for leaf, label in labels.items() if leaf in values[name])]
        suspicious = [
            f"{label} is in {occurrences[leaf]} of {len(data.names)} cases: forgotten here?"
            for leaf, label in labels.items()
            if leaf not in values[name] and occurrences[leaf] >= SUSPICIOUS * len(data.names)
        ]
        rows.append([name, *cells, "; ".join(suspicious)])
    columns = list(labels.values()) if one_column_each else [ANNOTATED]
    return csv_text(["case", *columns, HINT], rows, separator)


def _are_good_columns(labels: list[str]) -> bool:
    """Tell whether every label can be recognised as the name of a column."""
    names = [plain_name(label) for label in labels]
    is_trimmed = all(label == label.strip() and "\n" not in label for label in labels)
    return is_trimmed and len(set(names)) == len(names) and RESERVED.isdisjoint(names)
