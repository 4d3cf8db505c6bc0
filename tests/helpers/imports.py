"""Who imports whom in the package, read from the source without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "nnunet_labelset"
# folders at the top level that are installed inside the package
OUTER = ("trainers", "dataset_conversion")


# Floors from the ground up: a module imports from its own room or from a lower floor, never from a
# neighbour.
FLOORS = (
    ("errors",),
    ("io",),
    ("contract",),
    ("losses", "evaluation"),
    ("nnunet",),
    ("training", "datasets"),
    ("trainers", "dataset_conversion"),  # a conversion shows the coverage of what it wrote
    ("report", "study"),
    ("audit",),  # its page has the shell of a report
    ("commands",),
    # The way in: the command, the public names, and the places where names were found before there
    # were rooms.
    ("nnunet_labelset", "cli", "label_sets", "selftest", "trainer"),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def modules() -> dict[str, Path]:
    """Every module of the installed package by its name, such as `nnunet_labelset.io.files`."""
    found = {}
    for folder in (PACKAGE, *OUTER):
        for path in sorted((ROOT / folder).rglob("*.py")):
            words = path.relative_to(ROOT).with_suffix("").parts
            words = words if folder == PACKAGE else (PACKAGE, *words)
            found[".".join(words).removesuffix(".__init__")] = path
    return found


def room_of(module: str) -> str:
    """`io` for `nnunet_labelset.io.files`; a module that lies beside the rooms is a room of its
    own.
    """
    return module.split(".")[1] if "." in module else module


def imported_names(path: Path) -> Iterator[str]:
    """What a file imports, absolutely, wherever the import stands; `from a import b` is `a.b`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import: write it in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_graph() -> dict[str, set[str]]:
    """Modules of the package that each module imports."""
    known = modules()
    graph: dict[str, set[str]] = {module: set() for module in known}
    for module, path in known.items():
        for name in imported_names(path):
            target = name if name in known else name.rpartition(".")[0]
            # The version is set before the package imports anything, so that everybody may read it.
            if target in known and target != module and name != f"{PACKAGE}.__version__":
                graph[module].add(target)
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or around corners."""
    reached = {module: _reachable(graph, module) for module in graph}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in graph
        if module in reached[module]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen
