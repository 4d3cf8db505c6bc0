"""The trainer of `nnunet_labelset train` and `predict` where the user names none."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.discovery import NO_MIRRORING, PRETRAINED_TRAINER, known_trainers
from nnunet_labelset.nnunet.extend import extension_trainer, old_labels
from nnunet_labelset.nnunet.folders import find_dataset
from nnunet_labelset.nnunet.recommendation import paired_labels, recommended_trainer


class _UnreadableError(Exception):
    """nnU-Net itself explains what is wrong with its arguments."""


class _QuietParser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise _UnreadableError


def training_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `nnUNetv2_train` with a trainer that suits the data set."""
    parser = _parser("-pretrained_weights", "-num_gpus", "-device")
    for positional in ("dataset", "configuration", "fold"):
        parser.add_argument(positional)
    for flag in ("--npz", "--c", "--val", "--val_best", "--disable_checkpointing"):
        parser.add_argument(flag, action="store_true")
    return _with_trainer(parser, arguments, _trainer_for_training)


def fine_tuning_arguments(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the arguments of `nnUNetv2_train_pretrained` with a trainer, and its name; no name if
    they only ask for help, or are wrong.
    """
    parser = _parser("-num_gpus", "-device", "-overwrite_ckpt_path")
    for positional in ("dataset", "configuration", "fold"):
        parser.add_argument(positional)
    words = _with_trainer(parser, arguments, _trainer_for_fine_tuning)
    try:
        args, _ = parser.parse_known_args(words)
    except _UnreadableError:
        return words, None
    if args.num_gpus not in (None, "1"):
        raise LabelSetError(
            f"-num_gpus {args.num_gpus}: the processes of other GPUs would not find "
            f"{args.trainer}: fine-tune on one GPU"
        )
    return words, args.trainer


def prediction_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `nnUNetv2_predict` with the trainer of a model that exists."""
    return _with_trainer(_prediction_parser(), arguments, _trainer_for_prediction)


def parse_prediction(arguments: Sequence[str]) -> argparse.Namespace | None:
    """Return the arguments of `nnUNetv2_predict`; None if they only ask for help, or are wrong."""
    if {"-h", "--help"} & set(arguments):
        return None
    try:
        return _prediction_parser().parse_known_args(list(arguments))[0]
    except _UnreadableError:
        return None


def _prediction_parser() -> argparse.ArgumentParser:
    # All that begin with the letter of another option: argparse would read -device as -d evice.
    parser = _parser("-device", "-chk", "-part_id", "-prev_stage_predictions", "-i")
    parser.add_argument("-d", dest="dataset", required=True)
    parser.add_argument("-c", dest="configuration", required=True)
    parser.add_argument("--disable_tta", action="store_true")
    return parser


def _parser(*options: str) -> argparse.ArgumentParser:
    parser = _QuietParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-tr", dest="trainer")
    parser.add_argument("-p", dest="plans", default=names.DEFAULT_PLANS)
    for option in options:
        parser.add_argument(option)
    return parser


def _with_trainer(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    choose: Callable[[argparse.Namespace], str],
) -> list[str]:
    if {"-h", "--help"} & set(arguments):
        return list(arguments)
    try:
        args, _ = parser.parse_known_args(list(arguments))
    except _UnreadableError:
        return list(arguments)
    if args.trainer is None:
        return [*arguments, "-tr", choose(args)]
    known = known_trainers()
    if args.trainer not in known:
        raise LabelSetError(
            f"-tr {args.trainer}: no such trainer{did_you_mean(args.trainer, known)}"
        )
    return list(arguments)


def _trainer_for_training(args: argparse.Namespace) -> str:
    if args.c or args.val:
        return _existing_trainer(args, "going on", names.fold_name(args.fold))
    # What is preprocessed is what trainers read.
    dataset_json = read_json(find_dataset(args.dataset, names.PREPROCESSED) / names.DATASET)
    if BLOCK not in dataset_json:
        print(
            f"No -tr, and {args.dataset} has no '{BLOCK}' block: {names.DEFAULT_NNUNET_TRAINER} "
            "takes every unlabelled voxel for background",
            flush=True,
        )
        return names.DEFAULT_NNUNET_TRAINER
    contract = Contract.from_dataset_json(dataset_json)
    outputs = tuple(contract.regions or contract.leaf_names)
    known = old_labels(args.pretrained_weights, outputs)
    pairs = paired_labels(contract.leaf_names, dataset_json)
    trainer, why = recommended_trainer(pairs), "this data"
    if known is not None:
        trainer, why = extension_trainer(contract, known, outputs), "extending a model"
    print(f"No -tr: training with {trainer}, which is recommended for {why}", flush=True)
    return trainer


def _trainer_for_fine_tuning(args: argparse.Namespace) -> str:
    dataset_json = read_json(find_dataset(args.dataset, names.PREPROCESSED) / names.DATASET)
    pairs = paired_labels(Contract.from_dataset_json(dataset_json).leaf_names, dataset_json)
    trainer = PRETRAINED_TRAINER + (NO_MIRRORING if pairs else "")
    print(f"No -tr: training with {trainer}", flush=True)
    return trainer


def _trainer_for_prediction(args: argparse.Namespace) -> str:
    return _existing_trainer(args, "predicting")


def _existing_trainer(args: argparse.Namespace, purpose: str, fold: str = "") -> str:
    """Return the trainer of the only model with these plans, this configuration and this fold."""
    models = find_dataset(args.dataset, names.RESULTS)
    pattern = names.model_name("*", args.plans, args.configuration)
    folders = [folder for folder in sorted(models.glob(pattern)) if (folder / fold).is_dir()]
    trainer = _only_choice(models, [names.model_words(folder)[0] for folder in folders])
    print(f"No -tr: {purpose} with {trainer}", flush=True)
    return trainer


def _only_choice(models: Path, trainers: Sequence[str]) -> str:
    if len(trainers) == 1:
        return trainers[0]
    if not trainers:
        raise LabelSetError(f"{models}: no model with these plans and this configuration")
    raise LabelSetError(f"{models}: several trainers: choose one with -tr: {', '.join(trainers)}")
