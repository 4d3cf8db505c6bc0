"""Decimal texts of DICOM, parsed by NumPy: pydicom makes an object of every number."""

from __future__ import annotations

import numpy as np
from pydicom.dataset import Dataset
from pydicom.tag import BaseTag


def numbers(text: bytes) -> np.ndarray:
    """Return the numbers of a decimal text."""
    text = text.strip(b" \0")
    return np.array(text.split(b"\\") if text else [], dtype=np.float64)


def numbers_of(content: Dataset, tag: BaseTag) -> tuple[float, ...]:
    """Return the numbers of an attribute; none if it is not there or empty."""
    if tag not in content:
        return ()
    value = content.get_item(tag).value
    if isinstance(value, bytes):
        return tuple(numbers(value).tolist())
    return tuple(map(float, value or ()))
