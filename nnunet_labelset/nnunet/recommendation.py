"""The one recommendation: which trainer for which data, in logs and in the lines that commands end
with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER, NO_MIRRORING
from nnunet_labelset.nnunet.folders import preprocessed_copy
from nnunet_labelset.nnunet.names import (
    BEFORE_CASCADE,
    CASCADE,
    CONFIGURATIONS,
    DATASET,
    DEFAULT_CONFIGURATION,
    DEFAULT_PLANS,
    EXTRACT_FINGERPRINT,
    PLAN_AND_PREPROCESS,
    PREPROCESS,
    SPLITS,
    data_of,
)
from nnunet_labelset.nnunet.raw import file_ending

TEACHER_TRAINER = f"{DEFAULT_TRAINER}Teacher"
SIDES = {
    **{"left": "right", "l": "r", "lh": "rh", "sin": "dex"},
    **{"links": "rechts", "li": "re"},
    **{"gauche": "droit", "droite": "gauche"},
    **{"izquierdo": "derecho", "izquierda": "derecha"},
    **{"sinistro": "destro", "sinistra": "destra"},
}
FLAT_ENDINGS = (".png", ".bmp", ".jpg", ".jpeg")  # images that have no third axis
MIRRORED_LABELS = "mirrored_labels"  # in dataset.json: all pairs, where names do not tell
FEW = 0.25  # of the training cases


def sided_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names that differ by left and right alone: 'LeftParotid' and 'RightParotid', 'kidney_l' and
    'kidney_r'.
    """
    words = {name: re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name) for name in names}
    by_words = {tuple(word.lower() for word in found): name for name, found in words.items()}
    pairs = []
    for key, name in by_words.items():
        other = tuple(SIDES.get(word, word) for word in key)
        if other != key and other in by_words:
            pairs.append((name, by_words[other]))
    return pairs


def paired_labels(names: Sequence[str], dataset_json: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of labels that differ by side: those that dataset.json lists, or by name.

    names: of all labels, background first.
    """
    listed = dataset_json.get(MIRRORED_LABELS)
    if listed is None:
        return sided_pairs(names)
    is_list_of_pairs = isinstance(listed, list) and all(map(_is_pair, listed))
    pairs = [tuple(pair) for pair in listed] if is_list_of_pairs else []
    paired = [name for pair in pairs for name in pair]
    if not is_list_of_pairs or len({*paired}) < len(paired) or not {*paired} <= {*names[1:]}:
        raise LabelSetError(
            f"Expected '{MIRRORED_LABELS}' in dataset.json to list pairs of labels, each label "
            f"once, but got {listed!r}"
        )
    return pairs


def _is_pair(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(n, str) for n in entry)


def recommended_trainer(pairs: Sequence[tuple[str, str]]) -> str:
    """For a network with these pairs of labels that differ by side."""
    return DEFAULT_TRAINER + (NO_MIRRORING if pairs else "")


def next_commands(
    dataset: str | int,
    folder: Path,
    names: Sequence[str],
    preprocessed: bool = False,
    configuration: str = "",
) -> list[str]:
    """Return what to type after a data set was written or declared.

    `preprocessed`: nnU-Net's files of this data set, if there are any, are still valid.
    `configuration`: the one to train first, where the caller knows it.
    """
    plans = planned_folder(folder) if preprocessed else None
    has_splits = plans is not None and (plans / SPLITS).is_file()
    configuration = configuration or likely_configuration(folder, plans)
    trainer = recommended_trainer(paired_labels(names, read_json(folder / DATASET)))
    steps = {
        f"nnunet_labelset verify -d {dataset}": True,
        f"{PLAN_AND_PREPROCESS} -d {dataset}": plans is None,
        f"nnunet_labelset splits -d {dataset}": not has_splits,
        f"nnunet_labelset train {dataset} {configuration} 0 -tr {trainer}": True,
    }
    return [f"  {command}" for command, is_open in steps.items() if is_open]


def planned_folder(folder: Path) -> Path | None:
    """Return where nnU-Net preprocessed a raw data set; None if it has not planned it yet."""
    copy = preprocessed_copy(folder)
    if copy is None or not (copy.parent / f"{DEFAULT_PLANS}.json").is_file():
        return None
    return copy.parent


def likely_configuration(folder: Path, planned: Path | None) -> str:
    """Return the configuration to train first: 3D where nnU-Net planned it, or would plan it."""
    first, *_ = CONFIGURATIONS
    if planned is None:
        ending = file_ending(read_json(folder / DATASET))
        return first if ending in FLAT_ENDINGS else DEFAULT_CONFIGURATION
    configurations = read_json(planned / f"{DEFAULT_PLANS}.json").get("configurations", {})
    return DEFAULT_CONFIGURATION if DEFAULT_CONFIGURATION in configurations else first


def next_commands_with_plans(
    number: int, plans: str, configuration: str, trainer: str
) -> list[str]:
    """What to type after the plans of a model were given to a data set."""
    commands = [
        f"  {EXTRACT_FINGERPRINT} -d {number}",
        f"  {PREPROCESS} -d {number} -plans_name {plans} -c {' '.join(data_of(configuration))}",
        f"  nnunet_labelset train {number} {configuration} 0 -tr {trainer} -p {plans}",
    ]
    # it trains on what all folds of the stage before it have predicted
    if configuration == CASCADE:
        commands.insert(
            2,
            f"  nnunet_labelset train {number} {BEFORE_CASCADE} 0 -tr {trainer} -p {plans}  # "
            "every fold",
        )
    return commands


def reasons(
    coverage: Mapping[str, int], cases: int, patch: Sequence[int], volume: Sequence[int]
) -> list[str]:
    """Why the recommended trainer, from the data: `coverage` counts the training cases that
    annotate each label.
    """
    found = []
    if coverage.get("background") == 0:
        found.append(
            "no case annotates background (a Dice loss alone never sees it; cross entropy does)"
        )
    if any(p < v for p, v in zip(patch, volume, strict=False)):
        found.append(
            f"the patch ({_size(patch)}) is smaller than the median volume ({_size(volume)}), so "
            "that many patches lack a label (the Dice of one batch says nothing about it there; a "
            "running Dice does)"
        )
    few = [
        f"'{label}' {n} of {cases}"
        for label, n in coverage.items()
        if 0 < n <= FEW * cases and label != "background"
    ]
    if few:
        found.append(f"few cases annotate {some(few, 5)} (cases are drawn so that it is seen)")
    return found


def _size(numbers: Sequence[int]) -> str:
    return "x".join(f"{number:.0f}" for number in numbers)
