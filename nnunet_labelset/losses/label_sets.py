"""Label-sets as tensors: from the values of a label map, case by case, to rows of a membership
matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from nnunet_labelset.contract import Contract, LabelSet, Protocol
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
    ) -> None:
        """`cases=None` means that one protocol holds for every case."""
        self.leaf_names = tuple(leaf_names)
        self.contract = contract
        self._cases = None if cases is None else dict(cases)
        self._rows = {name: row for row, name in enumerate(protocols)}
        known = set(range(self.num_leaves))
        for name, protocol in protocols.items():
            for value, leaves in enumerate(map(set, protocol.sets)):
                if not leaves or not leaves <= known:
                    raise LabelSetError(
                        f"protocol '{name}', value {value}: expected at least one leaf of "
                        f"0..{self.num_leaves - 1}, "
                        f"but got {sorted(leaves)}"
                    )
        sets: dict[LabelSet, int] = {frozenset([leaf]): leaf for leaf in range(self.num_leaves)}
        table = [
            [sets.setdefault(frozenset(s), len(sets)) for s in protocol.sets]
            for protocol in protocols.values()
        ]
        self.membership = torch.from_numpy(membership_matrix(tuple(sets), self.num_leaves))
        self._tables = {
            torch.device("cpu"): torch.tensor(table, dtype=torch.int64)
        }  # (protocols, values)

    @classmethod
    def from_dataset_json(cls: type[Self], dataset_json: Mapping[str, Any]) -> Self:
        """Read the contract (`labels` and `label_sets`); anything missing or unknown is a
        `LabelSetError`.
        """
        contract = Contract.from_dataset_json(dataset_json)
        return cls(contract.leaf_names, contract.protocols, contract.cases, contract)

    @classmethod
    def from_superset_map(
        cls: type[Self],
        num_leaves: int,
        superset_map: Mapping[int, Iterable[int]],
        leaf_names: Sequence[str] = (),
    ) -> Self:
        """Read the map of the paper's authors: values below `num_leaves` are leaves, the others
        stand for label-sets.

        >>> LabelSets.from_superset_map(9, {9: [4, 5, 6, 7, 8], 10: [5, 6, 7, 8]}).membership.shape
        torch.Size([11, 9])
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
        )

    @property
    def num_leaves(self) -> int:
        return len(self.leaf_names)

    @property
    def num_sets(self) -> int:
        return len(self.membership)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_leaves={self.num_leaves}, num_sets={self.num_sets})"

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
        if self._cases is None:
            rows = [0] * len(target)
        elif cases is None:
            raise LabelSetError(
                "Expected `cases`, the case of every sample: what a value stands for differs by "
                "case"
            )
        elif len(cases) != len(target):
            raise LabelSetError(
                f"Expected `cases` to name {len(target)} cases, one per sample, but got "
                f"{len(cases)}"
            )
        else:
            rows = [self._row(case) for case in cases]
        target = as_integers(target, "target")
        table = self._table(target.device)
        if target.numel() == 0:
            return target.long()
        low, high = target.aminmax()
        batch = "" if cases is None else f" (cases {some(cases, 3)})"
        require(
            (low >= 0) & (high < table.shape[1]),
            f"`target` has values outside 0..{table.shape[1] - 1}{batch}",
        )
        # Python integers select rows without a copy from host to device.
        return torch.stack(
            [table[row].take(sample.long()) for row, sample in zip(rows, target, strict=True)]
        )

    def _row(self, case: str) -> int:
        assert self._cases is not None
        if case not in self._cases:
            raise LabelSetError(
                f"case '{case}' has no protocol: add it to label_sets.cases in dataset.json"
            )
        return self._rows[self._cases[case]]

    def _table(self, device: torch.device) -> Tensor:
        if device not in self._tables:
            self._tables[device] = self._tables[torch.device("cpu")].to(device)
        return self._tables[device]
