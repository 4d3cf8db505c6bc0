"""Complete label-sets with what a model is sure of: a new data set in which fewer voxels are left
open.

Every case is completed by the fold that did not train on it, from the probabilities that nnU-Net
saves with `--npz`. Inside a label-set only its own leaves count; what the annotation excludes stays
excluded. A completed case is a copy, so that validation keeps scoring against what people
annotated.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from nnunet_labelset.contract import Contract, LabelSet, Protocol
from nnunet_labelset.contract.completed import COMPLETED, originals
from nnunet_labelset.contract.storage import store
from nnunet_labelset.dataset_conversion.completions import (
    Completion,
    check_labels,
    find_completions,
)
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import new_file, read_json, write_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import count_values, integer_array
from nnunet_labelset.nnunet.models import reader_of
from nnunet_labelset.nnunet.names import DATASET, LISTED, NUM_TRAINING, PLANS, SPLITS, TRAINED
from nnunet_labelset.nnunet.publish import (
    COMPLETED_LABELS,
    COMPLETED_VOXELS,
    Target,
    publish,
    staged,
)
from nnunet_labelset.nnunet.raw import TRAINING, file_ending, raw_cases, read_dataset

SUFFIX = "__completed"
CHUNK = 2**22  # probabilities that are looked at together


@dataclass(frozen=True)
class Completed:
    """The protocol of a completed case, and numbers of voxels."""

    protocol: Protocol
    open_before: int
    completed: int
    enlarged: int  # voxels whose label-set had to be stored as a larger one


def complete_values(
    values: np.ndarray, probabilities: np.ndarray, protocol: Protocol, threshold: float
) -> tuple[np.ndarray, Completed]:
    """Return new values for a label map, and what they mean.

    values `(*S)`, probabilities `(C, *S)`. A voxel with a larger label-set becomes the leaf whose
    probability, within the set, is at least `threshold`; elsewhere it keeps its set. Values are
    given out again, because a value that stands for a larger set cannot stand for its leaf in the
    same case.
    """
    leaf_map, open_before = _decide(values, probabilities, protocol, threshold)
    is_open = leaf_map < 0
    still_open = count_values(values[is_open])
    decided = [frozenset([leaf]) for leaf in count_values(leaf_map[~is_open])]
    storage = store(
        sets=[*decided, *(protocol.sets[value] for value in still_open)],
        annotated=_annotated(protocol, count_values(values), still_open),
        num_leaves=protocol.num_leaves,
        for_ignore=protocol.sets[-1] if protocol.has_ignore else frozenset(),
    )
    for value in still_open:
        leaf_map[is_open & (values == value)] = storage.value[protocol.sets[value]]
    enlarged = [value for value in still_open if protocol.sets[value] in storage.enlarged]
    return leaf_map, Completed(
        protocol=storage.protocol,
        open_before=open_before,
        completed=open_before - sum(still_open.values()),
        enlarged=sum(still_open[value] for value in enlarged),
    )


def _decide(
    values: np.ndarray, probabilities: np.ndarray, protocol: Protocol, threshold: float
) -> tuple[np.ndarray, int]:
    """Return the leaf of every voxel, -1 where it stays open, and how many were open before.

    Works in chunks, so that no second copy of the probabilities is made.
    """
    leaf_map = np.full(values.shape, -1, np.min_scalar_type(-protocol.num_leaves - 1))
    open_before = 0
    for start in range(0, len(values), rows := _rows_of_a_chunk(values, len(probabilities))):
        chunk = slice(start, start + rows)
        for value, count in count_values(values[chunk]).items():
            members = np.array(sorted(protocol.sets[value]))
            where = values[chunk] == value
            if len(members) == 1:
                leaf_map[chunk][where] = members[0]
                continue
            open_before += count
            inside = np.stack([probabilities[leaf, chunk][where] for leaf in members])
            leaf_map[chunk][where] = _sure_leaves(inside.astype(np.float64), members, threshold)
    return leaf_map, open_before


def _rows_of_a_chunk(values: np.ndarray, num_leaves: int) -> int:
    row = max(1, values[:1].size * num_leaves)
    return max(1, CHUNK // row)


def _sure_leaves(inside: np.ndarray, members: np.ndarray, threshold: float) -> np.ndarray:
    """Return the leaf of each voxel, -1 if the model is not sure. inside: `(members, voxels)`."""
    best = inside.argmax(0)
    total = inside.sum(0)
    highest = np.take_along_axis(inside, best[None], 0)[0]
    return np.where((total > 0) & (highest >= threshold * total), members[best], -1)


def _annotated(
    protocol: Protocol, values: Collection[int], still_open: Collection[int]
) -> LabelSet:
    """Return the leaves that count as annotated after completion.

    Those that people annotated, and those about which every open voxel was decided.
    """
    stated = protocol.stated_sets
    larger = {value: stated[value] for value in values if len(stated.get(value, ())) > 1}
    in_question = frozenset[int]().union(*larger.values())
    undecided = frozenset[int]().union(*(larger.get(value, ()) for value in still_open))
    return protocol.annotated | (in_question - undecided)


def complete_case(
    item: Completion, reader: Any, folder: Path, ending: str, threshold: float
) -> Completed:
    """Write the completed copy of a case and the mask of what was completed.

    nnU-Net's reader keeps the geometry.
    """
    assert item.case.label is not None
    array, properties = reader.read_seg(str(item.case.label))
    values = integer_array(array[0], item.case.label)
    probabilities = _read_probabilities(item, values.shape)
    lowest, highest = int(values.min(initial=0)), int(values.max(initial=0))
    if lowest < 0 or highest >= len(item.protocol.sets):
        undeclared = lowest if lowest < 0 else highest
        raise LabelSetError(
            f"{item.case.label}: value {undeclared} is not declared: run 'nnunet_labelset verify'"
        )
    result, completed = complete_values(values, probabilities, item.protocol, threshold)
    del probabilities
    dtype = np.min_scalar_type(item.protocol.num_leaves)
    name = f"{item.case.name}{SUFFIX}{ending}"
    _write(reader, result.astype(dtype), folder / COMPLETED_LABELS / name, properties)
    was_open = _open_values(item.protocol)[values]
    is_open = _open_values(completed.protocol)[result]
    decided = (was_open & ~is_open).astype(np.uint8)
    _write(reader, decided, folder / COMPLETED_VOXELS / name, properties)
    return completed


def _open_values(protocol: Protocol) -> np.ndarray:
    return np.array([len(labels) > 1 for labels in protocol.sets])


def _read_probabilities(item: Completion, shape: tuple[int, ...]) -> np.ndarray:
    try:
        with np.load(item.probabilities) as content:
            probabilities = content["probabilities"]
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise LabelSetError(
            f"{item.probabilities}: not readable: {error}: validate again with --val --npz"
        ) from None
    if probabilities.shape != (expected := (item.protocol.num_leaves, *shape)):
        raise LabelSetError(
            f"{item.probabilities}: case '{item.case.name}': shape {probabilities.shape}, "
            f"expected {expected} (labels, label map): validate again with --val --npz"
        )
    return probabilities


def _write(reader: Any, values: np.ndarray, path: Path, properties: Mapping[str, Any]) -> None:
    """nnU-Net's writer says nothing when the disk is full: what it wrote is read back before it
    gets its name.
    """
    with new_file(path, flush=False) as temporary:
        reader.write_seg(values, str(temporary), properties)
        if not np.array_equal(reader.read_seg(str(temporary))[0][0], values):
            raise LabelSetError(f"{path}: not written as it should be: is the disk full?")


def write_completed(
    source: Path,
    target: Path,
    preprocessed: Path,
    model: Path,
    splits: Sequence[Mapping[str, Any]],
    threshold: float,
    processes: int,
) -> list[str]:
    """Write the data set `target`, which lists the files of `source` in place; returns notes.

    Its folder `preprocessed` gets the same folds and the plans of the model, so that nothing but
    the annotation differs, and plans of one's own need no planner.
    """
    if target.exists():
        raise LabelSetError(f"{target} exists: remove it, or choose another id or name")
    plans = read_json(model / PLANS)
    small = {SPLITS, f"{plans['plans_name']}.json", DATASET}
    left = {path.name for path in preprocessed.iterdir()} if preprocessed.is_dir() else set()
    if left - small or preprocessed.is_file():  # the small ones are those of a run that was ended
        raise LabelSetError(f"{preprocessed} exists: remove it, or choose another id or name")
    dataset_json, contract = read_dataset(source)
    check_labels(model, contract, source.name)
    items, without_fold = find_completions(source, dataset_json, contract, model, splits)
    ending = file_ending(dataset_json)
    new = Target(target)
    with staged(new, ()) as staging:
        work = partial(
            complete_case,
            reader=reader_of(model),
            folder=staging,
            ending=ending,
            threshold=threshold,
        )
        results = dict(map_parallel(work, items, processes, "Completing"))
        kept = [item for item in items if results[item].completed]
        if not kept:
            raise LabelSetError(
                f"the model is nowhere sure enough (threshold {threshold}): nothing was completed"
            )
        content = _dataset_json(
            dataset_json, contract, source, target, {item: results[item] for item in kept}
        )
        content[COMPLETED] |= {"from": source.name, "model": model.name, "threshold": threshold}
        folders = (COMPLETED_LABELS, COMPLETED_VOXELS)
        # first, so that a data set that is there can be trained on
        write_json(preprocessed / SPLITS, completed_splits(splits, dataset_json, content))
        write_json(
            preprocessed / f"{plans['plans_name']}.json", {**plans, "dataset_name": target.name}
        )
        write_json(preprocessed / DATASET, content)
        publish(
            new,
            [f"{name}/{item.case.name}{SUFFIX}{ending}" for item in kept for name in folders],
            content,
        )
    notes = []
    for item in kept:
        result = results[item]
        enlarged = (
            f"; {result.enlarged} of them in a larger label-set, as values ran out"
            if result.enlarged
            else ""
        )
        share = result.completed / result.open_before
        notes.append(
            f"{item.case.name}: {share:.1%} of {result.open_before} open voxels completed{enlarged}"
        )
    if without_fold:
        notes.append(f"note: {some(without_fold)}: in no validation fold, so left as annotated")
    return notes


def completed_splits(
    splits: Sequence[Mapping[str, Any]], before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The same folds: training on completed copies where there are any, validation on what people
    annotated.

    before, after: `dataset.json`; in a second round the splits name the copies of the first.
    """
    made_of = originals(before)
    copies = {original: case for case, original in originals(after).items()}
    annotated = [
        {part: [made_of.get(case, case) for case in cases] for part, cases in split.items()}
        for split in splits
    ]
    return [
        {**split, TRAINED: [copies.get(case, case) for case in split[TRAINED]]}
        for split in annotated
    ]


