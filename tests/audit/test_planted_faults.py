"""The faults that `benchmarks.audit` plants: as many as it says, one per case, and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("benchmarks.accuracy", reason="the benchmarks are not installed")

from benchmarks.accuracy.studies import STUDIES, Case
from benchmarks.audit import OF_EACH_KIND, Kind, Planter, fitted


def cases(num_labels: int) -> list[Case]:
    """Labels are cubes that do not touch; every second case has another size."""
    made = []
    for number in range(40):
        labels = np.zeros((6, 12, 12 * num_labels + number % 2), np.uint8)
        for value in range(1, num_labels + 1):
            labels[2:4, 3:7, 12 * value - 9 : 12 * value - 5] = value
        made.append(Case(f"case_{number}", labels.astype(np.float32), labels, (5.0, 5.0, 5.0)))
    return [*made, replace(made[0], name="test", is_test=True)]


@pytest.mark.parametrize("name", ["hippocampus", "openkbp"])
def test_faults_are_planted_once_per_case(name: str) -> None:
    study = STUDIES[f"{name}_2d"]
    clean = {case.name: case for case in cases(len(study.leaves))}
    planter = Planter(name, study, list(clean.values()), seed=0)
    faulty = planter.plant()
    assert Counter(fault.kind for fault in planter.faults) == dict.fromkeys(Kind, OF_EACH_KIND)
    concerned = {fault.case: fault for fault in planter.faults}
    assert len(concerned) == len(planter.faults)
    assert set(faulty) == set(clean) - {"test"}
    for case, after in faulty.items():
        before = clean[case].labels
        assert after.labels.shape == before.shape
        fault = concerned.get(case)
        if fault is None:
            assert np.array_equal(after.labels, before)
        elif fault.kind is not Kind.IMAGE:  # all labels of another case may lie in the same place
            changed = set(np.unique(before[after.labels != before])) - {0}
            assert changed == {study.leaves.index(label) + 1 for label in fault.labels}


def test_maps_of_other_sizes_are_fitted_around_their_middle() -> None:
    assert fitted(np.arange(5), (3,)).tolist() == [1, 2, 3]
    assert fitted(np.arange(1, 4), (5,)).tolist() == [0, 1, 2, 3, 0]
