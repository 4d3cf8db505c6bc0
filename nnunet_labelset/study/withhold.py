"""`nnunet_labelset experiment --withhold`: a data set as if some labels had not been drawn in some
cases.

Voxels that may be a withheld label become nnU-Net's `ignore`, which then stands for all withheld
labels, as where a hospital drew some tissues inside a mask of the brain. One label alone would be
given away by that: it becomes one with the background. Images are links; test cases stay complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from nnunet_labelset.contract import Contract, LabelSet, Protocol
from nnunet_labelset.contract.annotated_table import contract_with_list
from nnunet_labelset.contract.storage import BACKGROUND, store
from nnunet_labelset.datasets.annotate.declaration import protocol_name
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import link_file
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.text import variants
from nnunet_labelset.io.volume import count_values, integer_array, read_voxels, write_voxels
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.folders import find_dataset, nnunet_folder
from nnunet_labelset.nnunet.publish import Target, publish, staged
from nnunet_labelset.nnunet.raw import (
    TRAINING,
    RawCase,
    check_unchanged,
    file_ending,
    raw_cases,
    read_dataset,
)


@dataclass(frozen=True)
class WithholdingJob:
    """A case, how it was annotated (None: not declared), and the labels to withhold in it."""

    case: RawCase
    protocol: Protocol | None
    withheld: LabelSet

    @property
    def name(self) -> str:
        return self.case.name


@dataclass(frozen=True)
class WrittenCase:
    """The files of a case, relative to the data set, and how it is annotated now."""

    files: list[str]
    protocol: Protocol | None


def withhold(dataset: str, table: Path, new_id: int, processes: int) -> Path:
    """Write `Dataset{new_id}_{Name}Withheld` beside the data set; returns its folder.

    The table says what stays annotated, as `--annotated` elsewhere. A case that it does not list
    stays as it is.
    """
    folder = find_dataset(dataset)
    dataset_json, contract = read_dataset(folder)
    cases = raw_cases(folder, dataset_json)
    withheld = _withheld_labels(contract_with_list(dataset_json, table))
    training = [case.name for case in cases if case.part == TRAINING]
    for name in withheld:
        if name not in training:
            hint = did_you_mean(name, training)
            raise LabelSetError(f"{table}: '{name}' is no training case of {folder.name}{hint}")
    target = Target(_new_folder(folder, new_id))
    jobs = [_job(case, contract, withheld) for case in cases]
    with staged(target, ()) as staging:
        write = partial(_write_case, folder=staging, ending=file_ending(dataset_json))
        written = dict(map_parallel(write, jobs, processes, "Withholding"))
        check_unchanged(folder, dataset_json)
        new_contract = _contract_of_written(contract, written)
        kept = {key: value for key, value in dataset_json.items() if key != names.LISTED}
        files = [file for result in written.values() for file in result.files]
        publish(target, files, {**kept, **new_contract.to_dataset_json()})
    return target.folder


def _withheld_labels(stays: Contract) -> dict[str, LabelSet]:
    """Return the labels that do not stay annotated, for every case of the table."""
    foreground = stays.full_set - BACKGROUND
    return {name: foreground - stays.protocol(name).annotated for name in stays.cases}


def _new_folder(folder: Path, new_id: int) -> Path:
    root = nnunet_folder(names.RAW)
    for taken in root.glob(names.dataset_name(new_id, "*")):
        raise LabelSetError(
            f"--into {new_id}: {taken} exists: give another id, or use it with -d {new_id}"
        )
    return root / names.dataset_name(new_id, f"{folder.name.partition('_')[2]}Withheld")


def _job(case: RawCase, contract: Contract, withheld: Mapping[str, LabelSet]) -> WithholdingJob:
    labels = withheld.get(case.name, frozenset()) if case.part == TRAINING else frozenset()
    is_declared = case.part == TRAINING or case.name in contract.cases
    protocol = contract.protocol(case.name) if is_declared else None
    return WithholdingJob(case=case, protocol=protocol, withheld=labels)


def _contract_of_written(
    contract: Contract, written: Mapping[WithholdingJob, WrittenCase]
) -> Contract:
    """Return the contract of the new data set. Its protocols are called by what is withheld."""
    protocols: dict[str, Protocol] = {}
    cases: dict[str, str] = {}
    for job, result in sorted(written.items(), key=lambda item: item[0].name):
        if result.protocol is None:
            continue
        name = contract.cases[job.name]
        if job.withheld:
            name = protocol_name(contract, job.withheld)
        # What was drawn before may differ between cases in which the same labels are withheld.
        cases[job.name] = next(
            word
            for word in variants(name)
            if protocols.setdefault(word, result.protocol) == result.protocol
        )
    return replace(contract, protocols=protocols, cases=cases, has_ignore=True)


def _write_case(job: WithholdingJob, folder: Path, ending: str) -> WrittenCase:
    """Link the images and write the label map without what is withheld."""
    files = []
    for name, image in _image_links(job.case, ending):
        link_file(folder / name, image.resolve())
        files.append(name)
    if job.case.label is None:
        return WrittenCase(files, None)
    label_folder = names.LABELS_TRAINING if job.case.part == TRAINING else names.LABELS_TEST
    files.append(f"{label_folder}/{job.name}{ending}")
    voxels, place = read_voxels(job.case.label)
    values = integer_array(voxels, job.case.label)
    protocol = job.protocol
    if protocol is not None:
        _check_values(values, protocol, job.case.label)
    if protocol is not None and job.withheld:
        values, protocol = withhold_labels(values, protocol, job.withheld)
    write_voxels(folder / files[-1], values, place, flush=False)
    return WrittenCase(files, protocol and protocol.with_ignore())


def _image_links(case: RawCase, ending: str) -> Iterator[tuple[str, Path]]:
    folder = names.IMAGES_TRAINING if case.part == TRAINING else names.IMAGES_TEST
    for channel, image in enumerate(case.images):
        yield f"{folder}/{case.name}_{channel:04d}{ending}", image


def _check_values(values: np.ndarray, protocol: Protocol, path: Path) -> None:
    for value in count_values(values):
        if not 0 <= value < len(protocol.sets):
            raise LabelSetError(f"{path}: value {value} is no label: see nnunet_labelset verify")


def withhold_labels(
    values: np.ndarray, protocol: Protocol, withheld: LabelSet
) -> tuple[np.ndarray, Protocol]:
    """Return a label map in which nothing tells the withheld labels apart, and its protocol.

    Exactly the labels that were annotated before and are not withheld are annotated in it.
    """
    hidden = _united(protocol, withheld)
    annotated = protocol.annotated - withheld
    if len(hidden - annotated) == 1:
        # Whatever is not one of the other labels would have to be this one.
        withheld |= BACKGROUND
        hidden = _united(protocol, withheld)
        annotated -= BACKGROUND
    new_sets = [labels | hidden if labels & withheld else labels for labels in protocol.sets]
    present = list(count_values(values))
    storage = store(
        sets=[new_sets[value] for value in present],
        annotated=annotated,
        num_leaves=protocol.num_leaves,
        optional=new_sets,
        for_ignore=hidden,
    )
    new_values = np.zeros(len(new_sets), np.min_scalar_type(protocol.num_leaves))
    new_values[present] = [storage.value[new_sets[value]] for value in present]
    return new_values[values], storage.protocol


def _united(protocol: Protocol, withheld: LabelSet) -> LabelSet:
    """Return what a voxel may be that could be a withheld label: one set for all of them.

    An `ignore` that states nothing is not part of it.
    """
    touched = (labels for labels in protocol.stated_sets.values() if labels & withheld)
    return withheld.union(*touched)