def _dataset_json(
    before: Mapping[str, Any],
    contract: Contract,
    source: Path,
    target: Path,
    results: Mapping[Completion, Completed],
) -> dict[str, Any]:
    """Return dataset.json: the annotated cases in place, and the completed copies beside them."""
    copies = {f"{item.case.name}{SUFFIX}": item for item in results}
    completed = {name: results[item] for name, item in copies.items()}
    after = _contract_with_copies(contract, originals(before), completed, source.name)
    files = _files_in_place(source, target, before)
    for name, item in copies.items():
        label = f"{COMPLETED_LABELS}/{name}{file_ending(before)}"
        files[name] = {**files[item.case.name], "label": label}
    provenance = {
        name: {
            "of": item.case.name,
            "fold": item.fold,
            "open_voxels": completed[name].open_before,
            "completed_voxels": completed[name].completed,
        }
        for name, item in copies.items()
    }
    voxels = f"{COMPLETED_VOXELS}/CASE: 1 where a model decided"
    kept = {key: before[key] for key in before if key not in (LISTED, "training", COMPLETED)}
    return {
        **kept,
        **after.to_dataset_json(),
        NUM_TRAINING: len(files),
        "name": target.name,
        LISTED: files,
        COMPLETED: {"cases": provenance, "voxels": voxels},
    }


