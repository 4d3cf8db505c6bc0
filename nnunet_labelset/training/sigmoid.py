"""One sigmoid per label: every label is a region of its own, in nnU-Net's sense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.model import BLOCK, REGIONS_VERSION
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses import LeafDiceCELoss
from nnunet_labelset.training.mixin import LabelSetMixin


def one_region_per_label(dataset_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dataset.json in which every label but background is a region.

    A data set with regions is returned unchanged; so is a faulty one, which the trainer reports.
    nnU-Net reads a list of one value as a plain label, so every value is listed twice.
    """
    try:
        contract = Contract.from_dataset_json(dataset_json)
    except LabelSetError:
        return dict(dataset_json)
    if contract.regions is not None:
        return dict(dataset_json)
    labels = dataset_json["labels"]
    foreground = range(1, contract.num_leaves)
    regions = {contract.leaf_names[value]: [value, value] for value in foreground}
    others = {name: labels[name] for name in labels if name not in regions}
    block = {
        **dataset_json[BLOCK],
        "version": REGIONS_VERSION,
        "leaves": {name: value for value, name in enumerate(contract.leaf_names)},
    }
    return {
        **dataset_json,
        "labels": {"background": 0, **regions, **others},
        "regions_class_order": list(foreground),
        BLOCK: block,
    }


class SigmoidMixin(LabelSetMixin):
    """Put it before a trainer as `LabelSetMixin`.

    Labels do not compete: a voxel that is open for one label still counts fully for the others, and
    a structure may lie inside another one. The model predicts with nnU-Net's own commands, which
    write the last label whose probability exceeds one half.
    """

    loss_class = LeafDiceCELoss

    def __init__(
        self,
        plans: dict,
        configuration: str,
        fold: int,
        dataset_json: dict,
        device: torch.device = torch.device("cuda"),  # noqa: B008  (nnU-Net's own signature)
    ) -> None:
        super().__init__(plans, configuration, fold, one_region_per_label(dataset_json), device)
