"""The sums and their gradient on a CPU, by chunks of voxels, and the mathematics of a chunk.

Chunks fit the cache and are worked on side by side, each in one thread from softmax to sums.
PyTorch's own threads split every operator and wait for each other after it, which costs more than
it gains for operators this short, and much more beside other busy processes. Here a thread takes a
chunk, does all of it, and takes the next. Chunks and the order in which their sums are added do not
depend on the number of threads, so results do not either.

In the mathematics, `x` are logits `(B, C, n)` of any dtype and strides, `k` set indices `(B, 1, n)`
in int64. The weights of a voxel are looked up by its set index; nothing has the size of the number
of label-sets. There are no loops and no threads: `plain.py` does the same on any device.

`chunk_...` serve every loss. Any logit gap is exact: the mass of a label-set is never taken from
probabilities that may have vanished, but from the largest logit in it.

`group_...` take half the passes where the leaves of a label-set matter as a group: Leaf-Dice,
marginal Dice and the entropies see the probabilities in a voxel's label-set by their sum `s` alone,
and all others with weights that do not depend on the label-set. One look-up, whether a leaf is in
the label-set, then does for all terms; the rest are numbers per voxel, added up by label-set. Where
`s` nearly vanishes they give up, and `chunk_...` must do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import product
from threading import Barrier, Lock

import torch
from torch import Tensor

from nnunet_labelset.losses.engine.formula import Tables

# numbers of a chunk, so that the handful of tensors of this size that it needs stay in the cache
CHUNK = 2**18
# Of s, so that what is divided by it stays finite.
SMALLEST_MASS = {torch.float32: 1e-25, torch.float64: 1e-250}
# Neighbours mostly share a label-set: they are added in different places, so that none waits.
LANES = 8

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


def chunk_sums(x: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor | None]:
    """Sums over the voxels `(B, R)`, in the order of the weights; and the mass of every voxel's
    label-set `(B, 1, n)`,
    if a marginal Dice needed it."""
    leaves = tables.leaves
    outside = _outside(k, tables)
    p, log_s, s = loaded(x, tables), None, None
    if tables.entropy:
        p = p.log_softmax(1)
        log_s = _log_mass(p, outside)[0]
    if tables.dice:
        p = p.exp_() if tables.entropy else p.softmax(1)
        if tables.marginal:
            s = _mass(p, outside) if log_s is None else log_s.exp()
            p = _marginal(p, outside, s)
    del outside  # before the largest tensor comes
    weights = look_up(tables.weights, k)  # (B, R, n)
    if log_s is not None:
        row = len(tables.slopes) - 1
        weights[:, row : row + 1].mul_(
            focal(*_share(log_s, k, tables), tables.gamma) if tables.gamma else log_s
        )
    if tables.dice:
        weights[:, : 2 * leaves].unflatten(1, (2, leaves)).mul_(p[:, None])
        if tables.alpha == 2:
            weights[:, :leaves].mul_(p)
    return weights.sum(2), s


def chunk_gradient(
    x: Tensor, k: Tensor, tables: Tables, slopes: Tensor, out: Tensor | None = None
) -> Tensor:
    """Gradient by the logits `(B, C, n)`, into `out` if given; `slopes` `(B, R, K)` from
    `gradient_slopes`.
    """
    leaves = tables.leaves
    outside = _outside(k, tables)
    p = loaded(x, tables).softmax(1)
    gradient = h = None
    slope = look_up(slopes, k)  # (B, R, n)
    if tables.entropy:
        h = slope[:, -1:].clone()  # d loss / d log s; not a view, which would keep the rest
    if tables.dice:
        last = slope.shape[1] - tables.entropy
        by_p = slope[:, last - leaves : last]  # d loss / d p
        if tables.alpha == 2:
            of_x = _marginal(p, outside, _mass(p, outside)) if tables.marginal else p
            by_p = torch.addcmul(by_p, slope[:, :leaves], of_x)
        del slope
        gradient = torch.ops.aten._softmax_backward_data(by_p.contiguous(), p, 1, p.dtype)
        del by_p
    if h is not None:
        if tables.gamma:
            log_s, log_q = _log_mass(loaded(x, tables).log_softmax(1), outside)
            h.mul_(focal_slope(*_share(log_s, k, tables), tables.gamma))
            q = log_q.exp_()
        else:
            q = within_set(x, outside, p.dtype)
        q.sub_(p)
        return (
            torch.mul(q, h, out=out) if gradient is None else torch.addcmul(gradient, q, h, out=out)
        )
    assert gradient is not None
    return gradient if out is None else out.copy_(gradient)


def gradient_slopes(tables: Tables, gradients: Tensor) -> Tensor:
    """The table of slopes `(B, R', K)` from the gradients `(B, R')` of the loss by P, I and the
    entropy.
    """
    slopes = tables.slopes * gradients[:, :, None]
    if not tables.dice or (tables.alpha == 2 and not tables.marginal):
        return slopes
    leaves = tables.leaves
    by_leaf = slopes[:, : 2 * leaves].unflatten(1, (2, leaves))  # (B, 2, C, K)
    if tables.marginal:  # what a leaf of the label-set does to s, all of them do
        shared = torch.where(tables.outside, 0.0, by_leaf).sum(2, keepdim=True)
        by_leaf = torch.where(tables.outside, by_leaf, shared)
    if tables.alpha == 1:  # x has one slope
        by_leaf = by_leaf.sum(1, keepdim=True)
    return torch.cat([by_leaf.flatten(1, 2), slopes[:, 2 * leaves :]], 1)


def look_up(table: Tensor, k: Tensor) -> Tensor:
    """Columns of a table `(R, K)` or `(B, R, K)` by set index: `(B, R, n)`."""
    rows = table.shape[-2]
    return table.expand(len(k), -1, -1).gather(2, k.expand(-1, rows, -1))


def _outside(k: Tensor, tables: Tables) -> Tensor:
    """Which leaves are not in the label-set of a voxel `(B, C, n)`, where a term asks for it."""
    return look_up(tables.outside, k) if tables.entropy or tables.marginal else tables.outside


def loaded(x: Tensor, tables: Tables) -> Tensor:
    """The chunk in the dtype of the sums, in one piece."""
    return x.to(tables.weights.dtype).contiguous()


def within_set(x: Tensor, outside: Tensor, dtype: torch.dtype) -> Tensor:
    """The softmax within the label-set `(B, C, n)`, in place where the dtype allows it: memory is
    short by then.
    """
    inner = torch.where(outside, -torch.inf, x)
    return (
        torch.softmax(inner, 1, out=inner)
        if inner.dtype == dtype
        else inner.softmax(1, dtype=dtype)
    )


def _log_mass(log_p: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """`log s` `(B, 1, n)`, and the logarithm of `within_set`.

    Every leaf of the label-set has `p = s q`; the largest tells s without rounding at any logit
    gap.
    """
    inner = torch.where(outside, -torch.inf, log_p)
    log_q = inner.log_softmax(1)
    return inner.amax(1, keepdim=True) - log_q.amax(1, keepdim=True), log_q


def _marginal(p: Tensor, outside: Tensor, s: Tensor) -> Tensor:
    """`p`, and the mass of the label-set for the leaves in it."""
    return torch.where(outside, p, s)


def _mass(p: Tensor, outside: Tensor) -> Tensor:
    return torch.where(outside, 0.0, p).sum(1, keepdim=True)


def focal(log_x: Tensor, rest: Tensor, gamma: float) -> Tensor:
    """`(1 - x)**gamma * log x` from `log x` and `1 - x`, which are known to more digits than x."""
    return rest**gamma * log_x


def focal_slope(log_x: Tensor, rest: Tensor, gamma: float) -> Tensor:
    """Derivative of `focal` by log x."""
    rest = rest.clamp_min(torch.finfo(rest.dtype).tiny)
    return rest ** (gamma - 1) * torch.addcmul(rest, 1 - rest, log_x, value=-gamma)


def _share(log_s: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """`log x` and `1 - x` of `x = s / |g|`; rounding may leave x above 1, where the focal loss has
    no meaning.
    """
    log_x = (log_s - look_up(tables.log_size, k)).clamp_max_(0)
    return log_x, log_x.expm1().neg_()


def group_columns(tables: Tables) -> int:
    """How many sums `group_sums` returns: by leaf, outside of the label-set, of `p**alpha`; by
    label-set, of 1, `s`,
    `s**2` and the entropy, as far as there are."""
    by_set = 1 + (tables.alpha if tables.dice else 0) + tables.entropy
    return (tables.leaves if tables.dice else 0) + by_set * tables.inside.shape[1]


def group_sums(x: Tensor, k: Tensor, tables: Tables) -> Tensor | None:
    """`group_columns` sums in float64; None if some `s` is too small. `x` is `(1, C, n)`, `k` `(1,
    1, n)`.
    """
    p = x.to(tables.weights.dtype).softmax(1)
    within = look_up(tables.inside, k).mul_(p)
    s = within.sum(1, keepdim=True)  # (1, 1, n)
    if _too_small(s, tables):
        return None
    by_voxel = [torch.ones_like(s)]
    by_leaf = p.new_zeros(1, 0)
    if tables.dice:
        by_voxel += [s, s * s] if tables.alpha == 2 else [s]
        p.sub_(within)  # nothing is left in the label-set
        by_leaf = (p.mul_(p) if tables.alpha == 2 else p).sum(2)
    if tables.entropy:
        by_voxel.append(
            focal(*_share_of_mass(s, k, tables), tables.gamma) if tables.gamma else s.log()
        )
    sets, values = tables.inside.shape[1], torch.cat(by_voxel, 1)[0].double()
    places = (k[0] + _lanes(k.shape[2], sets)).expand(len(values), -1)
    by_set = values.new_zeros(len(values), LANES * sets).scatter_add_(1, places, values)
    return torch.cat(
        [by_leaf.double().flatten(), by_set.unflatten(1, (LANES, sets)).sum(1).flatten()]
    )


def sums_of_groups(sums: Tensor, tables: Tables) -> Tensor:
    """From `(B, ...)` of `group_sums`, the columns of `chunk_sums`."""
    leaves = tables.leaves if tables.dice else 0
    by_leaf, by_set = (
        sums[:, :leaves],
        sums[:, leaves:].unflatten(1, (-1, tables.inside.shape[1])),
    )  # (B, rows, K)
    weights = tables.weights.double()
    columns: list[Tensor] = []
    if tables.dice:
        beyond = by_leaf * tables.grouped_slopes[:leaves, -1].double() / tables.alpha
        prediction = torch.where(tables.outside, 0.0, weights[:leaves])
        columns = [
            beyond + by_set[:, tables.alpha] @ prediction.T,
            by_set[:, 1] @ weights[leaves : 2 * leaves].T,
        ]
    if tables.entropy:
        columns.append(by_set[:, -1] @ weights[-1:].T)
    return torch.cat([*columns, by_set[:, 0] @ weights[len(tables.slopes) :].T], 1)


def group_slopes(tables: Tables, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """From the gradients of the loss by P and I, slopes of `d loss / d p`: by leaf, outside of the
    label-set,
    `(B, C, 1)`; by label-set `(B, alpha, K)`, of `s` if alpha is 2, and of 1."""
    leaves = tables.leaves
    # (B, 2, C, K + 1)
    slopes = (tables.grouped_slopes * gradients[:, : 2 * leaves, None]).unflatten(1, (2, leaves))
    inside = slopes[..., :-1]
    return slopes[:, 0, :, -1:], inside.sum(2) if tables.alpha == 2 else inside.sum((1, 2))[:, None]


def group_gradient(
    x: Tensor, k: Tensor, tables: Tables, slopes: tuple[Tensor, Tensor], out: Tensor
) -> bool:
    """Write the gradient by the logits into `out`; False, and nothing is written, if some `s` is
    too small.

    `slopes` are those of `group_slopes`, and by label-set also that of `1 / s` if there is an
    entropy.
    """
    p, inside = x.to(tables.weights.dtype).softmax(1), look_up(tables.inside, k)
    s = (inside * p).sum(1, keepdim=True)
    if _too_small(s, tables):
        return False
    by_leaf, by_set = slopes[0], look_up(slopes[1], k)
    within = by_set[:, :1]  # d loss / d p in the label-set
    if tables.dice and tables.alpha == 2:
        within = torch.addcmul(by_set[:, 1:2], within, s)
    if tables.entropy:
        by_log = by_set[:, -1:]
        if tables.gamma:
            by_log.mul_(focal_slope(*_share_of_mass(s, k, tables), tables.gamma))
        within = torch.addcdiv(within, by_log, s) if tables.dice else by_log.div_(s)
    if tables.dice:
        by_p = torch.lerp(p * by_leaf if tables.alpha == 2 else by_leaf, within, inside)
    else:
        by_p = inside.mul_(within)
    out.copy_(torch._softmax_backward_data(by_p, p, 1, p.dtype))
    return True


def _share_of_mass(s: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """The same as `_share`, from s, whose rounding is that of its logarithm."""
    x = (s / look_up(tables.log_size.exp(), k)).clamp_max_(1)
    return x.log(), 1 - x


def _too_small(s: Tensor, tables: Tables) -> bool:
    """(NaN is too small as well.)"""
    return tables.entropy and not bool(s.amin() >= SMALLEST_MASS[s.dtype])


@lru_cache(maxsize=8)
def _lanes(voxels: int, sets: int) -> Tensor:
    return torch.arange(0, LANES * sets, sets).repeat(-(-voxels // LANES))[:voxels]