def _contract_with_copies(
    contract: Contract,
    made_by_model: Collection[str],
    completed: Mapping[str, Completed],
    dataset: str,
) -> Contract:
    """Return the contract of the annotated cases and of the new copies."""
    cases = {case: name for case, name in contract.cases.items() if case not in made_by_model}
    if taken := sorted(completed.keys() & cases.keys()):
        raise LabelSetError(f"case '{taken[0]}' exists already in {dataset}: rename it")
    protocols = {name: contract.protocols[name] for name in dict.fromkeys(cases.values())}
    names: dict[Protocol, str] = {}
    for case, result in completed.items():
        cases[case] = names.setdefault(result.protocol, f"completed_{len(names) + 1}")
    if taken := sorted(set(names.values()) & set(protocols)):
        raise LabelSetError(f"{dataset} has protocols of the names {some(taken)}: rename them")
    protocols |= {name: protocol for protocol, name in names.items()}
    has_ignore = contract.has_ignore or any(protocol.has_ignore for protocol in names)
    if has_ignore:
        protocols = {name: protocol.with_ignore() for name, protocol in protocols.items()}
    return replace(contract, protocols=protocols, cases=cases, has_ignore=has_ignore)


def _files_in_place(
    source: Path, target: Path, dataset_json: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the files of the annotated training cases, relative to the new data set."""
    made_by_model = originals(dataset_json)
    return {
        case.name: {
            "images": [_in_place(path, target) for path in case.images],
            "label": _in_place(case.label, target),
        }
        for case in raw_cases(source, dataset_json)
        if case.part == TRAINING and case.name not in made_by_model
    }


def _in_place(path: Path | None, target: Path) -> str:
    assert path is not None
    return os.path.relpath(path.resolve(), target.resolve())
