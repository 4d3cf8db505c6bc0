"""The rules of docs/evaluation.md, written slowly and without a line of the package: sets, loops,
all pairs of surface elements. For images of one or two axes.
"""

from __future__ import annotations

import math
from itertools import product
from statistics import mean

BEST = {"dice": 1.0, "iou": 1.0, "precision": 1.0, "recall": 1.0, "nsd": 1.0}
BEST |= {"hd95": 0.0, "hd100": 0.0, "assd": 0.0, "fp_volume": 0.0, "fn_volume": 0.0}
SHARES = ("dice", "iou", "precision", "recall")
DISTANCES = ("hd95", "hd100", "assd")


def annotated(label, sets, num_labels, vouched):
    """A value stands for this label alone, and no larger set that states something holds it."""
    alone = any(members == {label} for members in sets)
    everything = set(range(num_labels))
    larger = [
        members
        for value, members in enumerate(sets)
        if len(members) > 1 and (value < num_labels or members != everything)
    ]
    return alone and (label in vouched or not any(label in members for members in larger))


def score(reference, prediction, sets, num_labels, members, is_annotated, shape, spacing):
    """Return outcome and metrics of a structure; `reference` and `prediction` map places, without
    axes of one voxel, to values. `shape` and `spacing` are those of the image.
    """
    voxel = math.prod(spacing) / 10 ** len(spacing)
    worst = math.hypot(*(size * n for size, n in zip(spacing, shape, strict=True)))
    tolerance = max(1.0, min(spacing))
    everything = set(range(num_labels))
    certain, possible, disputed = set(), set(), set()
    for place, value in reference.items():
        if sets[value] <= members:
            certain.add(place)
        elif sets[value] & members:
            possible.add(place)
            if value < num_labels or sets[value] != everything:
                disputed.add(place)
    predicted = {place for place, value in prediction.items() if value in members} - possible
    tp, fp, fn = len(certain & predicted), len(predicted - certain), len(certain - predicted)
    volumes = {"fp_volume": fp * voxel, "fn_volume": fn * voxel}
    names = (*SHARES, "nsd", *DISTANCES)
    if not is_annotated:
        return "not annotated", dict.fromkeys([*names, *volumes])
    if not certain and disputed:
        return "undecided", dict.fromkeys([*names, *volumes])
    if not certain and not predicted:
        return "absent", {**dict.fromkeys(names), **volumes}
    sizes = [n for n in shape if n > 1]
    steps = [size for size, n in zip(spacing, shape, strict=True) if n > 1]
    surface = _surface_metrics(certain, predicted, possible, sizes, steps, tolerance, worst)
    if not certain or not predicted:
        values = {**dict.fromkeys(SHARES, 0.0), "nsd": 0.0, **dict.fromkeys(DISTANCES, worst)}
        if certain and surface is None:
            values |= dict.fromkeys(["nsd", *DISTANCES])
        return ("missed" if certain else "invented"), {**values, **volumes}
    values = {
        "dice": 2 * tp / (2 * tp + fp + fn),
        "iou": tp / (tp + fp + fn),
        "precision": tp / (tp + fp),
        "recall": tp / (tp + fn),
        **(surface or dict.fromkeys(["nsd", *DISTANCES])),
    }
    return "scored", {**values, **volumes}


def _surface_metrics(certain, predicted, possible, sizes, spacing, tolerance, worst):
    """Return None without a surface in the reference."""
    axes = _axes(certain, possible, sizes)
    corners = list(product(*((0, 1) if axis in axes else (0,) for axis in range(len(sizes)))))
    spots = list(product(*(range(n + (axis in axes)) for axis, n in enumerate(sizes))))
    if not axes:
        return None

    def around_of(spot):
        return [
            tuple(
                s - (c if axis in axes else 0)
                for axis, (s, c) in enumerate(zip(spot, corner, strict=True))
            )
            for corner in corners
        ]

    around = {spot: around_of(spot) for spot in spots}
    open_spots = [spot for spot in spots if any(voxel in possible for voxel in around[spot])]
    closed_spots = sorted(set(spots) - set(open_spots))

    def elements(mask):
        lengths = {}
        for spot in closed_spots:
            inside = [voxel in mask for voxel in around[spot]]
            if all(inside) or not any(inside):
                continue
            lengths[spot] = _length(inside, [spacing[axis] for axis in axes])
        return lengths

    first, second = elements(certain), elements(predicted)
    if not first:
        return None
    if not second:
        return {"nsd": 0.0, **dict.fromkeys(DISTANCES, worst)}

    def apart(one, two):
        return math.hypot(*((a - b) * size for a, b, size in zip(one, two, spacing, strict=True)))

    def same_slice(one, two):
        return all(one[axis] == two[axis] for axis in range(len(sizes)) if axis not in axes)

    sides = []
    for here, there in ((first, second), (second, first)):
        side = []
        for spot in here:
            slice_mates = [other for other in open_spots if same_slice(spot, other)]
            nearest = min(apart(spot, other) for other in (*there, *slice_mates))
            side.append((nearest, here[spot]))
        sides.append(sorted(side))
    both = sides[0] + sides[1]
    area = sum(length for _, length in both)
    return {
        "nsd": sum(length for d, length in both if d <= tolerance + 5e-5) / area,
        "hd95": min(worst, max(_percentile(side) for side in sides)),
        "hd100": min(worst, max(d for d, _ in both)),
        "assd": sum(min(d, worst) * length for d, length in both) / area,
    }


def _axes(certain, possible, sizes):
    axes = []
    for axis, size in enumerate(sizes):
        known = 0
        for place in certain:
            neighbours = [
                tuple(p + (step if number == axis else 0) for number, p in enumerate(place))
                for step in (-1, 1)
            ]
            known += any(0 <= n[axis] < size and n not in possible for n in neighbours)
        if size > 1 and (not possible or 2 * known >= len(certain)):
            axes.append(axis)
    return axes


def _length(inside, sizes):
    """Marching squares, or a point: the fewer corners are cut off."""
    if len(sizes) == 1:
        return 1.0
    high, wide = sizes
    count = sum(inside)
    corner = math.hypot(high / 2, wide / 2)
    if count in (1, 3):
        return corner
    if inside[0] == inside[3]:
        return 2 * corner
    return wide if inside[0] == inside[1] else high


def _percentile(side):
    total = sum(length for _, length in side)
    reached = 0.0
    for distance, length in side:
        reached += length
        if reached / total >= 0.95 - 1e-9:
            return distance
    return side[-1][0]


def pairs(scores, metric):
    """Return `{method: {case: {label: value}}}` of what `compare` uses.

    `scores[method][case][label]` is an outcome with its metrics.
    """
    methods = list(scores)
    used = {method: {} for method in methods}
    for case in scores[methods[0]]:
        for label in scores[methods[0]][case]:
            entries = [scores[method][case][label] for method in methods]
            outcomes = {outcome for outcome, _ in entries}
            if outcomes & {"undecided", "not annotated"} or outcomes == {"absent"}:
                continue
            values = [BEST[metric] if o == "absent" else v[metric] for o, v in entries]
            if None in values:
                continue
            for method, value in zip(methods, values, strict=True):
                used[method].setdefault(case, {})[label] = value
    return used


def mean_over_labels(used):
    """Return the mean over the labels of a case, then over the cases; None without any."""
    return mean(mean(labels.values()) for labels in used.values()) if used else None
