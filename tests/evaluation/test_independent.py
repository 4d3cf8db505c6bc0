"""Scores, outcomes and pairs against a checker that was written from docs/evaluation.md alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.protocol import Protocol
from nnunet_labelset.evaluation.averages import evaluation
from nnunet_labelset.evaluation.compare import ComparisonOptions, comparison
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.results import Evaluation, Pair, structures_of
from nnunet_labelset.evaluation.scores import score_arrays
from tests.helpers import naive_scores
from tests.helpers.evaluation import made_case, made_evaluation, made_score

NAMES = ("background", "a", "b", "c")
PROTOCOLS = {
    "full": Protocol.complete(4, has_ignore=True),
    "merged": Protocol(tuple(map(frozenset, ([0], [1, 2], [2], [3], [0, 1, 2, 3]))), 4),
    "open": Protocol(tuple(map(frozenset, ([0, 3], [1], [2], [3], [0, 1, 2, 3]))), 4),
    "disputed": Protocol(
        tuple(map(frozenset, ([0], [1], [2], [3], [1, 2]))), 4, vouched=frozenset([1, 2])
    ),
}
SHAPES = ((7, 6), (1, 9), (5, 1, 6), (12, 5))
SPACINGS = ((1, 1), (0.7, 2.5), (3, 0.5), (1.5, 1.5))
METHODS = ("x", "y", "z")


def image(rng, shape, values):
    """Blocks of values: most labels are absent in some images."""
    array = np.zeros(shape, np.uint8)
    for _ in range(rng.integers(1, 5)):
        starts = [rng.integers(0, size) for size in shape]
        box = tuple(slice(start, start + rng.integers(1, 5)) for start in starts)
        array[box] = rng.choice(values)
    return array


def squeezed(array):
    flat = np.squeeze(array)
    return {place: int(value) for place, value in np.ndenumerate(flat)}


@pytest.mark.slow  # half a minute of loops
def test_random_cases():
    rng = np.random.default_rng(20)
    contract = Contract(NAMES, PROTOCOLS, {}, True)
    cases: dict[str, list] = {method: [] for method in METHODS}
    expected: dict[str, dict] = {method: {} for method in METHODS}
    outcomes, compared_values = set(), 0
    for number in range(110):
        name = rng.choice(list(PROTOCOLS))
        protocol, structures = PROTOCOLS[name], structures_of(contract, name)
        shape = SHAPES[number % len(SHAPES)]
        flat_spacing = [float(size) for size in SPACINGS[rng.integers(len(SPACINGS))]]
        flat_axes = [axis for axis, size in enumerate(shape) if size > 1]
        spacing = [1.0] * len(shape)
        for axis, size in zip(flat_axes, flat_spacing, strict=False):
            spacing[axis] = size
        reference = image(rng, shape, [0, 1, 2, 3, 4])
        for method in METHODS:
            prediction = image(rng, shape, [0, 1, 2, 3])
            if rng.random() < 0.5:  # mostly right
                right = np.where(reference == 4, 1, reference)
                prediction = np.where(rng.random(shape) < 0.9, right, prediction).astype(np.uint8)
            pair = Pair(f"{number:03d}", name, protocol, "", "", NAMES, structures)
            case = score_arrays(pair, reference, prediction, spacing)
            cases[method].append(case)
            slow = expected[method].setdefault(case.case, {})
            for structure in structures:
                single = len(structure.members) == 1
                (leaf, *_) = structure.members
                is_annotated = not single or naive_scores.annotated(
                    leaf, protocol.sets, 4, protocol.vouched
                )
                outcome, values = naive_scores.score(
                    squeezed(reference),
                    squeezed(prediction),
                    protocol.sets,
                    4,
                    structure.members,
                    is_annotated,
                    shape,
                    spacing,
                )
                found = case.leaves[structure.name]
                where = (number, method, structure.name)
                assert found.outcome == outcome, where
                outcomes.add(outcome)
                for metric, value in values.items():
                    assert found.values[metric] == _close(value), (where, metric)
                    compared_values += value is not None
                if single:
                    slow[structure.name] = (outcome, values)
    assert outcomes == {"scored", "missed", "invented", "absent", "undecided", "not annotated"}
    assert compared_values > 3000
    results = {method: _evaluation(of_method) for method, of_method in cases.items()}
    metrics = ["dice", "nsd", "hd95", "precision", "fp_volume"]
    compared = comparison(results, ComparisonOptions("x", metrics=metrics))
    for metric in metrics:
        used = naive_scores.pairs(expected, metric)
        for method in METHODS:
            assert compared.cell(method, None, metric).mean == pytest.approx(
                naive_scores.mean_over_labels(used[method]), abs=1e-4
            )
            for label in NAMES[1:]:
                values = [of[label] for of in used[method].values() if label in of]
                cell = compared.cell(method, label, metric)
                assert (cell.n, cell.mean) == (
                    len(values),
                    pytest.approx(np.mean(values), abs=1e-4),
                )
            alone = naive_scores.pairs({method: expected[method]}, metric)[method]
            own = results[method].averages.overall.mean[metric]
            assert own.mean == pytest.approx(naive_scores.mean_over_labels(alone), abs=1e-4)


def _close(value):
    return None if value is None else pytest.approx(value, abs=2e-4)


def _evaluation(cases) -> Evaluation:
    settings = made_evaluation([made_case("a", {"a": made_score({"dice": 1.0})})]).settings
    settings = replace(settings, metrics=tuple(METRICS))
    names = set().union(*(case.leaves for case in cases))
    unions = {name: tuple(name.split("+")) for name in sorted(names) if "+" in name}
    labels = {name: value for value, name in enumerate(NAMES) if value}
    return evaluation(cases, labels, NAMES[1:], unions, {}, settings)
