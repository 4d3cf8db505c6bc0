"""Complete label-sets with what a model is sure of: a new data set in which fewer voxels are left
open.

Every case is completed by the fold that did not train on it, from the probabilities that nnU-Net
saves with `--npz`. Inside a label-set only its own leaves count; what the annotation excludes stays
excluded. A completed case is a copy, so that validation keeps scoring against what people
annotated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from nnunet_labelset.contract import LabelSet, Protocol
from nnunet_labelset.contract.completed import COMPLETED, originals
from nnunet_labelset.contract.storage import store
from nnunet_labelset.dataset_conversion.completed_dataset import (
    SUFFIX,
    dataset_json_with_copies,
)
from nnunet_labelset.dataset_conversion.completions import (
    Completion,
    check_labels,
    find_completions,
)
from nnunet_labelset.dataset_conversion.statements import Completed
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import new_file, read_json, remove_temporaries, write_json
from nnunet_labelset.io.npz import Slab, read_slabs
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import count_values, integer_array
from nnunet_labelset.nnunet.models import reader_of
from nnunet_labelset.nnunet.names import (
    DATASET,
    PLANS,
    SPLITS,
    TRAINED,
    VALIDATED,
)
from nnunet_labelset.nnunet.publish import (
    COMPLETED_LABELS,
    COMPLETED_VOXELS,
    Target,
    publish,
    staged,
)
from nnunet_labelset.nnunet.raw import check_unchanged, file_ending, read_dataset

FOLDERS = (COMPLETED_LABELS, COMPLETED_VOXELS)
PLANS_NAME = "plans_name"


def complete_values(
    values: np.ndarray, probabilities: Iterable[Slab], protocol: Protocol, threshold: float
) -> tuple[np.ndarray, Completed]:
    """Return new values for a label map, and what they mean.

    values `(*S)`, probabilities: slabs of `(C, *S)`. A voxel with a larger label-set becomes the
    leaf whose probability, within the set, is at least `threshold`; elsewhere it keeps its set.
    Values are given out again, because a value that stands for a larger set cannot stand for its
    leaf in the same case.
    """
    leaf_map = _decide(values, probabilities, protocol, threshold)
    is_open = leaf_map < 0
    still_open = count_values(values[is_open])
    decided = [frozenset([leaf]) for leaf in count_values(leaf_map[~is_open])]
    before = count_values(values)
    storage = store(
        sets=[*decided, *(protocol.sets[value] for value in still_open)],
        annotated=_annotated(protocol, before, still_open),
        num_leaves=protocol.num_leaves,
        for_ignore=protocol.sets[-1] if protocol.has_ignore else frozenset(),
        voxels={protocol.sets[value]: count for value, count in still_open.items()},
    )
    for value in still_open:
        leaf_map[is_open & (values == value)] = storage.value[protocol.sets[value]]
    enlarged = [value for value in still_open if protocol.sets[value] in storage.enlarged]
    open_before = _open_voxels(before, protocol)
    return leaf_map, Completed(
        protocol=storage.protocol,
        open_before=open_before,
        completed=open_before - sum(still_open.values()),
        enlarged=sum(still_open[value] for value in enlarged),
    )


def _open_voxels(counts: Mapping[int, int], protocol: Protocol) -> int:
    """Return how many voxels have a larger label-set."""
    return sum(count for value, count in counts.items() if len(protocol.sets[value]) > 1)


def _decide(
    values: np.ndarray, probabilities: Iterable[Slab], protocol: Protocol, threshold: float
) -> np.ndarray:
    """Return the leaf of every voxel, -1 where it stays open.

    Channels come one after the other: of each open voxel, only the sum over the leaves of its
    label-set and the highest of them are kept.
    """
    is_larger = protocol.membership.sum(1) > 1
    dtype = np.min_scalar_type(-protocol.num_leaves - 1)
    certain = np.where(is_larger, -1, protocol.membership.argmax(1)).astype(dtype)
    row = values.reshape(-1)
    leaves = certain[row]
    total = np.zeros(row.size)
    highest = np.zeros(row.size)
    for slab in probabilities:
        is_member = (is_larger & protocol.membership[:, slab.channel])[row[slab.part]]
        total[slab.part] += np.where(is_member, slab.voxels, 0)
        is_better = is_member & (slab.voxels > highest[slab.part])
        highest[slab.part][is_better] = slab.voxels[is_better]
        leaves[slab.part][is_better] = slab.channel
    is_sure = total > 0
    total *= threshold
    is_sure &= highest >= total
    leaves[is_larger[row] & ~is_sure] = -1
    return leaves.reshape(values.shape)


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
    lowest, highest = int(values.min(initial=0)), int(values.max(initial=0))
    if lowest < 0 or highest >= len(item.protocol.sets):
        undeclared = lowest if lowest < 0 else highest
        raise LabelSetError(
            f"{item.case.label}: value {undeclared} is not declared: run 'nnunet_labelset verify'"
        )
    probabilities = _read_probabilities(item, values.shape)
    result, completed = complete_values(values, probabilities, item.protocol, threshold)
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


def _read_probabilities(item: Completion, shape: tuple[int, ...]) -> Iterator[Slab]:
    try:
        expected = (item.protocol.num_leaves, *shape)
        yield from read_slabs(item.probabilities, "probabilities", expected)
    except LabelSetError as error:
        raise LabelSetError(
            f"case '{item.case.name}': {error}: validate again with --val --npz"
        ) from None


def _write(reader: Any, values: np.ndarray, path: Path, properties: Mapping[str, Any]) -> None:
    """nnU-Net's writer says nothing when the disk is full: what it wrote is read back before it
    gets its name.
    """
    with new_file(path, flush=False) as temporary:
        reader.write_seg(values, str(temporary), properties)
        if not _holds(reader, temporary, values):
            raise LabelSetError(f"{path}: not written correctly: is the disk full?")


def _holds(reader: Any, path: Path, values: np.ndarray) -> bool:
    try:
        return np.array_equal(reader.read_seg(str(path))[0][0], values)
    except Exception:  # readers raise whatever they stumble over
        return False


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
    plans = _read_plans(model)
    _check_unused(preprocessed, plans)
    dataset_json, contract = read_dataset(source)
    check_labels(model, contract, source.name)
    items, without_fold = find_completions(source, dataset_json, contract, model, splits)
    ending = file_ending(dataset_json)
    with staged(Target(target), ()) as staging:
        work = partial(
            complete_case,
            reader=reader_of(model),
            folder=staging,
            ending=ending,
            threshold=threshold,
        )
        results = dict(map_parallel(work, items, processes, "Completing"))
        check_unchanged(source, dataset_json)
        kept = {item: results[item] for item in items if results[item].completed}
        if not kept:
            raise LabelSetError(
                f"no voxel reaches the threshold {threshold}: nothing was completed"
            )
        content = dataset_json_with_copies(
            dataset_json,
            contract,
            source,
            target,
            completed={item.case.name: results[item] for item in kept},
            provenance={item.case.name: {"fold": item.fold} for item in kept},
        )
        content[COMPLETED] |= {"from": source.name, "model": model.name, "threshold": threshold}
        names = [f"{item.case.name}{SUFFIX}{ending}" for item in kept]
        files = [f"{folder}/{name}" for folder, name in product(FOLDERS, names)]
        small_files = {
            preprocessed / SPLITS: completed_splits(splits, dataset_json, content),
            preprocessed / _plans_file(plans): {**plans, "dataset_name": target.name},
            preprocessed / DATASET: content,
        }
        with _written_before(target, small_files):
            publish(Target(target), files, content)
    return list(_notes(kept, without_fold))


def _notes(kept: Mapping[Completion, Completed], without_fold: Sequence[str]) -> Iterator[str]:
    yield from (_note(item.case.name, result) for item, result in kept.items())
    if without_fold:
        yield f"note: {some(without_fold)}: in no validation fold, so left as annotated"


@contextmanager
def _written_before(target: Path, files: Mapping[Path, Any]) -> Iterator[None]:
    """Write JSON files before the data set, so that one that is there can be trained on.

    They go if it does not get there.
    """
    try:
        for path, content in files.items():
            write_json(path, content)
        yield
    except Exception:  # whoever interrupts may go on: the next run replaces them
        if not target.exists():
            for path in files:
                path.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                next(iter(files)).parent.rmdir()
        raise


def _read_plans(model: Path) -> dict[str, Any]:
    plans = read_json(model / PLANS)
    name = plans.get(PLANS_NAME)
    if not isinstance(name, str) or not name:
        raise LabelSetError(f"{model / PLANS}: '{PLANS_NAME}' must name the plans: {name!r}")
    return plans


def _plans_file(plans: Mapping[str, Any]) -> str:
    return f"{plans[PLANS_NAME]}.json"


def _check_unused(preprocessed: Path, plans: Mapping[str, Any]) -> None:
    """Fail if another data set was preprocessed there; what a stopped run has left is replaced."""
    if preprocessed.is_dir():
        remove_temporaries(preprocessed)
    small_files = {SPLITS, _plans_file(plans), DATASET}
    present = {path.name for path in preprocessed.iterdir()} if preprocessed.is_dir() else set()
    if present - small_files or preprocessed.is_file():
        raise LabelSetError(f"{preprocessed} exists: remove it, or choose another id or name")


def _note(case: str, result: Completed) -> str:
    share = result.completed / result.open_before
    note = f"{case}: {share:.1%} of {result.open_before} open voxels completed"
    if result.enlarged:
        note += f"; {result.enlarged} of them with a larger label-set because values ran out"
    return note


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
        {part: [made_of.get(case, case) for case in split[part]] for part in (TRAINED, VALIDATED)}
        for split in splits
    ]
    return [
        {**split, TRAINED: [copies.get(case, case) for case in split[TRAINED]]}
        for split in annotated
    ]
