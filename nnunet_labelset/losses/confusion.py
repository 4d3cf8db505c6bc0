"""The soft confusion matrix: the sums over voxels that every loss of this package is a function of.

The voxels are visited in chunks that fit the cache, twice: once for the sums and once, after the loss is known, for the
gradient, which is a look-up in the gradient of the small matrices. Probabilities are computed again in the second visit
rather than kept, so that nothing of the size of the logits is allocated but their gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from nnunet_labelset.losses.label_sets import require

NO_CROSS_ENTROPY = -1.0  # an operator has no optional outputs: a negative gamma says "no cross entropy"
CPU_CHUNK = 2**19  # elements of a chunk: its working set stays near the cache
DEVICE_CHUNK = 2**22  # few kernel launches, and less memory than the logits of a 3D patch
BLOCK = 2**12  # voxels that are added up in float32 on their own; chunks are multiples of it
LANES = 8  # sums of a block that neighbours take in turns
SAFE_MASS = 1e-30  # below, a sum of probabilities loses digits


class SoftConfusion(NamedTuple):
    """Sums over the voxels of each sample, for set index k and leaf c; what was not asked for is zero."""

    first: Tensor  # (B, K, C) sum of p_ic
    second: Tensor  # (B, K, C) sum of p_ic**2
    mass: Tensor  # (B, 2, K) sums of s_i and s_i**2, s_i the probability of the voxel's label-set
    voxels: Tensor  # (B, K) number of voxels
    cross_entropy: Tensor  # (B, K) sum of (1 - s_i)**gamma * -log s_i

    def weighted(self, weight: Tensor) -> SoftConfusion:
        """The sums with a weight `(K,)` for every label-set."""
        first, second, mass, voxels, cross_entropy = self
        column = weight[:, None]  # (K, 1)
        return SoftConfusion(first * column, second * column, mass * weight, voxels * weight, cross_entropy * weight)


def soft_confusion(
    logits: Tensor,
    target: Tensor,
    membership: Tensor,
    *,
    first: bool = True,
    second: bool = False,
    mass: bool = False,
    gamma: float | None = None,
) -> SoftConfusion:
    """Sums of `softmax(logits)` by set index.

    logits `(B, C, *S)`, target `(B, 1, *S)` set indices, membership bool `(K, C)`. `first`, `second` and `mass` ask for
    the sums of that name (the sum of s_i comes with the first moments too), `gamma` for the marginal focal loss (0:
    cross entropy). Sums are float32 (float64 for float64 logits), whatever the dtype of the logits and the autocast.
    """
    low, high = target.aminmax()
    require(
        (low >= 0) & (high < len(membership)),
        f"`target` has set indices outside 0..{len(membership) - 1}: encode it with LabelSets.encode first",
    )
    sums = SoftConfusion(
        *_sums(logits, target, membership, first, second, mass, NO_CROSS_ENTROPY if gamma is None else gamma)
    )
    if first and not mass:
        from_first = (sums.first * membership).sum(2)
        sums = sums._replace(mass=torch.stack([from_first, torch.zeros_like(from_first)], 1))
    return sums


@torch.library.custom_op("nnunet_labelset::soft_confusion", mutates_args=())
def _sums(
    logits: Tensor, target: Tensor, membership: Tensor, first: bool, second: bool, mass: bool, gamma: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    sums = _allocate(logits, membership)
    first_sum, second_sum, mass_sum, count, entropy = sums
    num_sets = len(membership)
    inside = membership.T.to(first_sum.dtype)  # (C, K)
    with _no_autocast(logits):
        for b, x, k, _ in _chunks(logits, target, num_sets):
            p = x.softmax(0)
            if first:
                first_sum[b] += _sum_by_set(p, k, num_sets)
            rows = [torch.ones_like(p[0])]  # of one number per voxel, to be summed together
            if mass or gamma >= 0:
                log_s = _within_set(x, p, inside, k)[0]
                if mass:
                    s = log_s.exp()
                    rows += [s, s * s]
                if gamma >= 0:
                    rows.append(_focal(log_s, gamma))
            by_set = _sum_by_set(torch.stack(rows), k, num_sets).T  # (rows, K)
            count[b] += by_set[0]
            if mass:
                mass_sum[b] += by_set[1:3]
            if gamma >= 0:
                entropy[b] += by_set[-1]
            if second:
                second_sum[b] += _sum_by_set(p.mul_(p), k, num_sets)
    return sums


@_sums.register_fake
def _(logits: Tensor, target: Tensor, membership: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _allocate(logits, membership)


@torch.library.custom_op("nnunet_labelset::soft_confusion_backward", mutates_args=())
def _gradient(
    logits: Tensor,
    target: Tensor,
    membership: Tensor,
    first: bool,
    second: bool,
    mass: bool,
    gamma: float,
    first_grad: Tensor,
    second_grad: Tensor,
    mass_grad: Tensor,
    entropy_grad: Tensor,
) -> Tensor:
    gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
    flat = gradient.flatten(2)
    inside = membership.T.to(first_grad.dtype)  # (C, K)
    # A voxel that may be any leaf has a mass of 1 whatever the logits: its gradient must be 0, not a rounding error of
    # the softmax. The softmax does not see what all leaves of a row have in common.
    mass_grad = mass_grad * ~membership.all(1)
    first_table = (first_grad - first_grad[:, :, :1]).transpose(1, 2).contiguous()  # (B, C, K)
    second_table = 2 * second_grad.transpose(1, 2).contiguous()
    with _no_autocast(logits):
        for b, x, k, voxels in _chunks(logits, target, len(membership)):
            p = x.softmax(0)
            index = k.expand(len(x), -1)
            g = first_table[b].gather(1, index) if first else torch.zeros_like(p)  # d loss / d p
            if second:
                g.addcmul_(p, second_table[b].gather(1, index))
            if first or second:
                g -= (p * g).sum(0)  # through the softmax: p (g - sum of p g)
            if mass or gamma >= 0:
                log_s, q, q_total = _within_set(x, p, inside, k)
                h = torch.zeros_like(log_s)  # d loss / d log s; through the softmax: h (q - p)
                if mass:
                    s = log_s.exp()
                    grad, grad_of_square = mass_grad[b].gather(1, k.expand(2, -1))
                    h += s * (grad + 2 * s * grad_of_square)
                if gamma >= 0:
                    h += entropy_grad[b].gather(0, k) * _focal_slope(log_s, gamma)
                g.sub_(h).mul_(p).addcmul_(q, h / q_total)
            else:
                g.mul_(p)
            flat[b, :, voxels] = g
    return gradient


@_gradient.register_fake
def _(logits: Tensor, *_: object) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _set_up(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.options = inputs[3:]  # type: ignore[attr-defined]


def _backward(ctx, first: Tensor, second: Tensor, mass: Tensor, count: Tensor, entropy: Tensor) -> tuple:  # type: ignore[no-untyped-def]
    gradient = _gradient(*ctx.saved_tensors, *ctx.options, first, second, mass, entropy)
    return gradient, *[None] * 6


_sums.register_autograd(_backward, setup_context=_set_up)


def _within_set(x: Tensor, p: Tensor, inside: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`log s_i` (n,), and the softmax within the label-set of the voxel as numerator (C, n) and denominator (n,).

    Where `s_i` is too small for its dtype, a softmax of the logits in the set is exact at any logit gap. The CPU takes
    that road only for a chunk that needs it; a device would have to wait for the answer, and takes it always. Rounding
    may leave log s a hair above 0, where the focal loss has no meaning: it is clamped.
    """
    index = k.expand(len(x), -1)
    q = inside.gather(1, index).mul_(p)
    total = q.sum(0)
    if total.device.type == "cpu" and total.amin() > SAFE_MASS:
        return total.log().clamp_max_(0), q, total
    inner = x.masked_fill(inside.gather(1, index) == 0, -torch.inf)
    log_s = (inner.logsumexp(0) - x.logsumexp(0)).clamp_max_(0)
    return log_s, inner.softmax(0), torch.ones_like(log_s)


