"""Where nnU-Net finds trainers: its own, ours, and those of `nnUNet_extTrainer`."""

from __future__ import annotations

import ast
import os
import re
from importlib.util import find_spec
from pathlib import Path

from nnunet_labelset.nnunet.names import EXTERNAL_TRAINERS

DEFAULT_TRAINER = "nnUNetTrainerLabelSet"
PRETRAINED_TRAINER = "nnUNetTrainerLabelSetPretrained"
# Every trainer of ours has these variants, written in this order: see trainers/variants.py.
LENGTHS = ("_5epochs", "_50epochs", "_100epochs", "_250epochs", "_short")
NO_MIRRORING = "_NoMirroring"
ONLY_MIRROR_01 = "_onlyMirror01"  # along the first two axes, or the first one in 2D


def _folder_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def trainers_folder() -> str:
    """The folder of `nnunet_labelset.trainers`, for nnU-Net's variable `nnUNet_extTrainer`."""
    return str(_folder_of("nnunet_labelset.trainers"))


def external_trainers() -> str:
    """Return the value of `nnUNet_extTrainer` that holds our trainers and those of the user."""
    given = [path for path in os.environ.get(EXTERNAL_TRAINERS, "").split(os.pathsep) if path]
    return os.pathsep.join(dict.fromkeys([trainers_folder(), *given]))


def has_pretraining() -> bool:
    """Tell whether this nnU-Net has trainers that fine-tune checkpoints of nnssl."""
    package = _folder_of("nnunetv2") / "training" / "nnUNetTrainer" / "pretraining"
    return (package / "pretrainedTrainer.py").is_file()


def known_trainers() -> set[str]:
    """Names of the classes in all folders of trainers.

    Read as text: importing nnU-Net's trainers takes many seconds, and a typing error should cost
    less than that.
    """
    folders = [_folder_of("nnunetv2") / "training" / "nnUNetTrainer"]
    folders += [Path(path) for path in external_trainers().split(os.pathsep)]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    sources = (path.read_text(encoding="utf-8", errors="replace") for path in files)
    names = {name for text in sources for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    methods = [name for name in _classes("nnunet_labelset.trainers") if "_" not in name]
    return names.union(methods, *map(variant_names, methods))


def variant_names(method: str) -> list[str]:
    """Return the names of a trainer's variants, without its own."""
    lengths = [f"{method}{length}" for length in LENGTHS]
    suffixes = (NO_MIRRORING, ONLY_MIRROR_01)
    return lengths + [f"{name}{suffix}" for suffix in suffixes for name in [method, *lengths]]


def described_trainers() -> dict[str, str]:
    """Return our trainers without their variants, the recommended ones first, each with its own
    words or those of its loss.
    """
    losses = {
        name: (ast.get_docstring(node) or name).splitlines()[0]
        for name, node in _classes("nnunet_labelset.losses").items()
    }
    found = {
        name: ast.get_docstring(node) or losses.get(_loss_of(node), "")
        for name, node in _classes("nnunet_labelset.trainers").items()
    }
    described = {}
    for name in sorted(found, key=lambda name: not name.startswith(DEFAULT_TRAINER)):
        description = re.sub(r"`weight_\w+` \* ", "", " ".join(found[name].split()))
        words = re.split(r"[.:]", description, maxsplit=1)[0]
        described[name] = words[:1].upper() + words[1:]
    return described


def _classes(package: str) -> dict[str, ast.ClassDef]:
    paths = sorted(_folder_of(package).glob("*.py"))
    if not has_pretraining():
        paths = [path for path in paths if path.name != "pretrained.py"]  # it would define nothing
    sources = [path.read_text(encoding="utf-8") for path in paths]
    nodes = (node for source in sources for node in ast.walk(ast.parse(source)))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def _loss_of(node: ast.ClassDef) -> str:
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "loss_class":
            return ast.unparse(line.value)
    return ""
