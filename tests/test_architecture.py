"""The rules of the house (docs/architecture.md): imports go downwards, verbs are strangers, nnU-Net stays inside."""

from __future__ import annotations

import pytest

from tests.helpers.imports import cycles, import_graph, imported_names, modules, room_of

# Floors from the ground up: a module imports from its own room or from a lower floor, never from a neighbour.
FLOORS = (
    ("errors",),
    ("io",),
    ("contract",),
    ("losses", "evaluation"),
    ("nnunet",),
    ("training", "datasets"),
    ("trainers", "dataset_conversion"),  # a conversion shows the coverage of what it wrote
    ("report", "study"),
    ("commands",),
    # The way in: the command, the public names, and the places where names were found before there were rooms.
    ("nnunet_labelset", "cli", "label_sets", "trainer"),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# What nnU-Net brings along; each exception says why.
NNUNET = ("nnunetv2", "batchgenerators", "batchgeneratorsv2", "dynamic_network_architectures")
MAY_IMPORT_NNUNET = {
    "nnunet": "knows nnU-Net's insides and files",
    "training": "lives inside nnU-Net's training",
    "trainers": "derives from nnU-Net's trainers",
    "nnunet_labelset.losses.modules": "sums over the ranks of DDP with gradient, as nnU-Net's own Dice does",
}


def test_every_room_has_its_floor() -> None:
    assert {room_of(module) for module in modules()} == set(FLOOR)


def test_imports_go_downwards() -> None:
    upwards = {
        (module, target)
        for module, targets in import_graph().items()
        for target in targets
        if room_of(module) != room_of(target) and FLOOR[room_of(target)] >= FLOOR[room_of(module)]
    }
    assert sorted(upwards) == [], "(who, imports whom): not below it"


def test_nothing_imports_itself_around_corners() -> None:
    assert cycles(import_graph()) == []


def test_no_verb_imports_a_verb() -> None:
    shared = {"nnunet_labelset.commands", "nnunet_labelset.commands.options"}
    verbs = {module for module in modules() if room_of(module) == "commands"} - shared
    between = [(verb, other) for verb in sorted(verbs) for other in sorted(import_graph()[verb] & verbs)]
    assert between == [], "what two verbs need belongs into a room"


@pytest.mark.parametrize("package", NNUNET)
def test_nnunet_is_imported_in_its_rooms_only(package: str) -> None:
    importers = {
        module
        for module, path in modules().items()
        if any(name.split(".")[0] == package for name in imported_names(path))
    }
    strangers = {module for module in importers if not {module, room_of(module)} & set(MAY_IMPORT_NNUNET)}
    assert sorted(strangers) == []


def test_the_check_itself_sees_cycles() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": set()}) == []
