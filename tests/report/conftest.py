from pathlib import Path

import pytest

from tests.helpers.report import write_study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_study(tmp_path)
