"""Label-sets as tensors: from the values of a label map, case by case, to rows of a membership
matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from nnunet_labelset.contract import Contract, LabelSet, Protocol
from nnunet_labelset.contract.model import without_protocol
from nnunet_labelset.contract.protocol import membership_matrix
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.text import some

Self = TypeVar("Self", bound="LabelSets")
LONGEST_MESSAGE = 240  # bytes


def require(condition: Tensor, message: str) -> None:
    """Raise `message` unless the one-element `condition` holds, without waiting for a CUDA device.

    On the CPU this is an ordinary check. On CUDA and under `torch.compile` the device itself
    asserts, so that the host need not wait for the answer; it refuses messages of 255 bytes and
    more even where nothing is wrong. (Other devices, Apple's for one, cannot assert and are waited
    for.)
    """
    if condition.device.type in ("cuda", "meta") or torch.compiler.is_compiling():
        torch._assert_async(condition, message.encode()[:LONGEST_MESSAGE].decode(errors="ignore"))
    elif not condition:
        raise LabelSetError(message)


def as_integers(target: Tensor, name: str) -> Tensor:
    """`target` as it is if it holds integers, else cast to int64 after a check that nothing is
    lost.
    """
    if target.dtype == torch.bool or target.is_complex():
        raise LabelSetError(f"Expected `{name}` to hold integers, but got {target.dtype}")
    if not target.is_floating_point():
        return target
    integers = target.long()
    require(
        (integers == target).all(),
        f"Expected `{name}` to hold integers, but it has fractions or NaN",
    )
    return integers


def as_indices(target: Tensor, count: int) -> Tensor:
    """`target` as int64, after a check that it holds set indices of so many label-sets."""
    indices = as_integers(target, "target").long()
    if indices.numel():
        low, high = indices.aminmax()  # -1 would silently be the last label-set
        require((low >= 0) & (high < count), f"`target` has set indices outside 0..{count - 1}")
    return indices


def checked_input(logits: Tensor, target: Tensor, leaves: int) -> tuple[Tensor, Tensor]:
    """Return logits `(B, C, *S)` and target `(B, 1, *S)` as plain tensors, if they fit."""
    if logits.ndim < 3 or logits.shape[1] != leaves or not logits.is_floating_point():
        got = f"{logits.dtype} {tuple(logits.shape)}"
        raise LabelSetError(
            f"Expected `logits` of shape (B, {leaves}, *S), one channel per leaf, but got {got}"
        )
    if logits.numel() == 0:
        raise LabelSetError(
            f"Expected `logits` with at least one sample and voxel, but got {tuple(logits.shape)}"
        )
    expected = (logits.shape[0], 1, *logits.shape[2:])
    if target.shape != expected:
        raise LabelSetError(f"Expected `target` of shape {expected}, but got {tuple(target.shape)}")
    if target.device != logits.device:
        raise LabelSetError(f"Expected `target` on {logits.device}, but got {target.device}")
    if type(logits) is not Tensor or type(target) is not Tensor:  # MONAI's know less than PyTorch's
        logits, target = logits.as_subclass(Tensor), target.as_subclass(Tensor)
    return logits, as_integers(target, "target")


class LabelSets:
    """The distinct label-sets of a data set, and for every case what its values stand for.

    `membership` is a bool tensor `(K, C)`: row `k` says which of the `C` leaves are in label-set
    `k`. Rows `0..C-1` are the singletons, so that on fully annotated voxels the set index is the
    value.
    """

    def __init__(
        self,
        leaf_names: Sequence[str],
        protocols: Mapping[str, Protocol],
        cases: Mapping[str, str] | None,
        contract: Contract | None = None,
        ignore_value: int | None = None,
    ) -> None:
        """
        leaf_names: the labels, in the order of the network's outputs.
        protocols: by name, what every value may be.
        cases: the protocol of every case; None if one protocol holds for all cases.
        contract: where all of this was read from.
        ignore_value: a value, often 255, that may be anything in every case.
        """
        self.leaf_names = tuple(leaf_names)
        self.contract = contract
        self.ignore_value = ignore_value
        self._cases = None if cases is None else dict(cases)
        self._rows = {name: row for row, name in enumerate(protocols)}
        for name, protocol in protocols.items():
            self._check_protocol(name, protocol)
        self.num_values = max((len(protocol.sets) for protocol in protocols.values()), default=0)
        self._check_ignore_value()
        anything = [] if ignore_value is None else [frozenset(range(self.num_leaves))]
        sets: dict[LabelSet, int] = {frozenset([leaf]): leaf for leaf in range(self.num_leaves)}
        table = []
        for protocol in protocols.values():
            meanings = [*map(frozenset, protocol.sets), *anything]
            table.append([sets.setdefault(leaves, len(sets)) for leaves in meanings])
        self.membership = torch.from_numpy(membership_matrix(tuple(sets), self.num_leaves))
        # (protocols, values), one more value with `ignore_value`
        self._set_indices = torch.tensor(table, dtype=torch.int64)
        self._tables: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def _check_ignore_value(self) -> None:
        if self.ignore_value is not None and 0 <= self.ignore_value < self.num_values:
            raise LabelSetError(
                f"Expected `ignore_value` to be none of the values 0..{self.num_values - 1}, but "
                f"got {self.ignore_value}"
            )

    def _check_protocol(self, name: str, protocol: Protocol) -> None:
        known = set(range(self.num_leaves))
        for value, leaves in enumerate(map(set, protocol.sets)):
            if not leaves or not leaves <= known:
                raise LabelSetError(
                    f"protocol '{name}', value {value}: expected at least one leaf of "
                    f"0..{self.num_leaves - 1}, but got {sorted(leaves)}"
                )

    @classmethod
    def from_dataset_json(cls: type[Self], dataset_json: Mapping[str, Any]) -> Self:
        """Read the contract (`labels` and `label_sets`); anything missing or unknown is a
        `LabelSetError`.
        """
        return cls.of_contract(Contract.from_dataset_json(dataset_json))

    @classmethod
    def of_contract(cls: type[Self], contract: Contract) -> Self:
        return cls(contract.leaf_names, contract.protocols, contract.cases, contract)

    @classmethod
    def from_superset_map(
        cls: type[Self],
        num_leaves: int,
        superset_map: Mapping[int, Iterable[int]],
        leaf_names: Sequence[str] = (),
        ignore_value: int | None = None,
    ) -> Self:
        """Read the map of the paper's authors: values below `num_leaves` are leaves, the others
        stand for label-sets.

        >>> LabelSets.from_superset_map(9, {9: [4, 5, 6, 7, 8], 10: [5, 6, 7, 8]}).membership.shape
        torch.Size([11, 9])
        >>> LabelSets.from_superset_map(3, {3: [1, 2]}, ["rest", "left", "right"], ignore_value=255)
        LabelSets(rest, left, right; {left, right}, {rest, left, right})
        """
        if num_leaves < 2:
            raise LabelSetError(f"Expected `num_leaves` to be at least 2, but got {num_leaves}")
        if leaf_names and len(leaf_names) != num_leaves:
            raise LabelSetError(f"Expected {num_leaves} `leaf_names`, but got {len(leaf_names)}")
        supersets = {value: frozenset(superset_map[value]) for value in sorted(superset_map)}
        expected = range(num_leaves, num_leaves + len(supersets))
        if list(supersets) != list(expected):
            raise LabelSetError(
                f"superset_map: expected the values {list(expected)}, but got {list(supersets)}"
            )
        values = [*(frozenset([leaf]) for leaf in range(num_leaves)), *supersets.values()]
        return cls(
            tuple(leaf_names) or tuple(map(str, range(num_leaves))),
            {"superset_map": Protocol(tuple(values), num_leaves)},
            None,
            ignore_value=ignore_value,
        )

    @property
    def num_leaves(self) -> int:
        return len(self.leaf_names)

    @property
    def num_sets(self) -> int:
        return len(self.membership)

    def __repr__(self) -> str:
        """Return the labels, and the label-sets that hold several of them."""
        larger = []
        for row in self.membership[self.num_leaves :]:
            names = [self.leaf_names[leaf] for leaf in row.nonzero().flatten().tolist()]
            larger.append("{" + ", ".join(names) + "}")
        labels = ", ".join(self.leaf_names)
        return f"{type(self).__name__}({labels}; {some(larger, 8) if larger else 'no label-sets'})"

    def annotated(self, case: str) -> tuple[str, ...]:
        """Names of the leaves that are annotated in a case (see `Protocol.annotated`)."""
        if self.contract is None:
            raise LabelSetError(
                "no case is known: these label-sets were not read from a dataset.json"
            )
        return self.contract.annotated(case)

    @overload
    def encode(self, target: Tensor, cases: Sequence[str] | None = None) -> Tensor: ...
    @overload
    def encode(self, target: list[Tensor], cases: Sequence[str] | None = None) -> list[Tensor]: ...
    def encode(
        self, target: Tensor | list[Tensor], cases: Sequence[str] | None = None
    ) -> Tensor | list[Tensor]:
        """Values `(B, 1, *S)` to set indices (int64, same shape and device); a list of scales gives
        a list.

        `cases` names the case of every sample of the batch. It may be left out only when one map
        holds for all cases.
        """
        if isinstance(target, (list, tuple)):
            return [self.encode(scale, cases) for scale in target]
        rows = self.rows_of(cases, target, target.device)
        target = as_integers(target, "target")
        if target.numel():
            require(self._is_known(target).all(), self._outside(cases))
        return self.look_up(target, rows)

    def check_values(self, target: Tensor, cases: Sequence[str]) -> None:
        """Raise if a sample has a value that its case does not declare; waits for the device."""
        self._rows_of(cases, len(target))
        target = as_integers(target, "target")
        if not target.numel():
            return
        low, high = map(int, target.aminmax())
        if low >= 0 and high < self.num_values:
            return
        for case, sample in zip(cases, target, strict=True):
            unknown = sample[~self._is_known(sample)]
            if unknown.numel():
                raise LabelSetError(
                    f"case '{case}' has the value {int(unknown[0])}, which is not declared: "
                    f"expected 0..{self.num_values - 1}"
                )

    def look_up(
        self, target: Tensor, rows: int | Tensor, dtype: torch.dtype = torch.int64
    ) -> Tensor:
        """Return the set indices of checked values: one look-up for the whole batch.

        rows: from `rows_of`.
        """
        table = self._table(target.device, dtype)
        if self.ignore_value is not None:
            target = target.where(target != self.ignore_value, self.num_values)
        if isinstance(rows, int):
            return table[rows].take(target.long())
        return table.take(target + rows.view(-1, *[1] * (target.ndim - 1)))

    def rows_of(
        self, cases: Sequence[str] | None, target: Tensor, device: torch.device
    ) -> int | Tensor:
        """Return where the protocol of every sample begins in the table, or the one protocol of all
        samples.
        """
        rows = self._rows_of(cases, len(target))
        if len(set(rows)) <= 1:
            return rows[0] if rows else 0
        width = self._set_indices.shape[1]
        # a copy that the host does not wait for
        return torch.tensor([row * width for row in rows]).to(device, non_blocking=True)

    def _is_known(self, values: Tensor) -> Tensor:
        is_known = (values >= 0) & (values < self.num_values)
        return is_known if self.ignore_value is None else is_known | (values == self.ignore_value)

    def _outside(self, cases: Sequence[str] | None) -> str:
        batch = "" if cases is None else f" (cases {some(cases, 3)})"
        ignored = "" if self.ignore_value is None else f" and not {self.ignore_value}"
        return f"`target` has values outside 0..{self.num_values - 1}{ignored}{batch}"

    def _rows_of(self, cases: Sequence[str] | None, number: int) -> list[int]:
        """Return the row of the table for every sample."""
        if self._cases is None:
            return [0] * number
        if cases is None:
            raise LabelSetError(
                "Expected `cases`, the case of every sample: what a value stands for differs by "
                "case"
            )
        if len(cases) != number:
            raise LabelSetError(
                f"Expected `cases` to name {number} cases, one per sample, but got {len(cases)}"
            )
        return [self._row(case) for case in cases]

    def _row(self, case: str) -> int:
        assert self._cases is not None
        if case not in self._cases:
            raise without_protocol(case)
        return self._rows[self._cases[case]]

    def _table(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return the set indices `(protocols, values)`, copied once."""
        key = (device, dtype)
        if key not in self._tables:
            self._tables[key] = self._set_indices.to(device, dtype)
        return self._tables[key]
