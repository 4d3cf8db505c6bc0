"""Every leaf is seen: cases drawn by leaf, patches on annotated leaves and inside the image."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset.contract import Contract
from nnunet_labelset.training.sampling import (
    AllCentres,
    Centres,
    SampledDataset,
    Sampling,
    probabilities,
    repeat_cases,
)
from tests.helpers import tiny
from tests.helpers.errors import refusal
from tests.helpers.tiny import dataset_json, make
from tests.helpers.training import TRAINERS, all_full

BASELINES = {"nnUNetTrainerSoftTargetDice", "nnUNetTrainerFullySupervisedDice"}


def contract(cases: dict[str, str]) -> Contract:
    protocols = {**tiny.PROTOCOLS, "nothing": {name: [*tiny.LABELS][:4] for name in tiny.LABELS}}
    block = {"version": 1, "protocols": protocols, "cases": cases}
    return Contract.from_dataset_json({"labels": tiny.LABELS, "label_sets": block})


def test_leaves_are_equally_likely() -> None:
    cases = {"a": "full", "b": "no_core", "c": "no_core", "d": "merged", "e": "nothing"}
    # full: all four leaves; no_core: background, shell; merged: background
    a, b, d = 1 / 4 + 1 / 3 + 1 + 1, 1 / 4 + 1 / 3, 1 / 4
    expected = np.array([a, b, b, d, d])  # nothing: the smallest of the others
    found = probabilities(contract(cases), list(cases))
    assert found == pytest.approx(expected / expected.sum())


def test_a_leaf_that_nobody_annotates_is_not_drawn() -> None:
    cases = {"a": "no_core", "b": "merged"}
    assert probabilities(contract(cases), list(cases)) == pytest.approx([3 / 4, 1 / 4])
    cases = {"a": "nothing", "b": "nothing"}
    assert probabilities(contract(cases), list(cases)) == pytest.approx([1 / 2, 1 / 2])


@given(st.lists(st.floats(1e-3, 1), min_size=1, max_size=30))
def test_the_list_has_the_probabilities(weights: list[float]) -> None:
    chance = np.array(weights) / sum(weights)
    cases = [f"case_{i}" for i in range(len(weights))]
    drawn = list(repeat_cases(cases, chance))
    found = np.array([drawn.count(case) for case in cases]) / len(drawn)
    assert found == pytest.approx(chance, abs=2e-4)
    assert set(drawn) == set(cases)


def test_many_cases_that_are_hardly_drawn_are_hardly_drawn_together() -> None:
    chance = np.array([0.99 / 10] * 10 + [0.01 / 5000] * 5000)
    cases = np.array([f"case_{i}" for i in range(len(chance))])
    drawn = repeat_cases(cases, chance)
    assert np.isin(drawn, cases[10:]).mean() == pytest.approx(0.01, rel=1e-3)


def test_complete_cases_are_drawn_as_by_nnunet(in_process: tiny.NNUNet) -> None:
    ours = make(in_process, TRAINERS["nnUNetTrainerLeafDice"], all_full(in_process), fold="all")
    plain = make(in_process, nnUNetTrainer, all_full(in_process), fold="all")
    for trainer in (ours, plain):
        trainer.initialize()
    keys = []
    for trainer in (ours, plain):
        np.random.seed(3)
        dataset, _ = trainer.get_tr_and_val_datasets()
        loader = nnUNetDataLoader(dataset, 2, (16,) * 3, (16,) * 3, trainer.label_manager, 0.33)
        keys.append([case for _ in range(20) for case in loader.generate_train_batch()["keys"]])
    assert keys[0] == keys[1]


@pytest.mark.parametrize("name", sorted(name for name in TRAINERS if "_" not in name))
def test_every_trainer_but_the_baselines_samples_by_leaf(
    in_process: tiny.NNUNet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    name: str,
) -> None:
    def drawn() -> list[str]:
        trainer = make(in_process, TRAINERS[name], fold="all")
        trainer.initialize()
        return list(trainer.get_tr_and_val_datasets()[0].identifiers)

    uniform = name in BASELINES
    by_default = drawn()
    assert (len(by_default) == len(set(by_default))) == uniform
    if not uniform:
        assert re.search(r"core +76\.8%", capsys.readouterr().out)
    monkeypatch.setenv("nnunet_labelset_sampling", "uniform")
    assert len(drawn()) == len(set(by_default))
    monkeypatch.setenv("nnunet_labelset_sampling", "leaves")
    with refusal(SystemExit, "nnunet_labelset_sampling", "'leaf'", "'uniform'", "'leaves'"):
        drawn()


class OneCase:
    """An nnU-Net data set of one case, with the class locations of its label map."""

    def __init__(self, case: str, values: np.ndarray) -> None:
        self.identifiers, self.values = [case], values

    def load_case(self, identifier: str) -> tuple[Any, Any, None, dict[str, Any]]:
        locations: dict[Any, np.ndarray] = {
            value: np.argwhere(self.values[None] == value) for value in (1, 2, 3)
        }
        locations[-1, 0, 1, 2, 3] = np.argwhere(self.values[None] < 4)
        return (
            self.values[None].astype(float),
            self.values[None],
            None,
            {"class_locations": locations},
        )


@pytest.mark.parametrize(
    ("protocol", "values", "chosen"),
    [
        ("full", [0, 1, 2, 3, 4], [1, 2, 3]),
        ("no_core", [0, 1, 4], [1]),
        ("merged", [0, 1], [1]),  # no label is annotated: a label-set without background
        ("merged", [0, 4], []),
        ("nothing", [0, 1, 2, 3], []),
    ],
)
def test_oversampled_patches_show_leaves_that_the_case_annotates(
    protocol: str, values: list[int], chosen: list[int]
) -> None:
    known = contract({"a": protocol})
    seg = np.random.default_rng(0).choice(values, (8, 8, 8))
    key = (-1, 0, 1, 2, 3)
    _, _, _, properties = SampledDataset(
        OneCase("a", seg), Sampling(known, (4, 4, 4), key)
    ).load_case("a")
    assert [value for value in properties["class_locations"] if value != key] == chosen
    assert key in properties["class_locations"]


@given(st.integers(1, 40), st.integers(1, 24), st.integers(0, 12), st.integers(0, 39))
def test_patches_end_inside_the_image(size: int, width: int, more: int, voxel: int) -> None:
    """The loader's arithmetic with a patch that is larger than what the network sees, as for
    rotations.
    """

    class Labels:
        all_labels: ClassVar[list[int]] = [0, 1]
        has_ignore_label = False

    initial = (width + more,) * 3
    loader = nnUNetDataLoader(
        OneCase("a", np.zeros((1, 1, 1))), 1, initial, (width,) * 3, Labels(), 1.0
    )
    free = size - min(size, width)
    slack = (more + 1) // 2 if width <= size else (width + more - size + 1) // 2
    place = [[0, voxel % size, voxel % size, 0]]
    for locations in (
        Centres(place, (size,) * 3, (width,) * 3),
        AllCentres((size,) * 3, (width,) * 3),
    ):
        lower, upper = loader.get_bbox((size,) * 3, True, {1: locations})
        for low, high in zip(lower, upper, strict=True):
            assert -slack <= low <= high - (width + more) + free
            assert low <= free - (more // 2 if width <= size else (width + more - size) // 2)


def test_random_patches_show_the_borders() -> None:
    """Uniform over what fits, a patch that is not much smaller than the image would hardly ever
    show a corner.
    """
    centres = AllCentres((10, 8, 3), (4, 4, 4))
    found = np.array([centres[i] for i in range(len(centres))])
    assert set(found[:, 0]) == {0}
    assert (np.bincount(found[:, 1]) * 9 / len(found)).tolist() == [0, 0, 2, 1, 1, 1, 1, 1, 2]
    assert (np.bincount(found[:, 2]) * 7 / len(found)).tolist() == [0, 0, 2, 1, 1, 1, 2]
    assert set(found[:, 3]) == {1}  # where the patch is larger there is one place


def test_random_patches_of_a_slice_show_every_slice() -> None:
    centres = AllCentres((5, 6, 6), (1, 4, 4))
    assert (
        np.bincount([centres[i][1] for i in range(len(centres))]).tolist()
        == [len(centres) // 5] * 5
    )


def test_random_patches_of_a_partial_case_show_its_corners() -> None:
    known = contract({"a": "no_core"})
    key = (-1, 0, 1, 2, 3)
    dataset = SampledDataset(OneCase("a", np.full((8, 8, 8), 4)), Sampling(known, (4, 4, 4), key))
    locations = dataset.load_case("a")[3]["class_locations"][key]
    lower = np.array([locations[i] for i in range(len(locations))])[:, 1:] - 2
    for corner in np.ndindex(2, 2, 2):
        assert (lower == 4 * np.array(corner)).all(1).sum() == 2**3  # of 7**3, and not 1 of 5**3


def test_two_dimensions_keep_every_slice() -> None:
    centres = Centres([[0, 9, 9, 9]], (10, 10, 10), (1, 4, 4))
    assert centres[0].tolist() == [0, 9, 8, 8]


@pytest.mark.parametrize("configuration", ["2d", "3d_fullres", "3d_lowres"])
def test_the_same_seed_draws_the_same_batches(in_process: tiny.NNUNet, configuration: str) -> None:
    batches = []
    for _ in range(2):
        trainer = make(
            in_process,
            TRAINERS["nnUNetTrainerLeafDice_short"],
            configuration=configuration,
            fold="all",
        )
        trainer.initialize()
        loader = trainer.get_dataloaders()[0]
        batches.append([next(loader) for _ in range(3)])
    for first, second in zip(*batches, strict=True):
        assert list(first["keys"]) == list(second["keys"])
        assert np.array_equal(first["data"], second["data"])


def test_scarce_leaves_are_drawn_often(in_process: tiny.NNUNet) -> None:
    dataset = dataset_json(in_process)
    dataset["label_sets"]["cases"] = {
        case: "full" if case == "full_0" else "no_core" for case in tiny.CASES
    }
    trainer = make(in_process, TRAINERS["nnUNetTrainerLeafDice_short"], dataset, fold="all")
    trainer.initialize()
    loader = trainer.get_dataloaders()[0]
    keys = [case for _ in range(40) for case in next(loader)["keys"]]
    assert keys.count("full_0") > 30  # of 80; expected 45, nnU-Net 10
    assert len(set(keys)) > 4
