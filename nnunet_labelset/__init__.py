"""Train stock nnU-Net v2 on partially annotated data with label-set loss functions."""

from __future__ import annotations

__version__ = (
    "0.3.0"  # the only place: pyproject.toml reads it here, CITATION.cff is checked by a test
)

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nnunet_labelset.errors import LabelSetError

if TYPE_CHECKING:
    from nnunet_labelset.contract import Contract
    from nnunet_labelset.losses.label_sets import LabelSets

__all__ = ["Contract", "LabelSetError", "LabelSets", "__version__"]


def __getattr__(name: str) -> Any:
    """What takes time to import is imported by those who need it."""
    if name == "LabelSets":
        from nnunet_labelset.losses.label_sets import LabelSets

        return LabelSets
    if name in ("Contract", "contract"):
        # `from ... import` would ask here again
        contract = import_module("nnunet_labelset.contract")
        return contract.Contract if name == "Contract" else contract
    raise AttributeError(f"module 'nnunet_labelset' has no attribute '{name}'")
