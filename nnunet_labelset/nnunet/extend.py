"""`nnunet_labelset extend`: the start of a training in which a trained model learns more
structures.

The network is the old model's, so that its plans move to the new data set. Only the output layers
have other rows: the labels that the model knows keep theirs, by name, and a new one begins as an
unlikely copy of the background: at the first step the network says what the old one said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import check_name, new_file, write_json
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.checkpoint_file import (
    NEW_OUTPUTS,
    OUTPUT_LAYERS,
    OUTPUTS,
    START_FILE,
    TRUST_IT,
    read_checkpoint,
    trusted,
)
from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER
from nnunet_labelset.nnunet.folders import find_dataset, nnunet_folder
from nnunet_labelset.nnunet.model_file import OldModel, best_start, opened_model
from nnunet_labelset.nnunet.names import (
    DATASET,
    PREPROCESSED,
    RAW,
    dataset_words,
)
from nnunet_labelset.nnunet.raw import channel_names, raw_cases, read_dataset
from nnunet_labelset.nnunet.recommendation import (
    TEACHER_TRAINER,
    next_commands_with_plans,
    recommended_trainer,
    sided_pairs,
)

# The logit of a new label against that of background, or of a new region, which has no background:
# low enough that the first prediction is the old one, and high enough that Dice, whose gradient
# goes with the probability, finds the label.
UNLIKELY = -2.0


def extend(
    model: Path,
    dataset: str,
    plans_name: str | None = None,
    fold: str | None = None,
    trust: bool = False,
) -> None:
    """Write the plans and the first weights into the preprocessed data set, and print what to type
    next.

    trust: read a checkpoint that brings code of its own.
    """
    raw = find_dataset(dataset)
    number = _dataset_number(raw)
    dataset_json, contract = read_dataset(raw)
    new = tuple(contract.regions) if contract.regions is not None else contract.leaf_names
    with opened_model(model, fold) as (folder, checkpoints):
        old_model = OldModel.read(folder, trust)
        check_extension(old_model, dataset_json, contract, new)
        checkpoint = best_start(checkpoints)
        weights = _new_weights(checkpoint, old_model.outputs, new, contract, trust)
    name = _plans_name(plans_name, old_model.plans)
    target = nnunet_folder(PREPROCESSED) / raw.name
    start = target / START_FILE.format(plans=name, configuration=old_model.configuration)
    _refuse_existing(target / f"{name}.json", start)
    plans = _moved(old_model.plans, name, raw, dataset_json)
    added = [label for label in new if label not in old_model.outputs]
    _save_start(start, {"network_weights": weights, OUTPUTS: list(new), NEW_OUTPUTS: added})
    write_json(target / f"{name}.json", plans)
    write_json(target / DATASET, dataset_json)
    print(
        f"{start}: {len(old_model.outputs)} outputs of the old model, "
        f"new: {some(added, 20) or 'none'}. Next:"
    )
    trainer = extension_trainer(contract, old_model.outputs, new)
    commands = next_commands_with_plans(number, name, old_model.configuration, trainer)
    print("\n".join(commands), f"-pretrained_weights {start}")


def _dataset_number(raw: Path) -> int:
    """Return the id of a data set: nnU-Net's commands take no name here."""
    words = dataset_words(raw.name)
    if words is None:
        raise LabelSetError(f"{raw}: expected a folder DatasetXXX_Name in {RAW}")
    return words[0]


def _plans_name(chosen: str | None, plans: Mapping[str, Any]) -> str:
    default = f"{plans['plans_name']}_of_{plans['dataset_name']}".replace("__", "_")
    name = check_name(chosen or default, "plans")
    if "__" in name:
        raise LabelSetError(
            f"plans '{name}': nnU-Net tells trainer, plans and configuration apart by '__': use '_'"
        )
    return name


def _refuse_existing(*files: Path) -> None:
    for file in files:
        if file.exists():
            raise LabelSetError(
                f"{file}: exists already: remove it, or choose another name with -p"
            )


def _save_start(path: Path, content: dict[str, Any]) -> None:
    import torch

    with new_file(path) as temporary:  # first of all files: a full disk leaves nothing behind
        torch.save(content, temporary)


def old_labels(start: str | None, names: Sequence[str]) -> list[str] | None:
    """Return what the old model of a start file knows; None for any other file, or other labels."""
    if start is None or not Path(start).is_file():
        return None
    content = read_checkpoint(Path(start), trusted(), mmap=True, how_to_trust=TRUST_IT)
    if content.get(OUTPUTS) != list(names):
        return None
    return [name for name in names if name not in content.get(NEW_OUTPUTS, [])]


