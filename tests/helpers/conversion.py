"""Small volumes in the layouts that people have."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np

from nnunet_labelset.cli import main
from nnunet_labelset.contract import Contract
from nnunet_labelset.io.files import read_json, write_json
from tests.helpers import volumes
from tests.helpers.volumes import read_array as read_array

SHAPE = (6, 7, 8)  # (z, y, x)
LEAVES = (
    "background", "white_matter", "ventricles", "cerebellum", "external_csf",
    "cortical_gray_matter", "deep_gray_matter", "brainstem", "corpus_callosum",
)  # fmt: skip


DOCUMENT = (Path(__file__).parents[2] / "docs" / "manifest.md").read_text(encoding="utf-8")
TOML = {  # the examples of the page by file name
    re.match(r"# (\S+)", text)[1]: text for text in re.findall(r"```toml\n(.*?)```", DOCUMENT, re.S)
}


def convert(out: Path, *arguments: str, number: str = "27", name: str = "Fetal") -> int:
    return main(["convert", "-d", number, "-n", name, "-o", str(out), "-np", "1", *arguments])


convert_mine = partial(convert, number="30", name="Mine")


def convert_example(root: Path, name: str) -> Path:
    """Convert an example of the page; return the data set."""
    (root / name).write_text(TOML[name])
    assert convert_mine(root / "raw", "-m", str(root / name)) == 0
    return root / "raw" / "Dataset030_Mine"


# In a place that is not the origin.
write_volume = partial(volumes.write_volume, spacing=(0.8, 0.8, 0.9), origin=(-3.0, 4.0, 5.5))


def random_image(seed: int = 0, shape=SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).normal(100, 20, shape).astype(np.float32)


def slabs(*values: int, dtype=np.uint8, shape=SHAPE) -> np.ndarray:
    """A label map with the given values in rows of the y axis; the first and last x are 0."""
    array = np.zeros(shape, dtype)
    for row, value in enumerate(values):
        array[:, row % shape[1], 1 + row // shape[1] : 3 + row // shape[1]] = value
    return array


def write_case_folder(
    root: Path, case: str, labels: np.ndarray | None = None, seed: int = 0, **geometry
) -> Path:
    """A case folder; the brain mask is what is labelled if all leaves occur, and else all but the
    last x.
    """
    labels = slabs(*range(1, 7)) if labels is None else labels
    mask = np.ones(labels.shape, np.uint8)
    mask[..., -1] = 0
    if set(range(1, 9)) <= set(labels.ravel().tolist()):
        mask = (labels > 0).astype(np.uint8)
    folder = root / case
    write_volume(folder / "srr.nii.gz", random_image(seed, labels.shape), **geometry)
    write_volume(folder / "mask.nii.gz", mask, **geometry)
    write_volume(folder / "parcellation.nii.gz", labels, **geometry)
    return folder


def contract_of(dataset: Path) -> Contract:
    return Contract.from_dataset_json(read_json(dataset / "dataset.json"))


def names(contract: Contract, labels) -> set[str]:
    return {contract.leaf_names[leaf] for leaf in labels}


def label_sets_of(dataset: Path, case: str, part: str = "Tr") -> np.ndarray:
    """What each voxel may be: an array of frozensets of leaf names."""
    contract = contract_of(dataset)
    sets = np.array(
        [frozenset(names(contract, labels)) for labels in contract.protocol(case).sets],
        dtype=object,
    )
    return sets[read_array(dataset / f"labels{part}" / f"{case}.nii.gz")]


def write_nnunet(
    raw: Path, name: str, labels: dict[str, int], cases: dict[str, np.ndarray], **extra
) -> Path:
    """A plain nnU-Net data set."""
    folder = raw / name
    for number, (case, array) in enumerate(cases.items()):
        write_volume(folder / "imagesTr" / f"{case}_0000.nii.gz", random_image(number))
        write_volume(folder / "labelsTr" / f"{case}.nii.gz", array)
    content = {
        "channel_names": {"0": "CT"},
        "labels": labels,
        "numTraining": len(cases),
        "file_ending": ".nii.gz",
    }
    write_json(folder / "dataset.json", {**content, **extra})
    return folder
