"""How the suite is spread over the cores, and the data set that nnU-Net has preprocessed for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from tests.helpers import tiny

# No test depends on a moment being fast.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")

# A file stays on one core, since the tests of some build on each other; these take longest, the
# longest first.
LONG = (
    *(
        "test_nnunet_commands.py",
        "test_regions.py",
        "test_extend.py",
        "test_site.py",
        "test_learning.py",
    ),
    *("test_demo.py", "test_trainer.py", "test_distributed.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long work first, so that no core is left alone with it in the end; what needs nnU-Net's
    commands is slow.
    """
    for item in items:
        if "prepared" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    order = {name: number for number, name in enumerate(LONG)}
    items.sort(
        key=lambda item: (
            order.get(item.path.name, len(LONG)),
            item.get_closest_marker("slow") is None,
        )
    )


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tiny.NNUNet:
    """Planned and preprocessed by nnU-Net's own commands, with a network cut down through the plans
    file.

    Made once for all workers; each has a copy that it may spoil.
    """
    folder = tmp_path_factory.getbasetemp()
    shared = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "prepared"
    with FileLock(f"{shared}.lock"):
        if not (shared / "done").is_file():
            _prepare(shared)
    own = tmp_path_factory.mktemp("nnunet")
    shutil.copytree(shared, own, dirs_exist_ok=True)
    return tiny.NNUNet(own)


def _prepare(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)  # of a worker that failed in the middle
    nnunet = tiny.NNUNet(root)
    tiny.write_raw(nnunet.raw)
    nnunet.run(
        "nnUNetv2_plan_and_preprocess",
        "-d",
        901,
        "--verify_dataset_integrity",
        "--no_pp",
        "-npfp",
        1,
        "-np",
        1,
    )
    nnunet.run("nnUNetv2_plan_experiment", "-d", 901, "-pl", "nnUNetPlannerResEncM")
    for plans in (nnunet.preprocessed / tiny.NAME).glob("nnUNet*Plans.json"):
        tiny.shrink_plans(plans)
    nnunet.run("nnUNetv2_preprocess", "-d", 901, "-c", "2d", "3d_fullres", "3d_lowres", "-np", 1)
    (root / "done").touch()
