"""Small label maps on disk, for the tests of evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813

LABELS = {"background": 0, "white_matter": 1, "ventricles": 2, "corpus_callosum": 3, "ignore": 4}
LEAVES = ("white_matter", "ventricles", "corpus_callosum")
PROTOCOLS = {
    "full": {},
    "basic": {"ignore": ["ventricles", "corpus_callosum"]},
    "feta": {"white_matter": ["white_matter", "corpus_callosum"]},
}


def dataset(cases: dict[str, str], **more: object) -> dict:
    """A dataset.json with the contract of these tests."""
    block = {"version": 1, "protocols": PROTOCOLS, "cases": cases}
    return {"labels": LABELS, "file_ending": ".nii.gz", "channel_names": {"0": "T2"}, "label_sets": block, **more}


def write_dataset(folder: Path, cases: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").write_text(json.dumps(dataset(cases)))
    return folder / "dataset.json"


def write_labels(path: Path, array, spacing=None, **geometry) -> Path:
    """Write an array (z, y, x); `spacing` in array order too."""
    array = np.asarray(array)
    image = sitk.GetImageFromArray(array.astype(np.uint8) if array.dtype.kind in "bi" else array)
    if spacing is not None:
        image.SetSpacing([float(size) for size in reversed(spacing)])
    for name, value in geometry.items():
        getattr(image, f"Set{name.capitalize()}")(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image, str(path))
    return path


def row(*values: int) -> np.ndarray:
    """A volume of one row, for counts that can be done by hand."""
    return np.array([[values]], dtype=np.uint8)
