"""`nnunet_labelset experiment --withhold`: a data set as if some leaves had not been drawn in some cases.

What is withheld becomes nnU-Net's `ignore`, which then stands for the withheld leaves, as where a hospital drew some
tissues inside a mask of the brain. Images are links; test cases stay complete.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnunet_labelset.contract import BLOCK, IGNORE, Contract, LabelSet
from nnunet_labelset.contract.annotated_table import contract_with_list
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.volume import label_array, read_image, write_voxels
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.folders import find_dataset, nnunet_folder
from nnunet_labelset.nnunet.raw import TRAINING, RawCase, file_ending, raw_cases

Protocol = dict[str, list[str]]


def withhold(dataset: str, table: Path, new_id: int, processes: int) -> Path:
    """Write `Dataset{new_id}_{Name}Withheld` beside the data set; returns its folder.

    The table says what stays annotated, as `--annotated` elsewhere. A case that it does not list stays as it is.
    """
    folder = find_dataset(dataset)
    dataset_json = read_json(folder / names.DATASET)
    contract, stays = Contract.from_dataset_json(dataset_json), contract_with_list(dataset_json, table)
    cases = raw_cases(folder, dataset_json)
    training = {case.name: case for case in cases if case.part == TRAINING}
    for name in stays.cases:
        if name not in training:
            raise LabelSetError(f"{table}: '{name}' is no training case of {folder.name}{did_you_mean(name, training)}")
    root = nnunet_folder("nnUNet_raw")
    target = root / f"Dataset{new_id:03d}_{folder.name.partition('_')[2]}Withheld"
    if taken := [path.name for path in root.glob(f"Dataset{new_id:03d}_*")]:
        raise LabelSetError(f"--into {new_id}: {root / taken[0]} exists: give another id, or use it with -d {new_id}")
    foreground = frozenset(range(1, contract.num_leaves))
    withheld = {
        name: foreground - {contract.leaf_names.index(leaf) for leaf in stays.annotated(name)} for name in stays.cases
    }
    with tempfile.TemporaryDirectory(prefix=".labelset_withhold_", dir=root) as temporary:
        work = partial(_write_case, folder=Path(temporary), contract=contract, ending=file_ending(dataset_json))
        jobs = [(case, withheld.get(case.name, frozenset())) for case in cases]
        protocols: dict[str, Protocol] = {}
        assigned: dict[str, str] = {}
        for (case, _), protocol in map_parallel(work, jobs, processes, "Withholding"):
            if protocol is not None:
                known = [name for name, other in protocols.items() if other == protocol]
                assigned[case.name] = known[0] if known else f"protocol_{len(protocols) + 1}"
                protocols[assigned[case.name]] = protocol
        block = {**dataset_json[BLOCK], "protocols": protocols, "cases": dict(sorted(assigned.items()))}
        labels = {**dataset_json["labels"], IGNORE: contract.num_leaves}
        kept = {key: value for key, value in dataset_json.items() if key != "dataset"}
        write_json(Path(temporary) / names.DATASET, {**kept, "labels": labels, BLOCK: block})
        os.chmod(temporary, 0o755)  # temporary folders are private
        os.rename(temporary, target)
        Path(temporary).mkdir()  # what the context manager removes
    return target


def _write_case(job: tuple[RawCase, LabelSet], folder: Path, contract: Contract, ending: str) -> Protocol | None:
    """Links to the images, and the label map without what is withheld; returns the protocol of the case."""
    case, withheld = job
    images, labels = names.IMAGES_TRAINING, names.LABELS_TRAINING
    if case.part != TRAINING:
        images, labels = names.IMAGES_TEST, names.LABELS_TEST
    for channel, source in enumerate(case.images):
        link = folder / images / f"{case.name}_{channel:04d}{ending}"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(source.resolve())
    if case.label is None:
        return None
    target = folder / labels / f"{case.name}{ending}"
    target.parent.mkdir(exist_ok=True)
    if not withheld:
        shutil.copy(case.label, target)
        return _protocol(contract, dict(enumerate(contract.sets_of(case.name))))
    image = read_image(case.label)
    values = label_array(image, case.label)
    sets = dict(enumerate(contract.sets_of(case.name)))
    present = set(np.unique(values).tolist())
    ignore = contract.num_leaves
    # Whatever may be a withheld leaf is no longer told from it.
    moved = {value for value in present if sets[value] & withheld or value == ignore}
    result = np.where(np.isin(values, list(moved)), ignore, values).astype(np.uint8 if ignore < 256 else np.uint16)
    write_voxels(target, result, image)
    sets = {value: labels for value, labels in sets.items() if value not in moved}
    return _protocol(contract, {**sets, ignore: withheld.union(*(contract.sets_of(case.name)[v] for v in moved))})


def _protocol(contract: Contract, sets: Mapping[int, LabelSet]) -> Protocol:
    """As dataset.json writes it: values that stand for themselves are not mentioned, nor ignore for all."""
    value_names: dict[int, Any] = dict(enumerate((*contract.leaf_names, IGNORE)))
    own = {value: frozenset([value]) for value in range(contract.num_leaves)} | {contract.num_leaves: contract.full_set}
    return {
        value_names[value]: [contract.leaf_names[leaf] for leaf in sorted(labels)]
        for value, labels in sorted(sets.items())
        if labels != own[value]
    }
