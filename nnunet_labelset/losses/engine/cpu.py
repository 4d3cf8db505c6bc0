"""The sums on a CPU: chunks that fit the cache, side by side, each in one thread from softmax to
sums.

PyTorch's own threads split every operator and wait for each other after it, which costs more than
it gains for operators this short, and much more beside other busy processes. Here a thread takes a
chunk, does all of it, and takes the next. Chunks and the order in which their sums are added do not
depend on the number of threads, so results do not either.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from threading import Barrier, Lock

import torch
from torch import Tensor

from nnunet_labelset.losses.engine.chunk import (
    chunk_gradient,
    chunk_sums,
    gradient_slopes,
    group_columns,
    group_gradient,
    group_slopes,
    group_sums,
    sums_of_groups,
)
from nnunet_labelset.losses.engine.weight_tables import Tables

# numbers of a chunk, so that the handful of tensors of this size that it needs stay in the cache
CHUNK = 2**18

Place = tuple[int, slice]  # sample and voxels of a chunk
_pools: dict[int, ThreadPoolExecutor] = {}
_lock = Lock()
os.register_at_fork(after_in_child=_pools.clear)  # a fork has the pools but not their threads


def cpu_sums(logits: Tensor, target: Tensor, tables: Tables) -> Tensor:
    x, k = logits.flatten(2), target.flatten(2)
    places = _places(x)
    sums = tables.weights.new_zeros(len(places), len(tables.weights))
    by_group = sums.new_zeros(len(places), group_columns(tables), dtype=torch.float64)

    def work(number: int, b: int, voxels: slice) -> None:
        chunk = _chunk(x, k, b, voxels)
        found = group_sums(*chunk, tables) if tables.grouped else None
        if found is None:
            sums[number] = chunk_sums(*chunk, tables)[0][0]
        else:
            by_group[number] = found

    _side_by_side(work, places)
    total = sums.unflatten(0, (len(x), -1)).sum(1, dtype=torch.float64)
    if tables.grouped:
        total += sums_of_groups(by_group.unflatten(0, (len(x), -1)).sum(1), tables)
    return total.to(sums.dtype)


def cpu_gradient(logits: Tensor, target: Tensor, tables: Tables, gradients: Tensor) -> Tensor:
    slopes = gradient_slopes(tables, gradients)
    by_leaf = by_set = slopes
    if tables.grouped:
        by_leaf, by_set = (
            group_slopes(tables, gradients) if tables.dice else (slopes, slopes[:, :0])
        )
        by_set = torch.cat([by_set, slopes[:, -1:]], 1) if tables.entropy else by_set
    gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
    x, k, flat = logits.flatten(2), target.flatten(2), gradient.flatten(2)

    def work(_: int, b: int, voxels: slice) -> None:
        chunk, one, out = _chunk(x, k, b, voxels), slice(b, b + 1), flat[b : b + 1, :, voxels]
        if not tables.grouped or not group_gradient(
            *chunk, tables, (by_leaf[one], by_set[one]), out
        ):
            chunk_gradient(*chunk, tables, slopes[one], out)

    _side_by_side(work, _places(x))
    return gradient


def _places(x: Tensor) -> list[Place]:
    size = max(256, CHUNK // x.shape[1])
    starts = range(0, x.shape[2], size)
    return [(b, slice(start, start + size)) for b, start in product(range(len(x)), starts)]


def _chunk(x: Tensor, k: Tensor, b: int, voxels: slice) -> tuple[Tensor, Tensor]:
    return x[b : b + 1, :, voxels], k[b : b + 1, :, voxels].long()


def _side_by_side(work: Callable[[int, int, slice], None], places: list[Place]) -> None:
    """Do the work for every place, on as many threads as PyTorch may use."""
    threads = min(torch.get_num_threads(), len(places))
    # Settings of the thread. (`inference_mode(False)` would switch gradients on.)
    mode = torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad

    def there(number: int, b: int, voxels: slice) -> None:
        with mode():
            work(number, b, voxels)

    side_by_side = _pool(threads).map if threads > 1 else map
    for _ in side_by_side(there, range(len(places)), *zip(*places, strict=True)):
        pass


def _alone() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread takes over the setting when it first needs it


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads whose operators do not start threads of their own."""
    with _lock:
        if threads not in _pools:
            # The setting belongs to the thread, but also becomes that of threads to come: put back
            # what it was here.
            before, all_there = torch.get_num_threads(), Barrier(threads)
            _pools[threads] = ThreadPoolExecutor(threads, "label-set-loss", _alone)
            for future in [_pools[threads].submit(all_there.wait) for _ in range(threads)]:
                future.result()
            torch.set_num_threads(before)
        return _pools[threads]
