"""The tiny preprocessed data set for trainers that are made in the process of the tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers import tiny
from tests.helpers.tiny import enter


@pytest.fixture(scope="session")
def prepared_regions(
    prepared: tiny.NNUNet, tmp_path_factory: pytest.TempPathFactory
) -> tiny.NNUNet:
    """The volumes as a data set with regions, with the plans of the other one; preprocessed by
    nnU-Net.
    """
    nnunet = tiny.NNUNet(tmp_path_factory.mktemp("regions"))
    tiny.write_regions(nnunet.raw)
    target = nnunet.preprocessed / tiny.NAME
    target.mkdir()
    for name in ("nnUNetPlans.json", "dataset_fingerprint.json"):
        shutil.copy(prepared.preprocessed / tiny.NAME / name, target)
    shutil.copy(nnunet.raw / tiny.NAME / "dataset.json", target)
    nnunet.run("nnUNetv2_preprocess", "-d", 901, "-c", "2d", "3d_fullres", "3d_lowres", "-np", 1)
    return nnunet


@pytest.fixture
def in_process(
    prepared: tiny.NNUNet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tiny.NNUNet:
    """The same data set for trainers made in this process, with results of their own."""
    return enter(prepared, monkeypatch, tmp_path / "results")


@pytest.fixture
def regions_in_process(
    prepared_regions: tiny.NNUNet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tiny.NNUNet:
    return enter(prepared_regions, monkeypatch, tmp_path / "results")
