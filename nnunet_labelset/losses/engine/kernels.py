"""The sums, the end of the loss and the gradient as three Triton kernels: the logits are read
twice, and written once.

A program sums the voxels of a few blocks in registers and writes one row of partial sums, so that
all are added in a fixed order. The mathematics are those of `chunks.py`; see there. Tensors have up
to three axes of voxels, with any strides.
"""
# mypy: disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _offsets(n, size1, size2, stride0, stride1, stride2, AXES: tl.constexpr):
    """Where voxel number n is: on one axis, or on three."""
    place = n * stride2
    if AXES == 3:
        place = (
            (n // size2 // size1) * stride0 + (n // size2 % size1) * stride1 + (n % size2) * stride2
        )
    return place


@triton.jit
def _softmax(x):
    """Maximum and sum (N,) and softmax (C, N) of logits that are -inf where there is none."""
    largest = tl.max(x, 0)
    e = tl.exp(x - largest[None, :])
    total = tl.sum(e, 0)
    return largest, total, e / total[None, :]


@triton.jit
def _power(base, exponent):
    return tl.exp(exponent * tl.log(tl.maximum(base, 1.0e-37)))


@triton.jit
def _rest(log_x):
    """1 - x, without loss of digits where x is nearly 1."""
    near = -log_x * (1.0 + log_x * (0.5 + log_x * (0.16666667 + log_x * 0.041666667)))
    return tl.where(log_x > -0.02, near, 1.0 - tl.exp(log_x))


@triton.jit
def sums_kernel(
    logits, target, weights, outside, log_size, partial,  # tensors
    voxels, sets, size1, size2, blocks,  # blocks per program
    logits_b, logits_c, logits_0, logits_1, logits_2, target_b, target_0, target_1, target_2, gamma,
    LEAVES: tl.constexpr, ROWS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, AXES: tl.constexpr,
    DICE: tl.constexpr, ENTROPY: tl.constexpr, MARGINAL: tl.constexpr, ALPHA: tl.constexpr, FOCAL: tl.constexpr,
    OWN_REFERENCE: tl.constexpr,
):  # fmt: skip
    """Partial sums (B, programs, ROWS), in the order of the weights, and the number of bad set
    indices.
    """
    ENTROPY_ROW: tl.constexpr = 2 * LEAVES * DICE
    program, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    leaf = tl.arange(0, BLOCK_C)
    is_leaf = leaf < LEAVES
    prediction = tl.zeros([BLOCK_C], tl.float32)
    intersection = tl.zeros([BLOCK_C], tl.float32)
    reference = tl.zeros([BLOCK_C], tl.float32)
    entropy = tl.zeros([BLOCK_N], tl.float32)
    counted = tl.zeros([BLOCK_N], tl.float32)
    bad = tl.zeros([BLOCK_N], tl.float32)
    for block in range(blocks):
        n = (program.to(tl.int64) * blocks + block) * BLOCK_N + tl.arange(0, BLOCK_N)
        there = n < voxels
        k = tl.load(
            target + b * target_b + _offsets(n, size1, size2, target_0, target_1, target_2, AXES),
            there,
            0,
        )
        known = (k >= 0) & (k < sets)
        bad += tl.where(known, 0.0, 1.0)
        k = tl.where(known, k, 0).to(tl.int64)
        mask = is_leaf[:, None] & there[None, :]
        where = (
            logits + b * logits_b + _offsets(n, size1, size2, logits_0, logits_1, logits_2, AXES)
        )
        x = tl.load(where[None, :] + leaf[:, None].to(tl.int64) * logits_c, mask, 0.0).to(
            tl.float32
        )
        x = tl.where(is_leaf[:, None], x, float("-inf"))
        largest, total, p = _softmax(x)
        table = leaf[:, None].to(tl.int64) * sets + k[None, :]
        if ENTROPY or MARGINAL:
            out = tl.load(outside + table, mask, 1) != 0
            # beyond the end: a label-set that is not empty
            first = (leaf == 0)[:, None] & ~there[None, :]
            inner = tl.where(out & ~first, float("-inf"), x)
            inner_largest, inner_total, _ = _softmax(inner)
            log_s = (inner_largest - largest) + tl.log(inner_total / total)
        if ENTROPY:
            voxel_weight = tl.load(weights + ENTROPY_ROW * sets + k, there, 0.0)
            counted += voxel_weight
            value = log_s
            if FOCAL:
                log_x = tl.minimum(log_s - tl.load(log_size + k, there, 0.0), 0.0)
                value = _power(_rest(log_x), gamma) * log_x
            entropy += voxel_weight * value
        if DICE:
            if MARGINAL:
                p = tl.where(out, p, tl.exp(log_s)[None, :])
            power = p * p if ALPHA == 2 else p
            prediction += tl.sum(tl.load(weights + table, mask, 0.0) * power, 1)
            weight = tl.load(weights + LEAVES * sets + table, mask, 0.0)
            intersection += tl.sum(weight * p, 1)
            if OWN_REFERENCE:
                weight = tl.load(weights + (2 * LEAVES + ENTROPY) * sets + table, mask, 0.0)
            reference += tl.sum(weight, 1)
    row = partial + (b * tl.num_programs(0) + program) * (ROWS + 1)
    if DICE:
        tl.store(row + leaf, prediction, is_leaf)
        tl.store(row + LEAVES + leaf, intersection, is_leaf)
        tl.store(row + (2 * LEAVES + ENTROPY) + leaf, reference, is_leaf)
    if ENTROPY:
        tl.store(row + ENTROPY_ROW, tl.sum(entropy, 0))
        tl.store(row + ROWS - 1, tl.sum(counted, 0))
    tl.store(row + ROWS, tl.sum(bad, 0))


@triton.jit
def finish_kernel(
    sums, loss, gradients, before, after,  # tensors
    samples, stride, epsilon, weight_dice, weight_ce, slope_ce, decay, tail, end, smallest,
    LEAVES: tl.constexpr, ROWS: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, DICE: tl.constexpr,
    ENTROPY: tl.constexpr, BATCH_DICE: tl.constexpr, FIRST: tl.constexpr, ANNOTATED_ONLY: tl.constexpr,
    REMEMBERS: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """The loss, and its gradients by P, I and the entropy (B, R'); with REMEMBERS, those of running
    Dice, and its sums (4, C).
    """
    sample, leaf = tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_C)
    is_sample = sample < samples
    row = sums + sample * stride
    slope = gradients + sample * (2 * LEAVES * DICE + ENTROPY)
    total = 0.0
    if DICE:
        is_leaf = leaf < LEAVES
        mask = is_sample[:, None] & is_leaf[None, :]
        place = row[:, None] + leaf[None, :]
        prediction = tl.load(place, mask, 0.0)
        intersection = tl.load(place + LEAVES, mask, 0.0)
        reference = tl.load(place + (2 * LEAVES + ENTROPY), mask, 0.0)
        number = samples * (LEAVES - FIRST)
        if BATCH_DICE:
            number = LEAVES - FIRST
            prediction = tl.sum(prediction, 0)[None, :] + tl.zeros_like(prediction)
            intersection = tl.sum(intersection, 0)[None, :] + tl.zeros_like(intersection)
            reference = tl.sum(reference, 0)[None, :] + tl.zeros_like(reference)
        denominator = reference + epsilon + prediction
        dice = 2.0 * intersection / denominator
        if ANNOTATED_ONLY:
            dice = tl.where(reference > 0, dice, 1.0)
        dice = tl.where(mask & (leaf >= FIRST)[None, :], dice, 0.0)
        if BATCH_DICE:
            dice_sum = tl.sum(tl.sum(tl.where((sample == 0)[:, None], dice, 0.0), 1), 0)
        else:
            dice_sum = tl.sum(tl.sum(dice, 1), 0)
        total += weight_dice * (1.0 - dice_sum / number)
        by_prediction = dice / denominator * (weight_dice / number)
        by_intersection = tl.zeros_like(denominator) - 2.0 * weight_dice / number / denominator
        if REMEMBERS:  # all rows are equal: the sums of the batch
            old_i = tl.load(before + leaf, is_leaf, 0.0)
            old_r = tl.load(before + LEAVES + leaf, is_leaf, 0.0)
            old_p = tl.load(before + 2 * LEAVES + leaf, is_leaf, 0.0)
            old_e = tl.load(before + 3 * LEAVES + leaf, is_leaf, 0.0)
            evidence = tl.where(reference > 0, 1.0, 0.0) + decay * old_e[None, :]
            lives = tl.where(evidence >= end, 1.0, 0.0)
            evidence = evidence * lives
            run_i = (intersection + decay * old_i[None, :]) * lives
            run_r = (reference + decay * old_r[None, :]) * lives
            run_p = (prediction + decay * old_p[None, :]) * lives
            half = (run_r + run_p + epsilon) / 2.0
            run_dice = tl.maximum(run_i / half, smallest, propagate_nan=tl.PropagateNan.ALL)
            pull = run_dice
            if TAIL:
                pull = run_dice + tail / 2.0 / (run_dice + tail)
            pull = pull * (evidence * tl.minimum(evidence, 1.0) / half)
            by_prediction = pull / 2.0 * (weight_dice / number)
            by_intersection = -(pull / run_dice) * (weight_dice / number)
            check = tl.sum(tl.sum(tl.where(mask, run_i + run_r + run_p, 0.0), 1), 0)
            fine = check == check
            once = mask & (sample == 0)[:, None]
            where = after + leaf[None, :] + tl.zeros_like(sample)[:, None]
            tl.store(where, tl.where(fine, run_i, old_i[None, :]), once)
            tl.store(where + LEAVES, tl.where(fine, run_r, old_r[None, :]), once)
            tl.store(where + 2 * LEAVES, tl.where(fine, run_p, old_p[None, :]), once)
            tl.store(where + 3 * LEAVES, tl.where(fine, evidence, old_e[None, :]), once)
        counts = (leaf >= FIRST)[None, :]
        by_prediction = tl.where(counts, by_prediction, 0.0)
        by_intersection = tl.where(counts, by_intersection, 0.0)
        tl.store(slope[:, None] + leaf[None, :], by_prediction, mask)
        tl.store(slope[:, None] + LEAVES + leaf[None, :], by_intersection, mask)
    if ENTROPY:
        entropy = tl.load(row + 2 * LEAVES * DICE, is_sample, 0.0)
        counted = tl.maximum(tl.sum(tl.load(row + ROWS - 1, is_sample, 0.0), 0), 1.0)
        total += -weight_ce * tl.sum(entropy, 0) / counted
        tl.store(
            slope + 2 * LEAVES * DICE,
            tl.zeros([BLOCK_B], tl.float32) - slope_ce / counted,
            is_sample,
        )
    tl.store(loss, total)


@triton.jit
def gradient_kernel(
    logits, target, slopes, outside, log_size, gradients, upstream, gradient,  # tensors
    voxels, sets, size1, size2,
    logits_b, logits_c, logits_0, logits_1, logits_2, target_b, target_0, target_1, target_2,
    gradient_b, gradient_c, gradient_0, gradient_1, gradient_2, gamma,
    LEAVES: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, AXES: tl.constexpr,
    DICE: tl.constexpr, ENTROPY: tl.constexpr, MARGINAL: tl.constexpr, ALPHA: tl.constexpr, FOCAL: tl.constexpr,
):  # fmt: skip
    """The gradient by the logits, from those by the sums (B, R') times the one from upstream."""
    b = tl.program_id(1).to(tl.int64)
    leaf = tl.arange(0, BLOCK_C)
    is_leaf = leaf < LEAVES
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    there = n < voxels
    k = tl.load(
        target + b * target_b + _offsets(n, size1, size2, target_0, target_1, target_2, AXES),
        there,
        0,
    )
    k = tl.where((k >= 0) & (k < sets), k, 0).to(tl.int64)
    mask = is_leaf[:, None] & there[None, :]
    where = logits + b * logits_b + _offsets(n, size1, size2, logits_0, logits_1, logits_2, AXES)
    x = tl.load(where[None, :] + leaf[:, None].to(tl.int64) * logits_c, mask, 0.0).to(tl.float32)
    x = tl.where(is_leaf[:, None], x, float("-inf"))
    largest, total, p = _softmax(x)
    table = leaf[:, None].to(tl.int64) * sets + k[None, :]
    scale = tl.load(upstream)
    row = gradients + b * (2 * LEAVES * DICE + ENTROPY)
    result = tl.zeros([BLOCK_C, BLOCK_N], tl.float32)
    if ENTROPY or MARGINAL:
        out = tl.load(outside + table, mask, 1) != 0
        first = (leaf == 0)[:, None] & ~there[None, :]
        inner = tl.where(out & ~first, float("-inf"), x)
        inner_largest, inner_total, q = _softmax(inner)
        log_s = (inner_largest - largest) + tl.log(inner_total / total)
    if ENTROPY:
        h = tl.load(slopes + 2 * LEAVES * DICE * sets + k, there, 0.0) * tl.load(
            row + 2 * LEAVES * DICE
        )
        if FOCAL:
            log_x = tl.minimum(log_s - tl.load(log_size + k, there, 0.0), 0.0)
            rest = tl.maximum(_rest(log_x), 1.0e-37)
            h = h * _power(rest, gamma - 1.0) * (rest - gamma * tl.exp(log_x) * log_x)
        result += h[None, :] * (q - p)
    if DICE:
        by_power = tl.load(slopes + table, mask, 0.0) * tl.load(row + leaf, is_leaf, 0.0)[:, None]
        by_p = (
            tl.load(slopes + LEAVES * sets + table, mask, 0.0)
            * tl.load(row + LEAVES + leaf, is_leaf, 0.0)[:, None]
        )
        seen = p
        if MARGINAL:  # what a leaf of the label-set does to s, all of them do
            by_power = tl.where(out, by_power, tl.sum(tl.where(out, 0.0, by_power), 0)[None, :])
            by_p = tl.where(out, by_p, tl.sum(tl.where(out, 0.0, by_p), 0)[None, :])
            seen = tl.where(out, p, tl.exp(log_s)[None, :])
        by_p += by_power * seen if ALPHA == 2 else by_power
        result += p * (by_p - tl.sum(p * by_p, 0)[None, :])
    where = (
        gradient
        + b * gradient_b
        + _offsets(n, size1, size2, gradient_0, gradient_1, gradient_2, AXES)
    )
    where = where[None, :] + leaf[:, None].to(tl.int64) * gradient_c
    tl.store(where, (result * scale).to(gradient.dtype.element_ty), mask)
