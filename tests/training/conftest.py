"""One tiny preprocessed data set for the tests of the trainers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import tiny


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tiny.NNUNet:
    """Planned and preprocessed by nnU-Net's own commands, with a network cut down through the plans file."""
    nnunet = tiny.NNUNet(tmp_path_factory.mktemp("nnunet"))
    tiny.write_raw(nnunet.raw)
    nnunet.run("nnUNetv2_plan_and_preprocess", "-d", 901, "--verify_dataset_integrity", "--no_pp", "-np", 1)
    nnunet.run("nnUNetv2_plan_experiment", "-d", 901, "-pl", "nnUNetPlannerResEncM")
    for plans in (nnunet.preprocessed / tiny.NAME).glob("nnUNet*Plans.json"):
        tiny.shrink_plans(plans)
    nnunet.run("nnUNetv2_preprocess", "-d", 901, "-c", "2d", "3d_fullres", "3d_lowres", "-np", 1)
    return nnunet


@pytest.fixture
def in_process(prepared: tiny.NNUNet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tiny.NNUNet:
    """The same data set for trainers made in this process, with results of their own."""
    for name, value in prepared.environment.items():
        if name.lower().startswith("nnunet"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("nnUNet_results", str(tmp_path / "results"))
    monkeypatch.setenv("nnUNet_n_proc_DA", "0")
    return prepared
