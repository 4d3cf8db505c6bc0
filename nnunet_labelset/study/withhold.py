"""`nnunet_labelset experiment --withhold`: a data set as if some leaves had not been drawn in some
cases.

What is withheld becomes nnU-Net's `ignore`, which then stands for the withheld leaves, as where a
hospital drew some tissues inside a mask of the brain. One leaf alone would be given away by that:
it becomes one with the background. Images are links; test cases stay complete.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from nnunet_labelset.contract import Contract, LabelSet, Protocol
from nnunet_labelset.contract.annotated_table import contract_with_list
from nnunet_labelset.datasets.annotate.declaration import protocol_name
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import link_file
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.volume import count_values, integer_array, read_voxels, write_voxels
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.folders import find_dataset, nnunet_folder
from nnunet_labelset.nnunet.publish import Target, publish, staged
from nnunet_labelset.nnunet.raw import TRAINING, RawCase, file_ending, raw_cases, read_dataset


def withhold(dataset: str, table: Path, new_id: int, processes: int) -> Path:
    """Write `Dataset{new_id}_{Name}Withheld` beside the data set; returns its folder.

    The table says what stays annotated, as `--annotated` elsewhere. A case that it does not list
    stays as it is.
    """
    folder = find_dataset(dataset)
    dataset_json, contract = read_dataset(folder)
    stays = contract_with_list(dataset_json, table)
    cases = raw_cases(folder, dataset_json)
    training = {case.name: case for case in cases if case.part == TRAINING}
    for name in stays.cases:
        if name not in training:
            raise LabelSetError(
                f"{table}: '{name}' is no training case of {folder.name}{did_you_mean(name, training)}"
            )
    root = nnunet_folder(names.RAW)
    target = root / names.dataset_name(new_id, f"{folder.name.partition('_')[2]}Withheld")
    if taken := [path.name for path in root.glob(names.dataset_name(new_id, "*"))]:
        raise LabelSetError(
            f"--into {new_id}: {root / taken[0]} exists: give another id, or use it with -d {new_id}"
        )
    foreground = frozenset(range(1, contract.num_leaves))
    withheld = {
        name: foreground - {contract.leaf_names.index(leaf) for leaf in stays.annotated(name)}
        for name in stays.cases
    }
    ending = file_ending(dataset_json)
    new = Target(target)
    with staged(new, ()) as staging:
        work = partial(_write_case, folder=staging, contract=contract, ending=ending)
        jobs = [(case, withheld.get(case.name, frozenset())) for case in cases]
        protocols: dict[str, Protocol] = {}
        assigned: dict[str, str] = {}
        files: list[str] = []
        for (case, lacking), (written, protocol) in map_parallel(
            work, jobs, processes, "Withholding"
        ):
            files += written
            if protocol is not None:
                name = protocol_name(contract, lacking) if lacking else contract.cases[case.name]
                while (
                    protocols.setdefault(name, protocol) != protocol
                ):  # what was drawn before differs
                    name += "'"
                assigned[case.name] = name
        after = replace(
            contract,
            protocols=protocols,
            cases=dict(sorted(assigned.items())),
            has_ignore=True,
        )
        kept = {key: value for key, value in dataset_json.items() if key != names.LISTED}
        publish(new, files, {**kept, **after.to_dataset_json()})
    return target


def _write_case(
    job: tuple[RawCase, LabelSet], folder: Path, contract: Contract, ending: str
) -> tuple[list[str], Protocol | None]:
    """Links to the images, and the label map without what is withheld; returns the files and the
    protocol.
    """
    case, withheld = job
    images, labels = names.IMAGES_TRAINING, names.LABELS_TRAINING
    if case.part != TRAINING:
        images, labels = names.IMAGES_TEST, names.LABELS_TEST
    written = [f"{images}/{case.name}_{channel:04d}{ending}" for channel in range(len(case.images))]
    for name, source in zip(written, case.images, strict=True):
        link_file(folder / name, source.resolve())
    if case.label is None:
        return written, None
    written.append(f"{labels}/{case.name}{ending}")
    values, place = read_voxels(case.label)
    values = integer_array(values, case.label)
    sets = [*contract.protocol(case.name).sets, contract.full_set][: contract.num_leaves + 1]
    ignore = contract.num_leaves
    moved = []
    hidden: LabelSet = frozenset()
    if withheld:  # whatever may be a withheld leaf is no longer told from it
        found = count_values(values)
        for hidden in (withheld, withheld | {0}):
            moved = [value for value in found if sets[value] & hidden or value == ignore]
            sets[ignore] = hidden.union(*(sets[value] for value in moved))
            if len(sets[ignore]) > 1:  # one leaf alone would be as good as annotated
                break
        for value in moved:
            if value != ignore:
                sets[value] = frozenset([value])
        values = np.where(np.isin(values, moved), ignore, values)
    write_voxels(
        folder / written[-1], values.astype(np.min_scalar_type(ignore)), place, flush=False
    )
    if not withheld:
        return written, contract.protocol(case.name).with_ignore()
    annotated = contract.protocol(case.name).annotated - hidden
    protocol = Protocol(tuple(sets), contract.num_leaves)
    # An `ignore` that may be every label must still say that the withheld ones were not drawn.
    protocol = replace(protocol, states_ignore=bool(protocol.annotated - annotated))
    return written, replace(protocol, vouched=annotated & protocol.uncertain)
