"""The rules of the house (docs/architecture.md): imports go downwards, verbs are strangers, nnU-Net
stays inside.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.figures import rooms
from nnunet_labelset.nnunet import logs, names
from tests.helpers.imports import (
    FLOOR,
    ROOT,
    cycles,
    import_graph,
    imported_names,
    modules,
    room_of,
)

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
    graph = import_graph()
    between = [(verb, other) for verb in sorted(verbs) for other in sorted(graph[verb] & verbs)]
    assert between == [], "what two verbs need belongs into a room"


@pytest.mark.parametrize("package", NNUNET)
def test_nnunet_is_imported_in_its_rooms_only(package: str) -> None:
    importers = {
        module
        for module, path in modules().items()
        if any(name.split(".")[0] == package for name in imported_names(path))
    }
    strangers = {
        module for module in importers if not {module, room_of(module)} & set(MAY_IMPORT_NNUNET)
    }
    assert sorted(strangers) == []


def path_parts(path: Path) -> Iterator[str]:
    """Texts of a file that may be parts of paths: no space in them, and no documentation."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.JoinedStr, ast.Constant)):
            pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "\0".join(
                str(piece.value) for piece in pieces if isinstance(piece, ast.Constant)
            )
            inside = any(
                isinstance(piece, ast.Constant) and isinstance(piece.value, str) for piece in pieces
            )
            if inside and " " not in text:
                yield text


def takers_of_names() -> Iterator[tuple[str, Path]]:
    """The modules that take nnU-Net's names from nnunet/names.py: all others."""
    for module, path in modules().items():
        if module not in (names.__name__, logs.__name__):
            yield module, path


def test_names_of_nnunet_stand_once() -> None:
    facts = {
        names.SPLITS,
        names.REFERENCES,
        names.DEFAULT_PLANS,
        names.PLANS,
        names.PROGRESS,
        names.SUMMARY,
    }
    facts |= {
        *names.VARIABLES,
        names.EXTERNAL_TRAINERS,
        names.PROCESSES,
        names.AUGMENTATION_PROCESSES,
    }
    facts |= {names.DATASET, names.DEFAULT_CONFIGURATION, names.FIRST_CHANNEL}
    facts |= {
        names.FINAL_CHECKPOINT,
        names.LATEST_CHECKPOINT,
        names.BEST_CHECKPOINT,
        names.POSTPROCESSING,
    }
    facts |= {names.IMAGES_TRAINING, names.LABELS_TRAINING, names.IMAGES_TEST, names.LABELS_TEST}
    facts |= {"fold_", "training_log", "crossval_results"}
    found = [
        (module, text)
        for module, path in takers_of_names()
        for text in path_parts(path)
        if any(fact in text for fact in facts)
    ]
    assert found == [], "(module, name of nnU-Net): take it from nnunet/names.py"


def keys_and_texts(path: Path) -> tuple[set[str], set[str]]:
    """Texts by which a file looks something up, as `a["x"]` or `"x" in a` do; and all that are no
    documentation.
    """
    keys: list[ast.AST | None] = []
    texts, documentation = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Subscript):
            keys.append(node.slice)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            keys.append(node.left)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("get", "pop")
        ):
            keys += node.args[:1]
        elif isinstance(node, ast.Dict):
            keys += node.keys
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documentation.add(node.value.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return {key.value for key in keys if isinstance(key, ast.Constant)}, texts - documentation


def test_keys_and_commands_of_nnunet_stand_once() -> None:
    facts = {
        names.FILE_ENDING,
        names.CHANNELS,
        names.NUM_TRAINING,
        names.LISTED,
        names.TRAINED,
        names.VALIDATED,
    }
    own = {
        "nnunet_labelset.cli": {"train"},  # a verb
        "nnunet_labelset.study.experiment": {"dataset"},  # a variable of its scripts
    }
    found = []
    for module, path in takers_of_names():
        keys, texts = keys_and_texts(path)
        found += [(module, key) for key in keys & facts - own.get(module, set())]
        found += [(module, text) for text in texts if "nnUNetv2_" in text]
    assert found == [], "(module, key or command of nnU-Net): take it from nnunet/names.py"


def test_options_that_verbs_share_stand_once() -> None:
    said: dict[tuple[str, str], list[str]] = {}
    for module, path in modules().items():
        if room_of(module) == "commands":
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(call, ast.Call)
                    and call.args
                    and isinstance(call.args[0], ast.Constant)
                ):
                    help_text = [
                        ast.unparse(keyword.value)
                        for keyword in call.keywords
                        if keyword.arg == "help"
                    ]
                    if help_text and str(call.args[0].value).startswith("-"):
                        said.setdefault((str(call.args[0].value), help_text[0]), []).append(module)
    assert {key: verbs for key, verbs in said.items() if len(verbs) > 1} == {}, (
        "belongs into commands/options.py"
    )


def test_the_figure_shows_every_room_and_who_imports_whom(tmp_path: Path) -> None:
    figure = (ROOT / "docs" / "images" / "rooms.svg").read_text()
    drawn = set(re.findall(r">(\w+)</text>", figure))
    assert {
        room for room in FLOOR if room not in ("label_sets", "trainer", "nnunet_labelset")
    } <= drawn
    rooms(tmp_path)
    assert figure == (tmp_path / "rooms.svg").read_text(), (
        "draw it anew: python -m docs.figures rooms"
    )


def test_the_check_itself_sees_cycles() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": set()}) == []
