"""A small raw data set with three protocols, for the tests of the verbs that read one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from nnunet_labelset.io.files import write_json
from tests.helpers import volumes

LABELS = {"background": 0, "liver": 1, "tumour": 2, "spleen": 3, "ignore": 4}
PROTOCOLS = {
    "full": {},
    "no_spleen": {"ignore": ["tumour", "spleen"]},
    "merged": {"liver": ["liver", "tumour"]},
}


write_volume = partial(volumes.write_volume, spacing=(1.0, 1.0, 2.0))


def label_map(*values: int) -> np.ndarray:
    """A label map that has all the given values, one slab each."""
    array = np.zeros((8, 6, 5), np.uint8)
    for row, value in enumerate(values):
        array[row] = value
    return array


def write_dataset(root: Path, ending: str = ".nii.gz") -> Path:
    """Six sound training cases, two of each protocol, and a test case."""
    folder = root / "Dataset027_Small"
    values = {"full": (1, 2, 3), "no_spleen": (1, 4), "merged": (1, 3)}
    cases = {}
    rng = np.random.default_rng(0)
    for protocol, present in values.items():
        for number in (1, 2):
            name = f"{protocol}_{number}"
            cases[name] = protocol
            image = rng.normal(size=(8, 6, 5)).astype(np.float32)
            write_volume(folder / "imagesTr" / f"{name}_0000{ending}", image)
            write_volume(folder / "labelsTr" / f"{name}{ending}", label_map(*present))
    write_volume(
        folder / "imagesTs" / f"test_1_0000{ending}", rng.normal(size=(8, 6, 5)).astype(np.float32)
    )
    write_volume(folder / "labelsTs" / f"test_1{ending}", label_map(1, 2, 3))
    cases["test_1"] = "full"
    write_json(
        folder / "dataset.json",
        {
            "channel_names": {"0": "CT"},
            "labels": LABELS,
            "numTraining": 6,
            "file_ending": ending,
            "label_sets": {"version": 1, "protocols": PROTOCOLS, "cases": cases},
        },
    )
    return folder
