"""A new data set in which teachers have filled in what the annotation leaves open.

Teachers are folders of predictions: of trained models, or from anywhere. As `complete` does, the
cases that people annotated stay for validation, and completed copies are for training. Cases
without any annotation are completed too: people only have to bring images.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnunet_labelset.contract import BLOCK, Contract, LabelSet, Protocol
from nnunet_labelset.contract.completed import COMPLETED, originals
from nnunet_labelset.dataset_conversion.complete import completed_splits
from nnunet_labelset.dataset_conversion.completed_dataset import copy_name, dataset_json_with_copies
from nnunet_labelset.dataset_conversion.predictions import Predictions, predictions_of_folder
from nnunet_labelset.dataset_conversion.statements import NONE, Taught, taught_values
from nnunet_labelset.datasets.folds import k_folds, subjects_of
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import case_files, read_json, write_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.place import Place
from nnunet_labelset.io.text import some
from nnunet_labelset.io.volume import integer_array, read_voxels, write_voxels
from nnunet_labelset.nnunet.folders import check_free, find_dataset, nnunet_folder
from nnunet_labelset.nnunet.models import read_splits
from nnunet_labelset.nnunet.names import (
    DATASET,
    LABELS_TRAINING,
    LISTED,
    PLAN_AND_PREPROCESS,
    PREPROCESSED,
    RAW,
    SPLITS,
)
from nnunet_labelset.nnunet.publish import (
    COMPLETED_LABELS,
    COMPLETED_VOXELS,
    Target,
    dataset_folder,
    publish,
    staged,
)
from nnunet_labelset.nnunet.raw import TRAINING, RawCase, file_ending, raw_cases, read_dataset
from nnunet_labelset.nnunet.recommendation import (
    likely_configuration,
    paired_labels,
    recommended_trainer,
)
from nnunet_labelset.nnunet.teachers import check_teacher, predict_cases

NOT_ANNOTATED = "not_annotated"  # the protocol of cases that are images alone
FOLDS = 5
WORK = "teachers"  # folder of predictions that are made on the way

Teachers = Sequence[Predictions]


@dataclass(frozen=True)
class Source:
    """The data set that is to be completed."""

    folder: Path
    dataset_json: dict[str, Any]
    contract: Contract
    cases: tuple[RawCase, ...]  # training cases as people left them
    has_annotation: bool

    @classmethod
    def read(cls, dataset: str) -> Source:
        """Read a data set; one without any label map is a folder of images."""
        folder = find_dataset(dataset)
        dataset_json = read_json(folder / DATASET)
        training = [case for case in raw_cases(folder, dataset_json) if case.part == TRAINING]
        copies = originals(dataset_json)
        cases = tuple(case for case in training if case.name not in copies)
        if not cases:
            raise LabelSetError(f"{folder}: no training images")
        has_annotation = (
            BLOCK in dataset_json
            or LISTED in dataset_json
            or bool(case_files(folder / LABELS_TRAINING, file_ending(dataset_json)))
        )
        if has_annotation:
            dataset_json, contract = read_dataset(folder)
        else:
            contract = _contract_of_images(dataset_json, cases)
        if contract.regions is not None:
            raise LabelSetError(
                f"{folder.name} has regions: a teacher sees labels, and cannot tell regions"
            )
        return cls(folder.resolve(), dataset_json, contract, cases, has_annotation)

    @property
    def ending(self) -> str:
        return file_ending(self.dataset_json)

    def restricted(self, names: Collection[str]) -> Source:
        """Return the data set without its other cases."""
        protocols = {
            name: protocol for name, protocol in self.contract.cases.items() if name in names
        }
        return replace(
            self,
            contract=replace(self.contract, cases=protocols),
            cases=tuple(case for case in self.cases if case.name in names),
        )


def _contract_of_images(dataset_json: Mapping[str, Any], cases: Sequence[RawCase]) -> Contract:
    """Return a contract in which every voxel of every case may be every label."""
    contract = replace(Contract.of_labels(dataset_json), has_ignore=True)
    complete = Protocol.complete(contract.num_leaves, has_ignore=True)
    return replace(
        contract,
        protocols={NOT_ANNOTATED: replace(complete, states_ignore=True)},
        cases={case.name: NOT_ANNOTATED for case in cases},
    )


@dataclass(frozen=True)
class Destination:
    """The data set that is to be written, and its folder for preprocessed files."""

    number: int
    folder: Path

    @classmethod
    def choose(cls, number: int, name: str) -> Destination:
        """Return the place of a new data set; one that is taken is an error."""
        folder = dataset_folder(nnunet_folder(RAW), number, name)
        check_free(number, begun=folder.name)
        destination = cls(number, folder)
        preprocessed = destination.preprocessed
        present = {path.name for path in preprocessed.glob("*")}
        if preprocessed.is_file() or present - {SPLITS, DATASET, WORK}:
            raise LabelSetError(f"{preprocessed} exists: remove it, or choose another id or name")
        return destination

    @property
    def preprocessed(self) -> Path:
        return nnunet_folder(PREPROCESSED) / self.folder.name

    @property
    def work(self) -> Path:
        """Where predictions are kept until the data set is written."""
        return self.preprocessed / WORK


@dataclass(frozen=True)
class Lesson:
    """A case, and the folders that have a prediction for it."""

    case: RawCase
    protocol: Protocol
    teachers: tuple[Predictions, ...]
    is_annotated: bool


@dataclass(frozen=True)
class LessonResult:
    """What became of a case, and what its predictions showed."""

    taught: Taught
    seen: LabelSet
    unknown: tuple[tuple[str, str], ...]  # table, and a value or mask that it does not list


def teach_case(lesson: Lesson, folder: Path, ending: str) -> LessonResult:
    """Write the completed copy of a case and the mask of what its teachers decided."""
    values, place = _read_annotation(lesson)
    readings = [teacher.read(lesson.case.name, place) for teacher in lesson.teachers]
    answers = [answer for reading in readings for answer in reading.answers]
    result, is_narrowed, taught = taught_values(values, answers, lesson.protocol)
    name = f"{copy_name(lesson.case.name)}{ending}"
    dtype = np.min_scalar_type(lesson.protocol.num_leaves)
    write = partial(write_voxels, place=place, flush=False)
    write(folder / COMPLETED_LABELS / name, result.astype(dtype))
    write(folder / COMPLETED_VOXELS / name, is_narrowed.astype(np.uint8))
    if not lesson.is_annotated:
        write(folder / COMPLETED_LABELS / f"{lesson.case.name}{ending}", values.astype(dtype))
    unknown = [
        (str(teacher.table), word)
        for teacher, reading in zip(lesson.teachers, readings, strict=True)
        for word in reading.unknown
    ]
    seen = frozenset[int]().union(*(reading.seen for reading in readings))
    return LessonResult(taught, seen, tuple(unknown))


def _read_annotation(lesson: Lesson) -> tuple[np.ndarray, Place]:
    """Return the label map of a case; `ignore` everywhere if it has none."""
    image = lesson.case.images[0]
    if not lesson.is_annotated:
        array, place = read_voxels(image)
        return np.full(array.shape, lesson.protocol.num_leaves), place
    assert lesson.case.label is not None
    array, place = read_voxels(lesson.case.label)
    values = integer_array(array, lesson.case.label)
    undeclared = [int(value) for value in (values.min(), values.max())]
    undeclared = [value for value in undeclared if not 0 <= value < len(lesson.protocol.sets)]
    if undeclared:
        raise LabelSetError(
            f"{lesson.case.label}: value {undeclared[0]} is not declared: "
            "run 'nnunet_labelset verify'"
        )
    return values, place


def teachers_of_models(
    source: Source, models: Sequence[Path], fold: str | None, folder: Path, trust: bool
) -> list[Predictions]:
    """Predict the cases with every model; return the folders of predictions.

    fold: None for all folds of each model. folder: where predictions are kept.
    """
    names = source.contract.leaf_names
    for model in models:
        own = check_teacher(model, fold, source.dataset_json, names, trust)
        if own:
            print(f"note: {model}: {some(own, 10)}: no label of the data set: not learnt")
    teachers = []
    for model in models:
        teacher = predict_cases(model, fold, source.cases, source.dataset_json, folder, trust)
        leaves = {
            str(value): names.index(name) if name in names else NONE
            for name, value in teacher.labels.items()
        }
        teachers.append(Predictions(model.name, teacher.folder, leaves, teacher.ending, model))
    return teachers


def teacher_of_folder(source: Source, folder: Path, table: Path) -> Predictions:
    """Return a folder of predictions whose values or masks a table maps to labels."""
    cases = [case.name for case in source.cases]
    return predictions_of_folder(folder, table, source.contract.leaf_names, source.ending, cases)


def write_taught(
    source: Source,
    destination: Destination,
    make_teachers: Callable[[], Teachers],
    processes: int,
) -> list[str]:
    """Write the data set `destination`, which lists the files of `source` in place; return notes.

    make_teachers: returns the folders of predictions, and may take long to make them.
    """
    target = Target(destination.folder)
    with staged(target, ()) as staging:
        teachers = make_teachers()
        lessons, untaught = _lessons(source, teachers)
        work = partial(teach_case, folder=staging, ending=source.ending)
        finished = map_parallel(work, lessons, processes, "Completing")
        results = {lesson.case.name: result for lesson, result in finished}
        kept = {case: results[case] for case in sorted(results) if results[case].taught.narrowed}
        if not kept:
            raise LabelSetError(
                "nothing to complete: the predictions decide no voxel that the annotation left open"
            )
        if not source.has_annotation:
            source = source.restricted(kept)
        content = _dataset_json(source, destination, kept, teachers)
        splits = _splits(source)
        if splits is not None:
            completed = completed_splits(splits, source.dataset_json, content)
            write_json(destination.preprocessed / SPLITS, completed)
        publish(target, _files(source, kept), content)
    shutil.rmtree(destination.work, ignore_errors=True)  # the label maps have it all now
    return [
        *_notes(source.contract, teachers, kept),
        *_untaught_notes(untaught),
        f"{len(kept)} completed case(s) in {destination.folder}, next:",
        *_next_commands(source, destination, has_folds=splits is not None),
    ]


def _next_commands(source: Source, destination: Destination, has_folds: bool) -> list[str]:
    """Return what to type next; the folds are there already, or there are too few cases for any."""
    configuration = likely_configuration(source.folder, None)
    pairs = paired_labels(source.contract.leaf_names, source.dataset_json)
    trainer = recommended_trainer(pairs)
    fold = "0" if has_folds else "all"
    return [
        f"  {PLAN_AND_PREPROCESS} -d {destination.number}",
        f"  nnunet_labelset train {destination.number} {configuration} {fold} -tr {trainer}",
    ]


def _lessons(source: Source, teachers: Teachers) -> tuple[list[Lesson], list[str]]:
    """Return the cases with open voxels, and the names of those without any prediction."""
    lessons = []
    untaught = []
    for case in source.cases:
        protocol = source.contract.protocol(case.name)
        if all(len(labels) == 1 for labels in protocol.sets):
            continue
        present = tuple(teacher for teacher in teachers if teacher.has_case(case.name))
        if present:
            lessons.append(Lesson(case, protocol, present, source.has_annotation))
        else:
            untaught.append(case.name)
    if not lessons:
        raise LabelSetError(f"{source.folder}: every case is annotated completely: nothing is open")
    return lessons, untaught


def _splits(source: Source) -> list[dict[str, list[str]]] | None:
    """Return the folds of the data set, or new ones; None if there are too few cases."""
    try:
        return read_splits(source.folder.name)
    except LabelSetError:
        pass
    names = [case.name for case in source.cases]
    try:
        return k_folds(subjects_of(source.contract, names), min(FOLDS, len(names)))
    except LabelSetError:
        return None


def _dataset_json(
    source: Source,
    destination: Destination,
    kept: Mapping[str, LessonResult],
    teachers: Teachers,
) -> dict[str, Any]:
    labels = {case: f"{COMPLETED_LABELS}/{case}{source.ending}" for case in kept}
    content = dataset_json_with_copies(
        source.dataset_json,
        source.contract,
        source.folder,
        destination.folder,
        completed={case: result.taught for case, result in kept.items()},
        provenance={case: {} for case in kept},
        labels={} if source.has_annotation else labels,
    )
    names = source.contract.leaf_names
    content[COMPLETED] |= {
        "from": source.folder.name,
        "teachers": [
            {"name": teacher.name, "labels": [names[leaf] for leaf in sorted(teacher.known)]}
            for teacher in teachers
        ],
    }
    return content


def _files(source: Source, kept: Collection[str]) -> list[str]:
    """Return the files of the new data set."""
    copies = [f"{copy_name(case)}{source.ending}" for case in kept]
    files = [f"{COMPLETED_LABELS}/{name}" for name in copies]
    files += [f"{COMPLETED_VOXELS}/{name}" for name in copies]
    if not source.has_annotation:
        files += [f"{COMPLETED_LABELS}/{case}{source.ending}" for case in kept]
    return files


def _notes(
    contract: Contract, teachers: Teachers, kept: Mapping[str, LessonResult]
) -> Iterator[str]:
    for case, result in kept.items():
        taught = result.taught
        enlarged = f"; {taught.enlarged} voxels in a larger label-set" if taught.enlarged else ""
        yield (
            f"{case}: {taught.completed / taught.open_before:.1%} of {taught.open_before} "
            f"open voxels have one label now{enlarged}"
        )
    yield from _unknown_notes(kept.values())
    seen = frozenset[int]().union(*(result.seen for result in kept.values()))
    known = frozenset[int]().union(*(teacher.known for teacher in teachers))
    for leaf in sorted(known - seen):
        name = contract.leaf_names[leaf]
        yield f"WARNING: '{name}' is in no prediction: is its name or value right?"


def _unknown_notes(results: Iterable[LessonResult]) -> Iterator[str]:
    unknown = sorted({entry for result in results for entry in result.unknown})
    for table in dict.fromkeys(table for table, _ in unknown):
        words = [word for other, word in unknown if other == table]
        yield f"note: {table} does not list {some(words, 10)}: treated as none of its labels"


def _untaught_notes(untaught: Sequence[str]) -> Iterator[str]:
    if untaught:
        yield f"note: {some(untaught)}: no prediction, so left as annotated"