def _focal(log_s: Tensor, gamma: float) -> Tensor:
    """`(1 - s)**gamma * -log s`, plain cross entropy for gamma 0."""
    return -log_s if gamma == 0 else (-log_s.expm1()) ** gamma * -log_s


def _focal_slope(log_s: Tensor, gamma: float) -> Tensor:
    """Derivative of the focal loss by log s."""
    if gamma == 0:
        return -torch.ones_like(log_s)
    rest = (-log_s.expm1()).clamp_min(torch.finfo(log_s.dtype).tiny)
    return rest ** (gamma - 1) * (gamma * log_s.exp() * log_s - rest)


def _sum_by_set(values: Tensor, k: Tensor, num_sets: int) -> Tensor:
    """Sum the columns of values `(R, n)` by set index `(n,)`: `(K, R)`.

    Adding in place is fastest on the CPU but depends on the order of threads elsewhere; a product with the one-hot
    matrix of the chunk does not. Probabilities that are much alike, added one by one to a long sum, are all rounded in
    the same direction (0.3% after 200000 voxels): hence sums of blocks. Neighbours mostly have the same label-set, and
    adding to one number over and over waits for the addition before (up to 4 times slower): hence lanes.
    """
    if values.device.type != "cpu":
        return _sum_by_product(values, k, num_sets)
    rows, voxels = values.shape
    sums = values.new_zeros(rows, num_sets)
    whole = voxels - voxels % BLOCK
    if whole:
        shape = (rows, whole // BLOCK, BLOCK)
        lanes = torch.arange(0, LANES * num_sets, num_sets)
        index = (k[:whole].view(-1, LANES) + lanes).view(shape[1:]).expand(shape)
        blocks = values.new_zeros(*shape[:2], LANES * num_sets)
        blocks.scatter_add_(2, index, values[:, :whole].unflatten(1, shape[1:]))
        sums += blocks.view(rows, -1, num_sets).sum(1)
    if whole < voxels:
        sums.scatter_add_(1, k[whole:].expand(rows, -1), values[:, whole:])
    return sums.T


def _sum_by_product(values: Tensor, k: Tensor, num_sets: int) -> Tensor:
    one_hot = (torch.arange(num_sets, device=k.device)[:, None] == k).to(values.dtype)  # (K, n)
    return one_hot @ values.T


def _chunks(logits: Tensor, target: Tensor, num_sets: int) -> Iterator[tuple[int, Tensor, Tensor, slice]]:
    """Sample, logits `(C, n)` in the dtype of the sums, set indices `(n,)` and the slice of voxels."""
    x, k = logits.detach().flatten(2), target.flatten(1)
    voxels = x.shape[2]
    on_cpu = x.device.type == "cpu"
    size = CPU_CHUNK // x.shape[1] if on_cpu else DEVICE_CHUNK // (x.shape[1] + num_sets)
    size = max(1, size // BLOCK) * BLOCK
    for b in range(len(x)):
        for start in range(0, voxels, size):
            chunk = slice(start, start + size)
            yield b, x[b, :, chunk].to(_sum_dtype(x)), k[b, chunk].long(), chunk


def _sum_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _allocate(logits: Tensor, membership: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    b, (k, c) = len(logits), membership.shape
    sizes = ((b, k, c), (b, k, c), (b, 2, k), (b, k), (b, k))
    first, second, mass, count, entropy = (logits.new_zeros(size, dtype=_sum_dtype(logits)) for size in sizes)
    return first, second, mass, count, entropy


def _no_autocast(logits: Tensor) -> AbstractContextManager:
    """Sums over millions of voxels overflow in float16. (Other devices than these have no autocast to switch off.)"""
    kind = logits.device.type
    return torch.autocast(kind, enabled=False) if kind in ("cpu", "cuda") else nullcontext()
