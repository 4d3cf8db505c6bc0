"""Mirroring that exchanges left and right: the image, the labels of every pair, and label-sets.

Plain mirroring turns a left kidney into a right one and keeps its label, so that the network cannot
tell the two apart. Here a mirrored patch also swaps the labels of each pair. In partial data the
left organ then teaches the right one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnunet_labelset.contract import Contract, Protocol
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.nnunet.recommendation import MIRRORED_LABELS, paired_labels, sided_pairs
from nnunet_labelset.nnunet.swapped_prediction import announced_mirror, left_right_axis
from nnunet_labelset.training.checks import stopping
from nnunet_labelset.training.mixin import LabelSetMixin
from nnunet_labelset.training.outputs import LabelOutputs

SHARE = 0.5  # of the samples that are mirrored
CLEAR_DISTANCE = 5  # voxels between the centres of left and right labels


def label_pairs(
    leaf_names: Sequence[str], dataset_json: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return the pairs of left and right labels; none is an error."""
    pairs = paired_labels(leaf_names, dataset_json)
    if not pairs:
        raise LabelSetError(
            "no labels differ by side: train without SwapMirroring, or list the pairs in "
            f'dataset.json: "{MIRRORED_LABELS}": [["left name", "right name"]]'
        )
    return pairs


def swapped_leaves(leaf_names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> np.ndarray:
    """Return for every leaf the one that it becomes in the mirror, int64 `(C,)`."""
    swap = np.arange(len(leaf_names))
    for left, right in pairs:
        i, j = leaf_names.index(left), leaf_names.index(right)
        swap[[i, j]] = j, i
    return swap


def with_mirror_images(contract: Contract, swap: np.ndarray) -> LabelSets:
    """Return the label-sets of a data set and, behind them, what they become in the mirror."""
    mirrored = {
        f"{name}, mirrored": replace(protocol, sets=_mirrored(protocol, swap))
        for name, protocol in contract.protocols.items()
    }
    protocols = {**contract.protocols, **mirrored}
    return LabelSets(contract.leaf_names, protocols, contract.cases, contract)


def _mirrored(protocol: Protocol, swap: np.ndarray) -> tuple[frozenset[int], ...]:
    return tuple(frozenset(int(swap[leaf]) for leaf in leaves) for leaves in protocol.sets)


def swapped_sets(membership: Tensor, swap: np.ndarray) -> Tensor:
    """Return for every set index that of its mirror image, int64 `(K,)`."""
    rows = {tuple(row): index for index, row in enumerate(membership.tolist())}
    return torch.tensor([rows[tuple(row)] for row in membership[:, swap].tolist()])


def side_distances(
    locations: Mapping[Any, np.ndarray], swapped_leaves: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the distance between the sides of each pair along every axis, in voxels `(3,)`.

    locations: nnU-Net's `class_locations`, of voxels `(channel, z, y, x)`.
    """
    for leaf, other in enumerate(swapped_leaves):
        sides = [np.asarray(locations.get(int(side), ())) for side in (leaf, other)]
        if leaf < other and all(map(len, sides)):
            yield np.abs(sides[0].mean(0) - sides[1].mean(0))[1:]


class SwapMirroringMixin(LabelSetMixin):
    """Put it after the other mixins and before `nnUNetTrainerNoMirroring`.

    nnU-Net itself neither mirrors patches nor predictions then, so that stock nnU-Net predicts
    correctly with the trained model. `nnunet_labelset predict` mirrors and swaps.
    """

    @classmethod
    def build_network_architecture(
        cls,
        plans_manager: Any,
        configuration_manager: Any,
        num_input_channels: int,
        num_output_channels: int,
        enable_deep_supervision: bool = True,
    ) -> Any:
        """Return nnU-Net's network; for `nnunet_labelset predict` it mirrors and swaps."""
        network = super().build_network_architecture(
            plans_manager,
            configuration_manager,
            num_input_channels,
            num_output_channels,
            enable_deep_supervision,
        )
        mirror = announced_mirror()
        if mirror is not None:
            mirror.apply(network)
        return network

    def __init__(
        self,
        plans: dict,
        configuration: str,
        fold: int,
        dataset_json: dict,
        device: torch.device = torch.device("cuda"),  # noqa: B008  (nnU-Net's own signature)
    ) -> None:
        super().__init__(plans, configuration, fold, dataset_json, device)
        with stopping():
            if self.contract.regions is not None or self.is_cascaded:
                raise LabelSetError("SwapMirroring works neither with regions nor in a cascade")
            self.mirrored_pairs = label_pairs(self.label_sets.leaf_names, dataset_json)
        self._swapped_leaves = swapped_leaves(self.label_sets.leaf_names, self.mirrored_pairs)
        self.label_sets = with_mirror_images(self.contract, self._swapped_leaves)
        self.outputs = LabelOutputs(self.label_sets, self.contract)
        self._swap = swapped_sets(self.label_sets.membership, self._swapped_leaves)  # (K,)

    def initialize(self) -> None:
        with stopping():
            self._mirror_axis = self._common_axis(self.do_split()[0])
        self.print_to_log_file(
            f"Mirroring along axis {self._mirror_axis} exchanges {_named(self.mirrored_pairs)}"
        )
        paired = {name for pair in self.mirrored_pairs for name in pair}
        unlisted = [
            pair for pair in sided_pairs(self.label_sets.leaf_names) if paired.isdisjoint(pair)
        ]
        if unlisted:
            self.print_to_log_file(
                f"WARNING: {_named(unlisted)} keep their labels in the mirror: '{MIRRORED_LABELS}' "
                "in dataset.json lists other pairs, and must list all"
            )
        self._swap = self._swap.to(self.device)
        super().initialize()

    def _common_axis(self, cases: list[str]) -> int:
        """Return the axis of a patch that is left-right in all cases."""
        dataset = self.dataset_class(self.preprocessed_dataset_folder, cases)
        first = None
        distances: list[np.ndarray] = []
        for case in cases:
            properties = dataset.load_case(case)[3]
            distances += side_distances(properties["class_locations"], self._swapped_leaves)
            axis = left_right_axis(properties, self.plans_manager.transpose_forward)
            first = axis if first is None else first
            if axis != first:
                raise LabelSetError(
                    f"SwapMirroring: left-right is axis {first} of '{cases[0]}' but axis {axis} of "
                    f"'{case}': reorient the images, or train with NoMirroring"
                )
        assert first is not None
        distance = np.mean(distances or [np.zeros(3)], axis=0)
        if distance.argmax() != first and distance.max() > CLEAR_DISTANCE:
            raise LabelSetError(
                f"SwapMirroring: by the image headers left-right is axis {first}, but left and "
                f"right labels lie apart along axis {distance.argmax()}: correct the headers, or "
                "train with NoMirroring"
            )
        axis = first - (3 - len(self.configuration_manager.patch_size))
        if axis < 0:
            raise LabelSetError("SwapMirroring: 2D slices of this data set do not show both sides")
        return axis

    def save_checkpoint(self, filename: str) -> None:
        self.state.mirror = {"axis": self._mirror_axis, "swap": self._swapped_leaves.tolist()}
        super().save_checkpoint(filename)

    def encode_batch(self, batch: dict) -> dict:
        batch = super().encode_batch(batch)
        if not torch.is_grad_enabled():  # validation shows patches as they are
            return batch
        data = batch["data"].to(self.device, non_blocking=True)
        chosen = (torch.rand(len(data)) < SHARE).to(self.device, non_blocking=True)
        target = batch["target"]
        scales = target if isinstance(target, list) else [target]
        mirrored = [self._mirror(self._swap[scale.long()].to(scale.dtype)) for scale in scales]
        scales = [_choose(chosen, *pair) for pair in zip(mirrored, scales, strict=True)]
        return {
            **batch,
            "data": _choose(chosen, self._mirror(data), data),
            "target": scales if isinstance(target, list) else scales[0],
        }

    def _mirror(self, array: Tensor) -> Tensor:
        return array.flip(self._mirror_axis + 2)


def _named(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"'{left}' and '{right}'" for left, right in pairs)


def _choose(chosen: Tensor, mirrored: Tensor, plain: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, *[1] * (plain.ndim - 1)), mirrored, plain)
