"""The mathematics of all losses for one chunk of voxels, in plain PyTorch, without loops: sums, and
their gradient.

`x` are logits `(B, C, n)` of any dtype and strides, `k` set indices `(B, 1, n)` in int64. The
weights of a voxel are looked up by its set index; nothing has the size of the number of label-sets.
Any logit gap is exact: the mass of a label-set is never taken from probabilities that may have
vanished, but from the largest logit in it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nnunet_labelset.losses.engine.weight_tables import Tables


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
