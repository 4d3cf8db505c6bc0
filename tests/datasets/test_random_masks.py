"""Random declarations with masks: a voxel may be exactly what its case leaves open.

The oracle reads dataset.json by the rules of docs/contract.md and knows nothing of the package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnunet_labelset.cli import main
from tests.helpers.conversion import read_array, write_nnunet, write_volume

LABELS = ("background", "liver", "spleen", "kidney")
SHAPE = (3, 4, 5)


def meanings(content: dict[str, Any], case: str) -> list[set[str]]:
    """What each value of a case may be, by docs/contract.md."""
    block = content["label_sets"]
    protocol = block["protocols"][block["cases"][case]]
    ignore = [set(protocol.get("ignore", LABELS))] if "ignore" in content["labels"] else []
    return [set(protocol.get(name, [name])) for name in LABELS] + ignore


def annotated(content: dict[str, Any], case: str) -> set[str]:
    block = content["label_sets"]
    protocol = block["protocols"][block["cases"][case]]
    sets = meanings(content, case)
    stated = sets if "ignore" in protocol else sets[: len(LABELS)]
    alone = set().union(*(names for names in stated if len(names) == 1))
    return alone - set().union(*(names for names in stated if len(names) > 1))


@pytest.mark.parametrize("seed", range(20))
def test_nothing_counts_as_drawn_that_was_not(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    monkeypatch.delenv("nnUNet_preprocessed", raising=False)
    rng = np.random.default_rng(seed)
    missing = {}
    arrays = {}
    for case in ("a", "b", "c"):
        names = rng.permutation(LABELS[1:])[: rng.integers(0, 4)].tolist()
        array = rng.integers(0, 4, SHAPE).astype(np.uint8)
        missing[case] = names
        arrays[case] = np.where(np.isin(array, [LABELS.index(name) for name in names]), 0, array)
    missing["a"] = missing["a"] or ["liver"]  # --mask needs a case that lacks a label
    arrays["a"][arrays["a"] == LABELS.index(missing["a"][0])] = 0
    values = {name: value for value, name in enumerate(LABELS)}
    folder = write_nnunet(tmp_path, "Dataset005_Random", values, arrays)
    masks = {"a": rng.random(SHAPE) < 0.5}
    if rng.random() < 0.5:
        masks["b"] = rng.random(SHAPE) < 0.5
    for case, mask in masks.items():
        mask[0, 0, 0] = True
        write_volume(tmp_path / "masks" / f"{case}.nii.gz", mask.astype(np.uint8))
    words = []
    for case, names in missing.items():
        words += ["--missing", *names, "--in", case] if names else []
    mask_folder = str(tmp_path / "masks")
    assert main(["annotate", "-d", "5", "-np", "1", *words, "--mask", mask_folder]) == 0
    content = json.loads((folder / "dataset.json").read_text())
    for case, names in missing.items():
        has_mask = case in masks and bool(names)
        inside = set(names) | ({"background"} if len(names) == 1 else set())
        is_background_known = not names or (has_mask and len(names) > 1)
        drawn = set(LABELS[1:]) - set(names)
        assert annotated(content, case) == drawn | (
            {"background"} if is_background_known else set()
        )
        sets = meanings(content, case)
        new = read_array(folder / "labelsTr" / f"{case}.nii.gz")
        for voxel in np.ndindex(SHAPE):
            before = arrays[case][voxel]
            expected = {LABELS[before]}
            if before == 0 and has_mask:
                expected = inside if masks[case][voxel] else {"background"}
            elif before == 0:
                expected = {"background"} | set(names)
            assert sets[new[voxel]] == expected
