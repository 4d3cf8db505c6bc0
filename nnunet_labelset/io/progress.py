"""Progress bars with the time left: on a terminal only, and only for work longer than two
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")

DELAY = 2.0  # seconds; shorter work needs no bar


def progress(
    items: Iterable[Item], description: str, total: int | None = None, unit: str = "case"
) -> Iterable[Item]:
    """Return the items; while they are consumed, a terminal shows how many are left.

    `total` is needed for items without a length. Logs and pipes get nothing.
    """
    return tqdm(
        items,
        desc=description,
        total=total,
        unit=unit,
        delay=DELAY,
        disable=None,  # tqdm's word for "without a terminal"
        dynamic_ncols=True,
    )
