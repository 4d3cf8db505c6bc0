"""Decimal texts of DICOM, parsed by NumPy: pydicom makes an object of every number."""

from __future__ import annotations

import numpy as np
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import BaseTag


def numbers(content: Dataset, tag: BaseTag) -> np.ndarray:
    """Return the numbers of an attribute; none if it is not there or empty."""
    if tag not in content:
        return np.empty(0)
    element = content.get_item(tag)
    raw = element.value if isinstance(element, RawDataElement) else content[tag].value
    if not isinstance(raw, bytes):
        return np.array([] if raw is None else raw, dtype=np.float64).reshape(-1)
    text = raw.strip(b" \0")
    return np.array(text.split(b"\\") if text else [], dtype=np.float64)
