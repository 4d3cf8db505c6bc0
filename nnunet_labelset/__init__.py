"""Train stock nnU-Net v2 on partially annotated data with label-set loss functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError

if TYPE_CHECKING:
    from nnunet_labelset.losses.label_sets import LabelSets

__version__ = "0.1.0"
__all__ = ["Contract", "LabelSetError", "LabelSets", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LabelSets":  # torch is imported only by those who need it
        from nnunet_labelset.losses.label_sets import LabelSets

        return LabelSets
    raise AttributeError(f"module 'nnunet_labelset' has no attribute '{name}'")
