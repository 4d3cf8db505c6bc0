"""The mathematics for one chunk of voxels where the leaves of a label-set matter as a group: half
the passes.

Leaf-Dice, marginal Dice and the entropies see the probabilities in a voxel's label-set by their sum
`s` alone, and all others with weights that do not depend on the label-set. One look-up, whether a
leaf is in the label-set, then does for all terms; the rest are numbers per voxel, added up by
label-set. Where `s` nearly vanishes, which a CPU may ask, the mathematics of `chunk.py` take over,
exact at any logit gap.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from nnunet_labelset.losses.engine.chunk import focal, focal_slope, loaded, look_up, within_set
from nnunet_labelset.losses.engine.weight_tables import Tables

SMALLEST = {
    torch.float32: 1e-25,
    torch.float64: 1e-250,
}  # of s, so that what is divided by it stays finite
# neighbours mostly share a label-set: they are added in different places, so that none waits for
# the last
LANES = 8


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
        by_voxel.append(focal(*_share(s, k, tables), tables.gamma) if tables.gamma else s.log())
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
    slopes = (tables.grouped_slopes * gradients[:, : 2 * leaves, None]).unflatten(
        1, (2, leaves)
    )  # (B, 2, C, K + 1)
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
            by_log.mul_(focal_slope(*_share(s, k, tables), tables.gamma))
        within = torch.addcdiv(within, by_log, s) if tables.dice else by_log.div_(s)
    if tables.dice:
        by_p = torch.lerp(p * by_leaf if tables.alpha == 2 else by_leaf, within, inside)
    else:
        by_p = inside.mul_(within)
    out.copy_(torch._softmax_backward_data(by_p, p, 1, p.dtype))
    return True


def mass_gradient(
    x: Tensor,
    k: Tensor,
    tables: Tables,
    slopes: tuple[Tensor, ...],
    s: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient of a marginal Dice + cross entropy on any device, at any logit gap, with the
    mass `s` `(B, 1, n)`.

    What depends on s alone pulls the logits along `q - p`, the softmax within the label-set less
    the whole one. `slopes` are those of `group_slopes`, and `(B, 1, 1)` of `log s`: a voxel that
    may be any leaf has no `q - p`.
    """
    by_leaf, by_set, by_log = slopes
    outside, p = look_up(tables.outside, k), loaded(x, tables).softmax(1)
    by_p = (
        torch.where(outside, p, 0.0).mul_(by_leaf)
        if tables.alpha == 2
        else torch.where(outside, by_leaf, 0.0)
    )
    gradient = torch.ops.aten._softmax_backward_data(by_p, p, 1, p.dtype)
    del by_p
    away = within_set(x, outside, p.dtype).sub_(p)
    del outside, p
    by_s = look_up(by_set, k)
    by_s = torch.addcmul(by_s[:, 1:], by_s[:, :1], s) if tables.alpha == 2 else by_s
    return torch.addcmul(gradient, away, torch.addcmul(by_log, by_s, s), out=out)


def _share(s: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """As in `chunk.py`; from s, whose rounding is that of its logarithm."""
    x = (s / look_up(tables.log_size.exp(), k)).clamp_max_(1)
    return x.log(), 1 - x


def _too_small(s: Tensor, tables: Tables) -> bool:
    """(NaN is too small as well.)"""
    return tables.entropy and not bool(s.amin() >= SMALLEST[s.dtype])


@lru_cache(maxsize=8)
def _lanes(voxels: int, sets: int) -> Tensor:
    return torch.arange(0, LANES * sets, sets).repeat(-(-voxels // LANES))[:voxels]