def extension_trainer(contract: Contract, old: Sequence[str], new: Sequence[str]) -> str:
    """Return the trainer for a model with the labels `old` that learns those of `new`.

    The old model teaches where a case does not annotate all that it knows; regions have no teacher.
    """
    trainer = recommended_trainer(sided_pairs(new))
    if contract.regions is not None:
        return trainer
    known = {contract.leaf_names.index(label) for label in old}
    complete = all(
        known <= contract.protocols[protocol].annotated for protocol in set(contract.cases.values())
    )
    return trainer if complete else trainer.replace(DEFAULT_TRAINER, TEACHER_TRAINER)


def check_extension(
    old_model: OldModel, dataset_json: Mapping[str, Any], contract: Contract, new: Sequence[str]
) -> None:
    """Refuse what would make another network of it, or lose what it knows."""
    _check_outputs(old_model, contract)
    check_channels(channel_names(old_model.dataset_json), channel_names(dataset_json))
    _check_labels(old_model.outputs, new)


def _check_outputs(old_model: OldModel, contract: Contract) -> None:
    if old_model.needs_first_stage:
        raise LabelSetError(
            f"{old_model.configuration} sees the labels of its first stage as images: "
            "extend the first stage"
        )
    if ("background" not in old_model.outputs) != (contract.regions is not None):
        raise LabelSetError(
            "one of model and data set has regions, the other has labels: "
            "their outputs mean different things"
        )


def check_channels(old: Sequence[str], new: Sequence[str]) -> None:
    """Refuse channels of another kind or order; warn of other names."""
    if old == new:
        return
    # nnU-Net normalises CT differently.
    same_kinds = [name.casefold() == "ct" for name in old] == [
        name.casefold() == "ct" for name in new
    ]
    if not same_kinds or sorted(old) == sorted(new):
        raise LabelSetError(
            f"the model was trained on the channels {list(old)}, the data set has {list(new)}"
        )
    print(
        f"WARNING: channels {list(old)} of the model are {list(new)} here; "
        "they are normalised as before"
    )


def _check_labels(old: Sequence[str], new: Sequence[str]) -> None:
    if not set(old) & set(new) - {"background"}:
        raise LabelSetError(
            f"no label in common: the model knows {some(old, 20)}, the data set has {some(new, 20)}"
        )
    lost = [label for label in old if label not in new]
    if lost:
        hint = did_you_mean(lost[0], [label for label in new if label not in old])
        raise LabelSetError(f"the model knows '{lost[0]}', which is no label of the data set{hint}")


def _new_weights(
    file: Path, old: Sequence[str], new: Sequence[str], contract: Contract, trust: bool
) -> dict[str, Any]:
    """Return the weights of the old network with the rows of the new output layers."""
    weights = read_checkpoint(file, trust).get("network_weights")
    if not isinstance(weights, dict):
        raise LabelSetError(f"{file}: not a checkpoint of nnU-Net: it has no network_weights")
    layers = [key for key in weights if OUTPUT_LAYERS in key]
    if not layers:
        raise LabelSetError(
            f"the network of the model has no layers '{OUTPUT_LAYERS.strip('.')}': "
            "not a U-Net of nnU-Net"
        )
    for key in layers:
        if len(weights[key]) != len(old):
            raise LabelSetError(
                f"{key} has {len(weights[key])} rows, "
                f"but the dataset.json of the model {len(old)} labels"
            )
        weights[key] = _extended_layer(weights[key], old, new, contract.regions is not None)
    return weights


def _extended_layer(layer: Any, old: Sequence[str], new: Sequence[str], has_regions: bool) -> Any:
    """Rows by name; a new label starts as an unlikely copy of background, a new region as
    unlikely.
    """
    import torch

    first_guess = torch.zeros_like(layer[0]) if has_regions else layer[0]
    if layer.ndim == 1:  # the bias
        first_guess = first_guess + UNLIKELY
    rows = [layer[old.index(label)] if label in old else first_guess for label in new]
    return torch.stack(rows)


def _moved(
    plans: dict[str, Any], name: str, raw: Path, dataset_json: Mapping[str, Any]
) -> dict[str, Any]:
    """The plans as `nnUNetv2_move_plans_between_datasets` wants them in the other data set."""
    from nnunetv2.imageio.reader_writer_registry import determine_reader_writer_from_dataset_json

    cases = raw_cases(raw, dataset_json)
    if not cases or not cases[0].images:
        raise LabelSetError(f"{raw}: no training images")
    reader = determine_reader_writer_from_dataset_json(
        dict(dataset_json), str(cases[0].images[0]), True, verbose=False
    )
    for planned in plans["configurations"].values():
        if "data_identifier" in planned:
            words = planned["data_identifier"].removeprefix(plans["plans_name"]).lstrip("_")
            planned["data_identifier"] = f"{name}_{words}"
    return {
        **plans,
        "dataset_name": raw.name,
        "plans_name": name,
        "image_reader_writer": reader.__name__,
    }
