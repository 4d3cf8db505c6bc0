"""All label-set trainers by name, and what the tests of trainers feed them."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch

from nnunet_labelset.trainers import baselines, label_set, leaf_dice, marginal, sigmoid, variants
from nnunet_labelset.training.mixin import LabelSetMixin
from tests.helpers import tiny
from tests.helpers.tiny import dataset_json

TRAINERS = {
    name: cls
    for module in (baselines, label_set, leaf_dice, marginal, sigmoid, variants)
    for name, cls in vars(module).items()
    if inspect.isclass(cls) and issubclass(cls, LabelSetMixin) and name.startswith("nnUNetTrainer")
}


def all_full(nnunet: tiny.NNUNet) -> dict[str, Any]:
    dataset = dataset_json(nnunet)
    dataset["label_sets"]["cases"] = dict.fromkeys(dataset["label_sets"]["cases"], "full")
    return dataset


def batch(seed: int, cases: list[str], scales: int = 2, values: int = 4) -> dict[str, Any]:
    """A batch as nnU-Net's loader makes it: int16 values at every scale of deep supervision."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [16 // 2**i for i in range(scales)]
    return {
        "data": torch.randn(len(cases), 1, 16, 16, 16, generator=generator),
        "target": [
            torch.randint(values, (len(cases), 1, s, s, s), generator=generator, dtype=torch.int16)
            for s in sizes
        ],
        "keys": np.array(cases),
    }
