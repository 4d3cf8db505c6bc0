"""Complete label-sets with what a model is sure of: a new data set in which fewer voxels are left
open.

Every case is completed by the fold that did not train on it, from the probabilities that nnU-Net
saves with `--npz`. Inside a label-set only its own leaves count; what the annotation excludes stays
excluded. A completed case is a copy, so that validation keeps scoring against what people
annotated.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from nnunet_labelset.contract import Contract, LabelSet, Protocol
from nnunet_labelset.contract.completed import COMPLETED, originals
from nnunet_labelset.dataset_conversion.completions import (
    Completion,
    check_labels,
    find_completions,
)
from nnunet_labelset.dataset_conversion.storage import allocate
from nnunet_labelset.dataset_conversion.target import (
    COMPLETED_LABELS,
    COMPLETED_VOXELS,
    Target,
    publish,
    staged,
)
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import new_file, read_json, write_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import count_values
from nnunet_labelset.nnunet.models import reader_of
from nnunet_labelset.nnunet.names import DATASET, LISTED, NUM_TRAINING, PLANS, SPLITS, TRAINED
from nnunet_labelset.nnunet.raw import TRAINING, file_ending, raw_cases, read_dataset

SUFFIX = "__completed"


@dataclass(frozen=True)
class Completed:
    """What came of a case: the meaning of its values now, and how many of its open voxels are still
    open.
    """

    protocol: tuple[LabelSet, ...]
    open_before: int
    completed: int
    enlarged: int  # voxels whose label-set had to be stored as a larger one
    uses_ignore: bool


def complete_values(
    values: np.ndarray, probabilities: np.ndarray, sets: Sequence[LabelSet], threshold: float
) -> tuple[np.ndarray, Completed]:
    """New values for a label map, and their meaning.

    values `(*S)`, probabilities `(C, *S)`. A voxel with a larger label-set becomes the leaf whose
    probability, within the set, is at least `threshold`; elsewhere it keeps its set. Values are
    given out anew, because a value that stands for a larger set cannot stand for its leaf in the
    same case.
    """
    num_leaves = len(probabilities)
    leaf = np.full(values.shape, -1, np.int64)  # -1: as before
    open_voxels = 0
    for value, count in count_values(values).items():
        members = sorted(sets[value])
        where = values == value
        if len(members) == 1:
            leaf[where] = members[0]
            continue
        open_voxels += count
        inside = probabilities[members][:, where].astype(np.float64)  # (members, n)
        best = inside.argmax(0)
        total = inside.sum(0)
        sure = (total > 0) & (np.take_along_axis(inside, best[None], 0)[0] >= threshold * total)
        leaf[where] = np.where(sure, np.array(members)[best], -1)
    left = count_values(values[leaf < 0])
    wanted = {frozenset([known]) for known in count_values(leaf) if known >= 0} | {
        sets[value] for value in left
    }
    storage = allocate(wanted, num_leaves, sets[num_leaves] if len(sets) > num_leaves else None)
    for value in left:
        leaf[(leaf < 0) & (values == value)] = storage.value_of(sets[value])
    enlarged = sum(count for value, count in left.items() if sets[value] in storage.merged)
    completed = open_voxels - sum(left.values())
    return leaf, Completed(storage.sets(), open_voxels, completed, enlarged, storage.uses_ignore)


def complete_case(
    item: Completion, reader: Any, num_leaves: int, folder: Path, ending: str, threshold: float
) -> Completed:
    """Write the completed copy of a case and the mask of what was completed; nnU-Net's reader keeps
    the geometry.
    """
    assert item.case.label is not None
    values, properties = reader.read_seg(str(item.case.label))
    values = np.rint(values[0]).astype(np.int64)
    try:
        with np.load(item.probabilities) as content:
            probabilities = content["probabilities"]
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise LabelSetError(
            f"{item.probabilities}: not readable: {error}: validate again with --val --npz"
        ) from None
    if probabilities.shape != (expected := (num_leaves, *values.shape)):
        raise LabelSetError(
            f"{item.probabilities}: case '{item.case.name}': shape {probabilities.shape}, expected {expected} "
            "(leaves, label map): validate again with --val --npz"
        )
    highest = int(values.max(initial=0))
    if values.min(initial=0) < 0 or highest >= len(item.sets):
        raise LabelSetError(
            f"{item.case.label}: value {highest} is not declared: run 'nnunet_labelset verify'"
        )
    result, completed = complete_values(values, probabilities, item.sets, threshold)
    dtype = np.min_scalar_type(len(probabilities))
    name = f"{item.case.name}{SUFFIX}{ending}"
    _write(reader, result.astype(dtype), folder / COMPLETED_LABELS / name, properties)
    was_open = np.array([len(labels) > 1 for labels in item.sets])[values]
    is_open = np.array([len(labels) > 1 for labels in completed.protocol])[result]
    _write(
        reader, (was_open & ~is_open).astype(np.uint8), folder / COMPLETED_VOXELS / name, properties
    )
    return completed


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
            num_leaves=contract.num_leaves,
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
    num_leaves = contract.num_leaves
    has_ignore = contract.has_ignore or any(result.uses_ignore for result in results.values())
    made_by_model = originals(before)
    cases = {case: name for case, name in contract.cases.items() if case not in made_by_model}
    protocols = {name: contract.protocols[name] for name in dict.fromkeys(cases.values())}
    if has_ignore and not contract.has_ignore:
        protocols = {name: protocol.with_ignore() for name, protocol in protocols.items()}
    names: dict[tuple[tuple[LabelSet, ...], LabelSet], str] = {}
    files = {
        case.name: {
            "images": [_in_place(path, target) for path in case.images],
            "label": _in_place(case.label, target),
        }
        for case in raw_cases(source, before)
        if case.part == TRAINING and case.label is not None and case.name not in made_by_model
    }
    provenance = {}
    for item, result in results.items():
        name = f"{item.case.name}{SUFFIX}"
        if name in cases:
            raise LabelSetError(f"case '{name}' exists already in {source.name}: rename it")
        sets = result.protocol if has_ignore else result.protocol[:num_leaves]
        single = frozenset(leaf for leaf in range(num_leaves) if sets[leaf] == {leaf})
        disputed = single & Protocol(sets, num_leaves).uncertain
        kept = disputed & contract.protocol(item.case.name).vouched
        cases[name] = names.setdefault((sets, kept), f"completed_{len(names) + 1}")
        files[name] = {
            **files[item.case.name],
            "label": f"{COMPLETED_LABELS}/{name}{file_ending(before)}",
        }
        provenance[name] = {
            **{"of": item.case.name, "fold": item.fold},
            **{"open_voxels": result.open_before, "completed_voxels": result.completed},
        }
    if taken := sorted(set(names.values()) & set(protocols)):
        raise LabelSetError(f"{source.name} has protocols of the names {some(taken)}: rename them")
    protocols |= {name: Protocol(sets, num_leaves, kept) for (sets, kept), name in names.items()}
    after = replace(contract, protocols=protocols, cases=cases, has_ignore=has_ignore)
    return {
        **{
            key: value
            for key, value in before.items()
            if key not in (LISTED, "training", COMPLETED)
        },
        **after.to_dataset_json(),
        NUM_TRAINING: len(files),
        "name": target.name,
        LISTED: files,
        COMPLETED: {
            "cases": provenance,
            "voxels": f"{COMPLETED_VOXELS}/CASE: 1 where a model decided",
        },
    }


def _in_place(path: Path | None, target: Path) -> str:
    assert path is not None
    return os.path.relpath(path.resolve(), target.resolve())
